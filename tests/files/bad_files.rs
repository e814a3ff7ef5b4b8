//! Whatever a file's bytes are, opening it gives tensors or an error that names the file and the fault.

#![allow(
    clippy::single_range_in_vec_init,
    reason = "one range of rows is meant"
)]

use std::fs;
use std::path::Path;

use candle_blocks::Error;
use candle_blocks::checkpoint::files::TensorFiles;

use crate::{
    hostile::{Folder, framed, header, valid},
    said::assert_says,
};

#[test]
fn a_file_shorter_than_the_header_length_is_refused() {
    for n in [0, 1, 7] {
        refused(&vec![0; n], &[&format!("it has {n} bytes"), "takes 8"]);
    }
}

#[test]
fn a_header_longer_than_the_file_is_refused() {
    let mut bytes = 1000u64.to_le_bytes().to_vec();
    bytes.extend(b"{}");
    refused(&bytes, &["1000 bytes", "only 2 follow"]);
}

#[test]
fn a_header_of_all_addressable_bytes_is_refused_without_allocating_it() {
    for length in [u64::MAX, i64::MAX as u64, 1 << 40] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend([b' '; 64]);
        refused(&bytes, &[&length.to_string(), "only 64 follow"]);
    }
}

#[test]
fn a_header_beyond_the_limit_of_the_format_is_refused_even_if_it_is_there() {
    let folder = Folder::new();
    let path = folder.write("big.safetensors", &200_000_000u64.to_le_bytes());
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(300_000_000).unwrap(); // sparse
    assert_not_safetensors(&path, &["200000000", "100000000"]);
}

#[test]
fn a_header_that_is_not_utf8_is_refused() {
    refused(&framed(b"{\"\xff\": 1}", b""), &["UTF-8"]);
}

#[test]
fn a_header_that_is_not_json_is_refused() {
    for header in ["", "{", "[]", "null", "{\"a\":", "{} {}"] {
        refused(&framed(header.as_bytes(), b""), &["header is malformed"]);
    }
    let nested = "[".repeat(100_000);
    refused(
        &framed(format!("{{\"a\":{nested}").as_bytes(), b""),
        &["header is malformed"],
    );
}

