//! GGUF headers that lie: each is an error that says so, and none takes memory that the file does not justify.

use std::fs;

use candle_blocks::{Checkpoint, Precision, Weights, checkpoint::files::TensorFiles};

use crate::weights::{is_present, weights};

/// A header, written value by value.
#[derive(Clone, Default)]
struct Header(Vec<u8>);

impl Header {
    fn new(version: u32, n_tensors: u64, n_keys: u64) -> Self {
        Self(b"GGUF".to_vec())
            .u32(version)
            .u64(n_tensors)
            .u64(n_keys)
    }

    fn u32(mut self, number: u32) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn u64(mut self, number: u64) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn text(mut self, text: &str) -> Self {
        self = self.u64(text.len() as u64);
        self.0.extend(text.bytes());
        self
    }

    fn tensor(mut self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        self = self.text(name).u32(dims.len() as u32);
        for &dim in dims {
            self = self.u64(dim);
        }
        self.u32(kind).u64(offset)
    }

    /// Pads to where tensors begin, and adds `n` bytes of data.
    fn padded(mut self, n: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(32) + n, 0);
        self
    }

    fn refusal(&self) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        fs::write(&path, &self.0).unwrap();
        TensorFiles::open(path).unwrap_err().to_string()
    }
}

const HUGE: u64 = 1 << 60;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

#[test]
fn a_false_header_is_refused_with_what_is_wrong() {
    let one = || Header::new(3, 1, 0);
    let key = |kind: u32| Header::new(3, 0, 1).text("a.key").u32(kind);
    let cases = [
        (Header::new(1, 0, 0), "version 1"),
        (Header::new(4, 0, 0), "version 4"),
        (Header::new(3u32.swap_bytes(), 0, 0), "big-endian"),
        (Header::new(3, HUGE, 0), "cut short"),
        (Header::new(3, 0, HUGE), "cut short"),
        (Header::new(3, 0, 1).u64(HUGE), "string of"),
        (Header::new(3, 0, 1).u64(100), "cut short"),
        (key(TEXT).u64(HUGE), "string of"),
        (key(ARRAY).u32(4).u64(HUGE), "cut short"),
        (key(ARRAY).u32(4).u64(u64::MAX), "cut short"),
        (key(ARRAY).u32(TEXT).u64(HUGE), "cut short"),
        (key(ARRAY).u32(TEXT).u64(1).u64(HUGE), "string of"),
        (key(ARRAY).u32(ARRAY).u64(1), "array of type 9"),
        (key(77), "unknown type 77"),
        (
            Header::new(3, 0, 2)
                .text("k")
                .u32(4)
                .u32(1)
                .text("k")
                .u32(4)
                .u32(1),
            "occurs twice",
        ),
        (
            Header::new(3, 0, 1).text("general.alignment").u32(4).u32(0),
            "power of two",
        ),
        (
            Header::new(3, 0, 1).text("general.alignment").u32(4).u32(3),
            "power of two",
        ),
        (one().tensor("w", &[], 0, 0), "0 dimensions"),
        (one().tensor("w", &[1, 1, 1, 1, 1], 0, 0), "5 dimensions"),
        (one().tensor("w", &[HUGE, HUGE], 0, 0), "overflows"),
        (one().tensor("w", &[0, HUGE, HUGE], 0, 0), "overflows"),
        (one().tensor("w", &[4], 77, 0), "the number 77"),
        (
            one().tensor("w", &[33], 8, 0).padded(68),
            "whole blocks of 32",
        ),
        (one().tensor("w", &[4], 0, 0).padded(15), "ends at"),
        (
            one().tensor("w", &[4], 0, u64::MAX - 8).padded(16),
            "ends at",
        ),
        (
            Header::new(3, 2, 0)
                .tensor("w", &[4], 0, 0)
                .tensor("w", &[4], 0, 32)
                .padded(64),
            "occurs twice",
        ),
        (
            Header::new(3, 2, 0)
                .tensor("v", &[4], 0, 0)
                .tensor("w", &[4], 0, 12)
                .padded(64),
            "overlap",
        ),
    ];
    for (header, words) in cases {
        let said = header.refusal();
        assert!(
            said.contains(words) && said.contains("GGUF"),
            "{words}: {said}"
        );
        assert!(said.contains("model.gguf"), "{said}");
    }
}

#[test]
fn a_type_that_is_not_read_is_named_with_what_helps() {
    for (number, name) in [(4, "Q4_2"), (31, "Q4_0_4_4"), (42, "Q2_0")] {
        let said = Header::new(3, 1, 0).tensor("w", &[4], number, 0).refusal();
        for words in [name, "MXFP4, NVFP4 are", "llama-quantize"] {
            assert!(said.contains(words), "{said}");
        }
        let misleading = ["download", "safetensors", &format!("type {number}")];
        assert!(
            !misleading.iter().any(|words| said.contains(words)),
            "{said}"
        );
    }
}

#[test]
fn a_file_that_is_cut_anywhere_or_changed_is_an_error_or_a_model() {
    if !is_present("gguf") {
        return;
    }
    let bytes = fs::read(weights("gguf/qwen2/model.gguf")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let open = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        Checkpoint::open(&path)
            .and_then(|opened| opened.load(Weights::Packed(Precision::F32)).stack())
    };
    open(&bytes).unwrap();
    for n in (0..bytes.len()).step_by(61) {
        open(&bytes[..n]).unwrap_err();
    }
    // The header takes the first 3,000 bytes or so.
    let mut state = 7u64;
    for _ in 0..2000 {
        let mut changed = bytes.clone();
        for _ in 0..3 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let at = (state >> 33) as usize % 3000;
            changed[at] = (state >> 20) as u8;
        }
        let _ = open(&changed);
    }
}

#[test]
fn keys_of_a_wrong_type_or_an_unknown_architecture_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let said = |header: Header| {
        fs::write(&path, header.0).unwrap();
        Checkpoint::open(&path).unwrap_err().to_string()
    };
    let of = |architecture: &str| {
        Header::new(3, 0, 2)
            .text("general.architecture")
            .u32(TEXT)
            .text(architecture)
    };
    let unknown = said(of("rwkv7").text("x").u32(4).u32(1));
    assert!(
        unknown.contains("rwkv7") && unknown.contains("qwen3"),
        "{unknown}"
    );
    let wrong = said(of("llama").text("llama.block_count").u32(TEXT).text("two"));
    assert!(
        wrong.contains("llama.block_count") && wrong.contains("two"),
        "{wrong}"
    );
    let missing = said(of("llama").text("llama.block_count").u32(4).u32(1));
    assert!(
        missing.contains("llama.attention.head_count") && missing.contains("missing"),
        "{missing}"
    );
    let none = said(Header::new(3, 0, 0));
    assert!(none.contains("general.architecture"), "{none}");
}
