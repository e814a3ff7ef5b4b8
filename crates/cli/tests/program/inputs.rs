//! Inputs of another kind than a model reads: the program names what it found, and what the model reads.

use std::fs;
use std::path::Path;

use candle_blocks::candle_core::{DType, Device, Tensor, safetensors::load};
use candle_blocks::checkpoint::write::write_safetensors;

use crate::numbers::bits;
use crate::said::assert_says;
use crate::scratch::{Answer, Scratch, answer, program};
use crate::weights::{is_present, weights};

fn ones(dims: &[usize]) -> Tensor {
    Tensor::ones(dims, DType::F32, &Device::Cpu).unwrap()
}

/// Runs a committed checkpoint on some tensors.
fn run(model: &Path, output: &Path, flags: &[&str], tensors: &[(&str, Tensor)]) -> Answer {
    let input = output.with_file_name("input.safetensors");
    let tensors = tensors
        .iter()
        .map(|(name, tensor)| (name.to_string(), tensor.clone()));
    write_safetensors(&input, &tensors.collect::<Vec<_>>(), None).unwrap();
    let mut command = program();
    command.arg("run").arg("--model").arg(model).args(flags);
    answer(
        command
            .arg("--input")
            .arg(input)
            .arg("--output")
            .arg(output),
    )
}

#[test]
fn a_waveform_is_refused_with_what_the_blocks_of_wav2vec_read() {
    if !is_present("families") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output.safetensors");
    let waveform = [("input_values", ones(&[1, 400]))];
    for family in ["wav2vec2", "wav2vec2-stable"] {
        let model = weights("families").join(family);
        let said = run(&model, &output, &[], &waveform);
        said.assert_refused(&[
            "input_values",
            "only the blocks",
            "output_hidden_states=True",
        ]);
        assert!(!said.stderr.contains("rename"), "{said:?}");
    }
    // What the message asks for runs: the fixture's input is that of transformers' first block.
    let scratch = Scratch::of("families/wav2vec2");
    scratch.run(&[]).assert_status(0);
    // A text model has another input.
    let said = run(&weights("tiny-bert"), &output, &[], &waveform);
    said.assert_refused(&["input_values", "bert reads input_ids"]);
    let said = run(&weights("families/vit"), &output, &[], &waveform);
    said.assert_refused(&["input_values", "reads pixel_values"]);
}

#[test]
fn a_vision_tower_leaves_the_mask_of_the_text_in_a_file_for_both() {
    if !is_present("families") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output.safetensors");
    let model = weights("families/clip");
    let tensors = load(model.join("whole.safetensors"), &Device::Cpu).unwrap();
    let pixels = tensors["pixel_values"].clone();
    let ids = Tensor::new(&[[1u32, 2, 3, 4], [1, 2, 3, 4]], &Device::Cpu).unwrap();
    let mask = Tensor::new(&[[1u32, 1, 0, 0], [1, 1, 1, 0]], &Device::Cpu).unwrap();
    let ids = ids.narrow(0, 0, pixels.dims()[0].min(2)).unwrap();
    let mask = mask.narrow(0, 0, pixels.dims()[0].min(2)).unwrap();
    let flags = ["--part", "vision"];
    run(&model, &output, &flags, &[("pixel_values", pixels.clone())]).assert_status(0);
    let alone = load(&output, &Device::Cpu).unwrap();
    let both = [
        ("pixel_values", pixels),
        ("input_ids", ids),
        ("attention_mask", mask),
    ];
    let said = run(&model, &output, &flags, &both);
    said.assert_status(0);
    assert_says(&said.stderr, &["does not read input_ids, attention_mask"]);
    let found = load(&output, &Device::Cpu).unwrap();
    for name in ["last_hidden_state", "pooler_output"] {
        assert_eq!(bits(&found[name]), bits(&alone[name]), "{name}");
    }
}

/// The first bytes of such files, from the formats' specifications.
#[test]
fn an_image_or_audio_in_place_of_texts_is_named() {
    if !is_present("text") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("texts");
    let embed = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let mut command = program();
        command
            .arg("embed")
            .arg("--model")
            .arg(weights("text/joined"));
        let output = folder.path().join("vectors.jsonl");
        answer(
            command
                .arg(&path)
                .arg("--replace")
                .arg("--output")
                .arg(output),
        )
    };
    for (bytes, kind) in [
        (&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..], "a PNG image"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "a JPEG image"),
        (b"RIFF\x24\x80\0\0WAVEfmt ", "WAV audio"),
        (b"RIFF\x24\x80\0\0WEBPVP8 ", "a WebP image"),
        (b"fLaC\0\0\0\"\x10\0\xff", "FLAC audio"),
        (b"ID3\x04\0\0\0\0\0\x7f\xff\xfb\x90", "MP3 audio"),
    ] {
        let said = embed(bytes);
        said.assert_refused(&[kind, "one text per line", "pixel_values or input_features"]);
        assert!(!said.stderr.contains("iconv"), "{said:?}");
    }
    embed(b"ID3 and RIFF\nare words").assert_status(0);
    embed(b"caf\xe9").assert_refused(&["line 1 is not UTF-8", "iconv -f ISO-8859-1"]);
}
