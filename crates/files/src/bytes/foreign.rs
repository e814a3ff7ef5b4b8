//! Other weight formats, which are recognized by their first bytes to say how to convert them.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// A format, and how to convert it.
#[derive(Clone, Copy, PartialEq)]
struct ForeignFormat(&'static str, &'static str);

/// The number of bytes that determine a file's format.
pub(super) const START_BYTES: usize = 512;

/// The beginning of a Git LFS pointer, which stands for another file.
#[doc(hidden)]
pub const GIT_LFS: &[u8] = b"version https://git-lfs";

/// A pickle followed by raw bytes, PyTorch's format until version 1.5.
const LEGACY: ForeignFormat = ForeignFormat(
    "a PyTorch file in the format before PyTorch 1.6",
    "save it again in Python, with `torch.save(torch.load(file, weights_only=True), file)`",
);
const PICKLE: ForeignFormat = ForeignFormat(
    "a Python pickle, which can run code",
    "load it in Python with the library that wrote it, and save its tensors with `safetensors.torch.save_file`",
);
const HDF5: ForeignFormat = ForeignFormat(
    "an HDF5 file",
    "use a revision of the model with safetensors; TensorFlow weights in a file tf_model.h5 are converted by transformers 4 \
     (transformers 5 cannot read them), in an environment of its own: `pip install transformers==4.46.3 torch tf-keras`, then \
     `python -c 'import sys, transformers as t; old, new = sys.argv[1:]; name = t.AutoConfig.from_pretrained(old).architectures[0]; \
     getattr(t, name).from_pretrained(old, from_tf=True).save_pretrained(new)' FOLDER NEW`",
);
const FLAX: ForeignFormat = ForeignFormat(
    "a Flax msgpack file",
    "use a revision of the model with safetensors; weights in a file flax_model.msgpack are converted by transformers 4 \
     (transformers 5 cannot read them), in an environment of its own: `pip install transformers==4.46.3 torch flax==0.10.2 \
     jax==0.4.35`, then `python -c 'import sys, transformers as t; old, new = sys.argv[1:]; name = \
     t.AutoConfig.from_pretrained(old).architectures[0]; getattr(t, name).from_pretrained(old, from_flax=True).save_pretrained(new)' \
     FOLDER NEW`",
);
const OPENVINO: ForeignFormat = ForeignFormat("an OpenVINO model", ORIGINAL);
const ONNX: ForeignFormat = ForeignFormat("an ONNX file", ORIGINAL);
const CTRANSLATE2: ForeignFormat = ForeignFormat("a CTranslate2 model", ORIGINAL);
const GGML: ForeignFormat = ForeignFormat(
    "a GGML file in a format older than GGUF",
    "use a GGUF file or the checkpoint that it was converted from",
);
const TENSORFLOW: ForeignFormat = ForeignFormat("a TensorFlow or TensorFlow Lite model", ORIGINAL);
const LFS: ForeignFormat = ForeignFormat(
    "a Git LFS pointer",
    "it stands for the weights; fetch them with `git lfs pull`",
);
const PAGE: ForeignFormat = ForeignFormat(
    "an HTML or XML page",
    "a server sent it instead of the weights, perhaps because a login is missing; download them again",
);
const ARCHIVE: ForeignFormat = ForeignFormat("an archive", "unpack it, and open the weights in it");
const UNKNOWN: ForeignFormat = ForeignFormat(
    "neither a safetensors file nor a PyTorch or NumPy file, despite its name",
    ORIGINAL,
);

const ORIGINAL: &str = "use the checkpoint that it was converted from, in safetensors";

/// Formats by their first bytes.
const MAGICS: [(&[u8], ForeignFormat); 23] = [
    (b"\x80\x02\x8a\nl\xfc\x9cF", LEGACY),
    (b"\x80\x02", PICKLE),
    (b"\x80\x03", PICKLE),
    (b"\x80\x04", PICKLE),
    (b"\x80\x05", PICKLE),
    (b"\x89HDF", HDF5),
    (GIT_LFS, LFS),
    (b"version ", LFS),
    (b"lmgg", GGML),
    (b"fmgg", GGML),
    (b"tjgg", GGML),
    (b"algg", GGML),
    (b"<!", PAGE),
    (b"<html", PAGE),
    (b"<HTML", PAGE),
    (b"<?xml", PAGE),
    (b"<head", PAGE),
    (b"\x1f\x8b", ARCHIVE),
    (b"7z\xbc\xaf", ARCHIVE),
    (b"BZh", ARCHIVE),
    (b"\xfd7zXZ", ARCHIVE),
    (b"\x28\xb5\x2f\xfd", ARCHIVE),
    (b"Rar!", ARCHIVE),
];

/// Returns the file's format and how to convert it, if its first bytes or its name determine the format.
pub(super) fn explain(path: &Path, start: &[u8]) -> Option<String> {
    let graph = is_openvino(path).then_some(OPENVINO);
    let ForeignFormat(name, cure) = graph.or(by_content(start)).or(by_extension(path))?;
    Some(format!("it is {name}; {cure}"))
}

