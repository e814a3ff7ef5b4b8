//! A `torch.save` file is read like a safetensors file: tensor by tensor, never as a whole.

use candle_blocks::{
    Checkpoint, Weights,
    candle_core::{DType, Device},
};

use crate::resident::{in_a_process_of_its_own, start_measuring, status};
use crate::synthetic::{Sizes, write_bert};
use crate::torch_from_safetensors::convert;

/// 397 MB.
const SIZES: Sizes = Sizes {
    d_model: 768,
    d_ff: 3072,
    n_blocks: 14,
};

#[test]
fn a_file_of_pytorch_takes_the_memory_of_one_of_safetensors() {
    in_a_process_of_its_own(
        "pickles::a_file_of_pytorch_takes_the_memory_of_one_of_safetensors",
        measure,
    );
}

fn measure() {
    let folder = tempfile::tempdir().unwrap();
    write_bert(folder.path(), SIZES, 0);
    let safetensors = folder.path().join("model.safetensors");
    let of_torch = folder.path().join("pytorch_model.bin");
    convert(&safetensors, &of_torch);
    write_bert(folder.path(), SIZES, 0);
    let peaks = [&safetensors, &of_torch].map(|path| {
        let before = start_measuring();
        let checkpoint = Checkpoint::open(path).unwrap();
        let opened = status("VmHWM:") - before;
        let stack = checkpoint
            .load(Weights::Dense(DType::F32, &Device::Cpu))
            .stack()
            .unwrap();
        let peak = status("VmHWM:") - before;
        let n = checkpoint.files().n_bytes();
        println!(
            "{}: {opened} bytes opened, {peak} loaded, {n} of tensors",
            path.display()
        );
        drop(stack);
        assert!(opened < 4 << 20, "{opened}");
        assert!(
            n > 390_000_000 && peak as u64 >= n / 10 * 9,
            "{peak} of {n}"
        );
        peak
    });
    assert!(peaks[1] * 10 <= peaks[0] * 11, "{peaks:?}");
}
