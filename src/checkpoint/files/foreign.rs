//! Other formats of weights, recognised only in order to say what to do about them.

use std::path::Path;

/// What the file is and the cure, if its first bytes or its name tell.
pub(super) fn explain(path: &Path, start: &[u8]) -> Option<String> {
    let format = by_content(start).or_else(|| by_name(path))?;
    let cure = match format {
        "a Git LFS pointer" => "it stands for the weights; fetch them with `git lfs pull`",
        "a GGUF file" => "take the safetensors checkpoint that it was made from",
        _ => {
            "convert it in Python, with `model.save_pretrained(directory)` of transformers \
             or `safetensors.torch.save_file`"
        }
    };
    Some(format!("it is {format}; {cure}"))
}

/// What a file of this name holds, if it is a known format other than safetensors.
pub(super) fn by_name(path: &Path) -> Option<&'static str> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    Some(match extension.as_str() {
        "bin" | "pt" | "pth" | "ckpt" | "pkl" => "a PyTorch pickle",
        "gguf" => "a GGUF file",
        "h5" | "hdf5" | "keras" => "an HDF5 file",
        "msgpack" => "a Flax msgpack file",
        "onnx" => "an ONNX file",
        "npz" | "npy" => "a NumPy file",
        _ => return None,
    })
}

fn by_content(start: &[u8]) -> Option<&'static str> {
    const FORMATS: &[(&[u8], &str)] = &[
        (b"PK\x03\x04", "a PyTorch pickle"),
        (b"\x80\x02", "a PyTorch pickle"),
        (b"GGUF", "a GGUF file"),
        (b"\x89HDF", "an HDF5 file"),
        (b"version ", "a Git LFS pointer"),
    ];
    let (_, format) = FORMATS.iter().find(|(magic, _)| start.starts_with(magic))?;
    Some(format)
}
