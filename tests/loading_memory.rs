//! Loading takes the memory of what is loaded and of one tensor more, not of the file a second time; loading and
//! packing, that of what is packed and of one block more.
//!
//! Alone in its binary, because the peak is the whole process's.
#![cfg(target_os = "linux")]

mod synthetic;

use std::{env, fs, process::Command};

use candle_blocks::{
    Checkpoint, Precision,
    candle_core::{DType, Device},
};
use synthetic::{Sizes, write_bert, write_gpt2};

/// About 113 MB, of which the largest tensor has 9.4.
const SIZES: Sizes = Sizes {
    d_model: 768,
    d_ff: 3072,
    n_blocks: 4,
};
/// For the plan, the layers and what the allocator rounds up.
const SLACK: usize = 4 << 20;

/// glibc keeps what was freed, up to the size of the largest block freed so far; with this set it gives
/// large blocks back at once, and what is measured is what the loader holds. Read when a process starts.
const GIVE_BACK: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "131072");

#[test]
fn loading_takes_the_tensors_and_once_more_the_largest() {
    let (key, value) = GIVE_BACK;
    if env::var(key).is_ok_and(|set| set == value) {
        return measure();
    }
    let mut again = Command::new(env::current_exe().unwrap());
    let status = again.arg("--nocapture").env(key, value).status().unwrap();
    assert!(status.success());
}

fn measure() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    write_bert(folders[0].path(), SIZES, 0);
    write_gpt2(folders[1].path(), SIZES);
    // All are kept, so that no load reuses the memory of another.
    let mut kept = Vec::new();
    let mut packed_too = Vec::new();
    for folder in &folders {
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let files = checkpoint.files();
        let sizes = files.names().map(|name| files.info(name).unwrap().n_bytes);
        let (total, largest) = (files.n_bytes() as usize, sizes.max().unwrap());
        for is_trainable in [false, true] {
            let before = start_measuring();
            let loader = match is_trainable {
                false => checkpoint.loader(DType::F32, &Device::Cpu),
                true => checkpoint.trainable(DType::F32, &Device::Cpu),
            };
            kept.push(loader.unwrap().stack().unwrap());
            let grown = status("VmHWM:") - before;
            let family = checkpoint.family();
            println!("{family}, trainable {is_trainable}: {grown} bytes for {total} of tensors");
            assert!(
                grown <= total + largest + SLACK,
                "{family} {is_trainable}: {grown}"
            );
            // The measure sees what was loaded.
            assert!(grown >= total / 10 * 9, "{family} {is_trainable}: {grown}");
        }
        for precision in [Precision::F32, Precision::Bf16, Precision::Int8] {
            let before = start_measuring();
            let packed = checkpoint.packed_stack(precision).unwrap();
            let grown = status("VmHWM:") - before;
            let (bytes, block) = (packed.bytes(), total / SIZES.n_blocks);
            println!("{precision:?}: {grown} bytes for {bytes} packed, a block has {block}");
            assert!(
                grown <= bytes / 10 * 11 + block + SLACK,
                "{precision:?}: {grown}"
            );
            assert!(grown >= bytes / 10 * 9, "{precision:?}: {grown}");
            packed_too.push(packed);
        }
    }
    assert_eq!((kept.len(), packed_too.len()), (4, 6));
}

/// Sets the peak back to what is resident, and returns that.
fn start_measuring() -> usize {
    fs::write("/proc/self/clear_refs", "5").unwrap();
    status("VmRSS:")
}

/// A line of the process's own status, in bytes.
fn status(key: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}
