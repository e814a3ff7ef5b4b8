//! Files in all formats give the pixels that transformers' `load_image` reads.

use std::fs;

use candle_blocks::candle_core::{Device, Tensor, safetensors};
use candle_blocks::pictures::Image;

use crate::message::message;
use crate::pictures;
use crate::said::assert_says;
use crate::weights::is_present;

#[test]
fn files_have_the_pixels_of_pil_in_every_bit() {
    if !is_present("pictures") {
        return;
    }
    let bytes = fs::read(pictures("files.safetensors")).unwrap();
    let expected = safetensors::load_buffer(&bytes, &Device::Cpu).unwrap();
    assert!(expected.len() >= 35);
    let mut wrong = Vec::new();
    for (name, expected) in &expected {
        let image = Image::open(pictures("files").join(name)).unwrap();
        let shape = (image.height(), image.width(), 3);
        let ours = Tensor::from_slice(image.bytes(), shape, &Device::Cpu).unwrap();
        assert_eq!(ours.dims(), expected.dims(), "{name}");
        let theirs: Vec<u8> = expected.flatten_all().unwrap().to_vec1().unwrap();
        let differences = image
            .bytes()
            .iter()
            .zip(&theirs)
            .map(|(a, b)| a.abs_diff(*b));
        let largest = differences.max().unwrap();
        if largest > 0 {
            wrong.push(format!("{name}: a byte differs by {largest}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_that_pil_refuses_are_refused_by_name() {
    if !is_present("pictures") {
        return;
    }
    for (name, said) in [
        ("cut.jpg", "cut off"),
        ("without-end.jpg", "cut off"),
        ("cut.png", "damaged Png"),
        ("empty.png", "is empty"),
        ("text.jpg", "is no image"),
    ] {
        let refused = message(Image::open(pictures("files").join(name)));
        assert_says(refused, &[name, said]);
    }
    let missing = message(Image::open(pictures("files").join("missing.png")));
    assert_says(missing, &["missing.png"]);
}

#[test]
fn an_image_with_too_many_pixels_is_refused_before_it_takes_memory() {
    // The header of a PNG file with 30,000 x 30,000 pixels, and no data.
    let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x75\x30\0\0\x75\x30\x08\x02\0\0\0".to_vec();
    let crc = crate::pattern::crc(png[12..].iter().copied());
    png.extend(crc.to_be_bytes());
    png.extend(b"\0\0\0\0IDAT");
    png.extend(crate::pattern::crc(*b"IDAT").to_be_bytes());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.png");
    fs::write(&path, png).unwrap();
    let refused = message(Image::open(&path));
    assert_says(refused, &["large.png", "30000 x 30000", "178956970"]);
}

#[test]
fn a_file_too_small_for_its_pixels_is_refused_before_it_takes_memory() {
    // The header of a GIF file, as the fuzzer found it.
    let gif = *b"GIF87a\x1a\xff\x74\x0a\x00\xe9\xff\xff\xe9\xffDT";
    let refused = message(Image::decode("small.gif", &gif));
    assert_says(
        refused,
        &["small.gif", "65306 x 2676", "18 bytes cannot hold"],
    );
}
