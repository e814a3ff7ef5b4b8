//! Other formats of weights, recognised only in order to say what to do about them.

use std::path::Path;

/// A format and the cure.
#[derive(Clone, Copy)]
pub(super) struct Format(&'static str, &'static str);

const LFS: Format = Format(
    "a Git LFS pointer",
    "it stands for the weights; fetch them with `git lfs pull`",
);
const PICKLE: Format = Format("a PyTorch pickle", BY_TRANSFORMERS);
const HDF5: Format = Format("an HDF5 file", BY_TRANSFORMERS);
const FLAX: Format = Format("a Flax msgpack file", BY_TRANSFORMERS);
const ONNX: Format = Format("an ONNX file", BY_TRANSFORMERS);
const NUMPY: Format = Format("a NumPy file", BY_NUMPY);
/// Both `torch.save` and `numpy.savez` write one.
const ZIP: Format = Format(
    "a zip archive, such as a PyTorch pickle or an .npz of NumPy",
    "load it in Python as what wrote it does, `torch.save` or `numpy.savez`, and save its tensors with \
     `save_file` of safetensors.torch or safetensors.numpy",
);

const BY_TRANSFORMERS: &str = "convert it in Python, with `model.save_pretrained(directory)` of transformers \
                               or `safetensors.torch.save_file`";
const BY_NUMPY: &str =
    "convert it in Python, with `safetensors.numpy.save_file(dict(numpy.load(file)), name)`";

/// What the file is and the cure, if its first bytes or its name tell.
pub(super) fn explain(path: &Path, start: &[u8]) -> Option<String> {
    let zip = start.starts_with(b"PK\x03\x04").then_some(ZIP);
    let Format(name, cure) = by_content(start).or(by_extension(path)).or(zip)?;
    Some(format!("it is {name}; {cure}"))
}

/// The format of a file of this name, if it is a known one other than safetensors.
pub(super) fn by_extension(path: &Path) -> Option<Format> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    Some(match extension.as_str() {
        "bin" | "pt" | "pth" | "ckpt" | "pkl" => PICKLE,
        "h5" | "hdf5" | "keras" => HDF5,
        "msgpack" => FLAX,
        "onnx" => ONNX,
        "npz" | "npy" => NUMPY,
        _ => return None,
    })
}

fn by_content(start: &[u8]) -> Option<Format> {
    const FORMATS: [(&[u8], Format); 4] = [
        (b"\x80\x02", PICKLE),
        (b"\x89HDF", HDF5),
        (b"\x93NUMPY", NUMPY),
        (b"version ", LFS),
    ];
    let (_, format) = FORMATS.iter().find(|(magic, _)| start.starts_with(magic))?;
    Some(*format)
}
