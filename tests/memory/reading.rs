//! Reading a file's tensors one by one takes the memory of one tensor, not of the file.

use std::fs;

use candle_blocks::checkpoint::files::TensorFiles;

use crate::resident::{in_a_process_of_its_own, status};

const TENSOR: usize = 4 << 20;
const N_TENSORS: usize = 16;

#[test]
fn tensors_read_one_by_one_take_the_memory_of_one() {
    in_a_process_of_its_own(
        "reading::tensors_read_one_by_one_take_the_memory_of_one",
        measure,
    );
}

fn measure() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse.safetensors");
    let entries: Vec<String> = (0..N_TENSORS)
        .map(|i| {
            format!(
                r#""t{i}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}}"#,
                TENSOR / size_of::<f32>(),
                i * TENSOR,
                (i + 1) * TENSOR
            )
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    let start = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    fs::write(&path, &start).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len((start.len() + N_TENSORS * TENSOR) as u64)
        .unwrap();

    let files = TensorFiles::open(&path).unwrap();
    let before = status("VmHWM:");
    for name in files.names() {
        assert_eq!(
            files.read(name).unwrap().elem_count(),
            TENSOR / size_of::<f32>()
        );
    }
    let one_by_one = status("VmHWM:") - before;
    let all: Vec<_> = files
        .names()
        .map(|name| files.read(name).unwrap())
        .collect();
    let together = status("VmHWM:") - before;
    println!("peak grew by {one_by_one} bytes one by one, by {together} bytes together");
    // The one that is held, and as much again that the allocator may keep.
    assert!(one_by_one <= 2 * TENSOR, "{one_by_one} bytes");
    // The measure sees tensors that are held.
    assert!(together >= (all.len() - 1) * TENSOR, "{together} bytes");
}