#[test]
fn an_entry_that_is_no_tensor_is_refused_by_name() {
    for entry in [
        r#"{"dtype":"F32","shape":[1]}"#,
        r#"{"dtype":"F31","shape":[1],"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":[1],"data_offsets":[0,99999999999999999999]}"#,
        r#"{"dtype":"F32","shape":[1],"data_offsets":[0]}"#,
        "7",
    ] {
        let header = format!(r#"{{"fc.weight":{entry}}}"#);
        refused(
            &framed(header.as_bytes(), &[0; 4]),
            &["fc.weight", "malformed"],
        );
    }
}

#[test]
fn a_name_that_occurs_twice_is_refused() {
    let entry = r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
    let header = format!(r#"{{"a":{entry},"a":{entry}}}"#);
    refused(&framed(header.as_bytes(), &[0; 4]), &["\"a\" occurs twice"]);
}

#[test]
fn offsets_that_overlap_leave_a_gap_run_backwards_or_leave_the_file_are_refused() {
    let two = |a: [usize; 2], b: [usize; 2], data: usize| {
        let header = header(&[("a", "F32", &[1], a), ("b", "F32", &[1], b)]);
        framed(header.as_bytes(), &vec![0; data])
    };
    refused(
        &two([0, 4], [2, 6], 6),
        &["\"a\" and \"b\" overlap at byte 2"],
    );
    refused(&two([0, 4], [0, 4], 4), &["overlap at byte 0"]);
    refused(
        &two([0, 4], [8, 12], 12),
        &["bytes 4 to 8", "before tensor \"b\""],
    );
    refused(
        &two([2, 6], [6, 10], 10),
        &["bytes 0 to 2", "before tensor \"a\""],
    );
    refused(
        &two([0, 4], [8, 4], 8),
        &["tensor \"b\" ends at byte 4, before its start at 8"],
    );
    refused(
        &two([0, 4], [4, 8], 6),
        &["cut short", "take 8 bytes", "only 6"],
    );
    let top = usize::MAX;
    refused(&two([0, 4], [top - 4, top], 8), &["belong to no tensor"]);
}

#[test]
fn offsets_that_do_not_match_type_and_shape_are_refused() {
    let header = header(&[("a", "F16", &[2, 3], [0, 24])]);
    refused(
        &framed(header.as_bytes(), &[0; 24]),
        &["tensor \"a\" has 24 bytes", "F16 of shape [2, 3] takes 12"],
    );
}

#[test]
fn shapes_whose_size_overflows_are_refused() {
    let huge = usize::MAX / 2;
    for shape in [
        &[huge, 3][..],
        &[huge, 1],
        &[huge, huge, 0],
        &[0, huge, huge],
    ] {
        let header = header(&[("a", "F32", shape, [0, 0])]);
        refused(
            &framed(header.as_bytes(), b""),
            &["tensor \"a\"", "overflows"],
        );
    }
}

#[test]
fn packed_types_must_fill_whole_bytes() {
    let header = header(&[("a", "F4", &[3], [0, 1])]);
    refused(&framed(header.as_bytes(), &[0]), &["\"a\"", "whole bytes"]);
}

#[test]
fn trailing_bytes_are_refused() {
    let mut bytes = valid();
    bytes.extend([0; 3]);
    refused(&bytes, &["3 bytes at its end"]);
}

#[test]
fn every_truncation_is_refused() {
    let bytes = valid();
    let folder = Folder::new();
    for n in 0..bytes.len() {
        let path = folder.write("cut.safetensors", &bytes[..n]);
        assert_not_safetensors(&path, &[]);
    }
}

#[test]
fn other_formats_are_named_with_the_cure() {
    let folder = Folder::new();
    for (name, start, expected) in [
        (
            "model.pth",
            &b"\x80\x02\x8a\x0al\xfc\x9cF"[..],
            "torch.save(torch.load(",
        ),
        ("args.bin", b"\x80\x04\x95", "Python pickle"),
        ("tf_model.h5", b"\x89HDF\r\n\x1a\n\0", "HDF5"),
        ("empty.bin", b"", "neither a safetensors file"),
        (
            "model.safetensors",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            "git lfs pull",
        ),
    ] {
        assert_not_safetensors(&folder.write(name, start), &[expected]);
    }
}

#[test]
fn a_safetensors_file_of_any_name_is_read() {
    let folder = Folder::new();
    let files = TensorFiles::open(folder.write("weights.bin", &valid())).unwrap();
    assert!(files.contains("down.weight"));
}

#[test]
fn a_type_that_candle_has_not_is_an_error_when_that_tensor_is_read() {
    let header = header(&[("a", "F8_E4M3", &[4], [0, 4]), ("b", "F32", &[1], [4, 8])]);
    let folder = Folder::new();
    let path = folder.write("fp8.safetensors", &framed(header.as_bytes(), &[0; 8]));
    let files = TensorFiles::open(&path).unwrap();
    let error = files.read("a").unwrap_err();
    assert!(matches!(error, Error::UnsupportedDType { .. }), "{error:?}");
    assert_says(&error, &["fp8.safetensors", "tensor a", "F8_E4M3"]);
    assert_eq!(files.read("b").unwrap().dims(), [1]);
}

#[test]
fn a_name_that_is_not_there_is_answered_with_the_nearest() {
    let folder = Folder::new();
    let path = folder.write("m.safetensors", &valid());
    let error = TensorFiles::open(&path)
        .unwrap()
        .read("down.wieght")
        .unwrap_err();
    assert!(matches!(error, Error::MissingTensor { .. }), "{error:?}");
    assert_says(
        &error,
        &["m.safetensors", "down.wieght", "similar down.weight"],
    );
}

#[test]
fn rows_outside_a_tensor_are_an_error() {
    let folder = Folder::new();
    let files = TensorFiles::open(folder.write("m.safetensors", &valid())).unwrap();
    #[allow(clippy::reversed_empty_ranges, reason = "a caller may compute one")]
    for rows in [0..3, 3..3, 2..1, 0..usize::MAX] {
        let error = files.read_rows("down.weight", &[0..1, rows]).unwrap_err();
        assert_says(&error, &["down.weight", "no rows", "[2, 3]"]);
    }
    let error = files.read_rows("scale", &[0..1]).unwrap_err();
    assert_says(&error, &["scale", "shape []"]);
}

#[test]
fn a_file_cut_short_after_it_was_opened_is_an_error() {
    let folder = Folder::new();
    let path = folder.write("m.safetensors", &valid());
    let files = TensorFiles::open(&path).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(valid().len() as u64 - 1).unwrap();
    let last = files
        .names()
        .filter(|name| {
            files
                .read(name)
                .is_err_and(|error| error.to_string().contains("cut short"))
        })
        .count();
    assert_eq!(last, 1, "the byte that is gone belongs to one tensor");
}

#[test]
#[cfg(unix)]
fn a_device_is_not_read() {
    let error = TensorFiles::open("/dev/zero").unwrap_err();
    assert_says(&error, &["/dev/zero", "not a regular file"]);
}

/// Checks that these bytes are refused as a safetensors file, for these reasons.
fn refused(bytes: &[u8], reasons: &[&str]) {
    let folder = Folder::new();
    assert_not_safetensors(&folder.write("bad.safetensors", bytes), reasons);
}

fn assert_not_safetensors(path: &Path, reasons: &[&str]) {
    let error = TensorFiles::open(path).unwrap_err();
    assert!(matches!(error, Error::NotSafetensors { .. }), "{error:?}");
    assert_says(&error, reasons);
    assert_says(&error, &[path.to_str().unwrap()]);
}