/// Like [`explain`], for a file that was not opened yet.
pub(crate) fn explain_file(path: &Path) -> Option<String> {
    let mut start = Vec::new();
    // Pipes and devices have no end, so they are not opened.
    if path.is_file()
        && let Ok(file) = File::open(path)
    {
        file.take(START_BYTES as u64).read_to_end(&mut start).ok();
    }
    explain(path, &start)
}

/// Returns whether a file's name is usual for weights that another program reads.
pub(crate) fn is_named_so(path: &Path) -> bool {
    by_extension(path).is_some_and(|format| format != UNKNOWN)
}

/// Returns the format for a file name's extension, if it is a known one other than safetensors.
fn by_extension(path: &Path) -> Option<ForeignFormat> {
    if is_openvino(path) {
        return Some(OPENVINO);
    }
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    Some(match extension.as_str() {
        "bin" | "pt" | "pth" | "ckpt" | "pkl" | "npz" | "npy" => UNKNOWN,
        "h5" | "hdf5" | "keras" => HDF5,
        "msgpack" => FLAX,
        "onnx" => ONNX,
        "tflite" | "pb" => TENSORFLOW,
        _ => return None,
    })
}

/// Returns whether a file is one of the two of an OpenVINO model, the graph or its weights, which have one stem.
pub(crate) fn is_openvino(path: &Path) -> bool {
    let is = |end: &str| path.extension().is_some_and(|found| found == end);
    let is_graph = |path: &Path| {
        let mut start = Vec::new();
        let file = File::open(path).map(|file| file.take(START_BYTES as u64));
        let read = file.and_then(|mut file| file.read_to_end(&mut start));
        read.is_ok() && start.windows(4).any(|found| found == b"<net")
    };
    let graph = path.with_extension("xml");
    (is("xml") || is("bin")) && graph.is_file() && is_graph(&graph)
}

fn by_content(start: &[u8]) -> Option<ForeignFormat> {
    let found = MAGICS.iter().find(|(magic, _)| start.starts_with(magic));
    if let Some((_, format)) = found {
        return Some(*format);
    }
    let at = |from: usize, text: &[u8]| start.get(from..from + text.len()) == Some(text);
    if at(4, b"TFL3") {
        return Some(TENSORFLOW);
    }
    if at(257, b"ustar") {
        return Some(ARCHIVE);
    }
    // ONNX: its format version, then its producer's name.
    if let [8, 3..=15, 0x12, ..] = start {
        return Some(ONNX);
    }
    is_ctranslate2(start)
        .then_some(CTRANSLATE2)
        .or(is_flax(start).then_some(FLAX))
}

/// Recognizes CTranslate2: a version, then the model specification's name with its length and a final 0.
fn is_ctranslate2(start: &[u8]) -> bool {
    let [version, 0, 0, 0, length, 0, rest @ ..] = start else {
        return false;
    };
    let name = rest.get(..usize::from(*length));
    let name = name.and_then(|name| name.strip_suffix(&[0]));
    *version < 32
        && name.is_some_and(|name| {
            name.ends_with(b"Spec") && name.iter().all(u8::is_ascii_alphanumeric)
        })
}

/// Recognizes Flax: a map whose first key is a short string of letters.
fn is_flax(start: &[u8]) -> bool {
    let [0x81..=0x8f, length @ 0xa1..=0xbf, rest @ ..] = start else {
        return false;
    };
    let key = rest.get(..usize::from(length & 31));
    key.is_some_and(|key| {
        key.iter()
            .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First bytes taken from published files or the formats' documentation.
    #[test]
    fn a_format_is_told_by_its_bytes_whatever_the_name() {
        let whisper = b"\x06\0\0\0\x0c\0WhisperSpec\0\x03\0\0\0\x94\0\0\0";
        for (bytes, expected) in [
            (&whisper[..], "CTranslate2"),
            (b"\x06\0\0\0\x10\0TransformerSpec\0\x07", "CTranslate2"),
            (b"\x80\x02\x8a\nl\xfc\x9cF", "before PyTorch 1.6"),
            (b"\x80\x04\x95", "Python pickle"),
            (b"lmgg\0\x7d\0\0", "GGML"),
            (b"tjgg\x03\0\0\0", "GGML"),
            (b"\x08\x07\x12\x07pytorch", "ONNX"),
            (b"\x1c\0\0\0TFL3", "TensorFlow"),
            (b"\x82\xa5model\x82", "Flax"),
            (b"<!DOCTYPE html>", "HTML"),
            (b"version https://git-lfs.github.com/spec/v1\n", "LFS"),
            (b"\x1f\x8b\x08\0", "archive"),
            (b"\x01\x02\x03\x04\x05\x06\x07\x08", "neither"),
        ] {
            for name in ["model.bin", "pytorch_model.bin", "weights.pt"] {
                let said = explain(Path::new(name), bytes).unwrap_or_default();
                assert!(said.contains(expected), "{name} {bytes:?}: {said}");
            }
        }
        assert_eq!(explain(Path::new("m.safetensors"), b"\x01\x02\x03"), None);
    }
}
