//! Audio from files and its spectrograms: ffmpeg and transformers are the judges.

#[path = "../../../tests/shared/sounds.rs"]
mod sounds;
#[path = "../../../tests/shared/wav.rs"]
mod wav;

use std::fs;
use std::path::{Path, PathBuf};

use candle_blocks_media::sound::{Audio, LogMel, LogMelSettings, MAX_HOURS, Resampler};
use safetensors::SafeTensors;
use serde_json::Value;
use sounds::samples;
use wav::{Encoding, wav};

fn weights(local: &str) -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../weights/speech");
    repository.join(local)
}

fn floats(file: &SafeTensors, name: &str) -> Vec<f32> {
    let bytes = file.tensor(name).unwrap().data().as_chunks::<4>().0;
    bytes
        .iter()
        .map(|&bytes| f32::from_le_bytes(bytes))
        .collect()
}

fn integers(file: &SafeTensors, name: &str) -> Vec<usize> {
    let bytes = file.tensor(name).unwrap().data().as_chunks::<8>().0;
    let numbers = bytes
        .iter()
        .map(|&bytes| i64::from_le_bytes(bytes) as usize);
    numbers.collect()
}

/// Returns the largest difference.
fn worst(found: impl IntoIterator<Item = f32>, expected: &[f32]) -> f32 {
    let found: Vec<f32> = found.into_iter().collect();
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, |most, next| {
        assert!(next.is_finite());
        f32::max(most, next)
    })
}

#[test]
fn samples_of_every_format_are_those_of_ffmpeg() {
    let bytes = fs::read(weights("files/samples.safetensors")).unwrap();
    let judged = SafeTensors::deserialize(&bytes).unwrap();
    let mut n_files = 0;
    for name in judged
        .names()
        .into_iter()
        .filter(|name| !name.ends_with("facts"))
    {
        let facts = integers(&judged, &format!("{name}.facts"));
        let [rate, n, step] = facts[..] else {
            panic!("{name}: {facts:?}");
        };
        let sound = Audio::read(&weights("files").join(name), rate as u32).unwrap();
        // Decoders of lossy formats round differently, but by less than a bit of 16.
        let is_lossy = ["mp3", "ogg", "m4a"].contains(&name.rsplit('.').next().unwrap());
        let tolerance = if is_lossy { 3e-5 } else { 1e-7 };
        let found = &sound.samples;
        eprintln!("{name}: {} samples, ffmpeg has {n}", found.len());
        // An encoder's padding at the end may stay.
        let shorter = found.len().min(n);
        assert!(
            found.len().abs_diff(n) <= if is_lossy { 1152 } else { 0 },
            "{name}"
        );
        let expected = &floats(&judged, name)[..shorter.div_ceil(step)];
        let found = found[..shorter].iter().step_by(step).copied();
        let worst = worst(found, expected);
        assert!(worst <= tolerance, "{name}: {worst}");
        n_files += 1;
    }
    assert_eq!(n_files, 10);
}

#[test]
fn spectrograms_are_those_of_transformers() {
    let bytes = fs::read(weights("spectrograms.safetensors")).unwrap();
    let judged = SafeTensors::deserialize(&bytes).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let mut n_cases = 0;
    for (name, said) in metadata.metadata().as_ref().unwrap() {
        let Ok(Value::Object(said)) = serde_json::from_str(said) else {
            continue;
        };
        let number = |value: &Value| value.as_u64().unwrap() as usize;
        let key = |key: &str, default: usize| said["keys"].get(key).map_or(default, number);
        let settings = LogMelSettings {
            n_mels: key("feature_size", 80),
            rate: key("sampling_rate", 16000) as u32,
            hop: key("hop_length", 160),
            chunk_seconds: key("chunk_length", 30),
            n_fft: key("n_fft", 400),
        };
        let sound = samples(number(&said["seed"]), number(&said["samples"]));
        let found = LogMel::new(settings).unwrap().spectrogram(&sound).unwrap();
        assert_eq!(found.n_frames, number(&said["n_frames"]), "{name}");
        let frames = integers(&judged, &format!("{name}.frames"));
        let values = (0..found.n_mels)
            .flat_map(|band| frames.iter().map(move |t| (band, t)))
            .map(|(band, t)| found.values[band * found.n_frames + t]);
        let worst = worst(values, &floats(&judged, &format!("{name}.values")));
        assert!(worst <= 1e-6, "{name}: {worst}");
        n_cases += 1;
    }
    assert_eq!(n_cases, 11);
}

/// Demands that the bytes are refused with these words, and the file's name.
#[track_caller]
fn assert_refused(bytes: Vec<u8>, words: &[&str]) {
    let error = Audio::from_bytes(bytes, Path::new("odd.bin"), 16000).unwrap_err();
    let message = error.to_string();
    for word in words.iter().chain(&["odd.bin"]) {
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn files_without_audio_are_refused_by_name() {
    assert_refused(Vec::new(), &["empty"]);
    assert_refused(b"a line of text\n".repeat(100), &["not audio", "WAV"]);
    let whole = wav(Encoding::Pcm16, 1, 16000, &samples(1, 3000));
    assert_refused(whole[..44].to_vec(), &[]);
    assert_refused(wav(Encoding::Pcm16, 1, 16000, &[]), &["no samples"]);
    assert_refused(whole[..3000].to_vec(), &["truncated", "0.188", "0.092"]);
    assert_refused(wav(Encoding::Pcm16, 0, 16000, &[0.5; 100]), &[]);
    for (value, word) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        let mut samples = samples(1, 3000);
        samples[1800] = value;
        let file = wav(Encoding::Float, 2, 16000, &samples);
        assert_refused(file, &["sample 900", "0.056 seconds", word]);
    }
    for rate in [1, 999, u32::MAX / 8] {
        assert_refused(wav(Encoding::Pcm16, 1, rate, &[0.5; 100]), &[]);
    }
    for name in ["stereo.flac", "mono.mp3", "mono.m4a"] {
        let whole = fs::read(weights("files").join(name)).unwrap();
        assert_refused(whole[..whole.len() * 2 / 3].to_vec(), &[]);
    }
    let error = Audio::read(Path::new("missing.wav"), 16000).unwrap_err();
    assert!(error.to_string().contains("missing.wav"), "{error}");
    let error = Audio::read(&weights("files"), 16000).unwrap_err();
    assert!(error.to_string().contains("regular file"), "{error}");
}

#[test]
fn audio_beyond_the_limit_is_refused_before_it_is_read() {
    let hours = MAX_HOURS as u32 * 3600 + 1;
    let mut file = wav(Encoding::Pcm16, 1, 16000, &[0.25; 100]);
    let length = (hours * 16000 * 2).to_le_bytes();
    let whole = (hours * 16000 * 2 + 36).to_le_bytes();
    file[4..8].copy_from_slice(&whole);
    file[40..44].copy_from_slice(&length);
    assert_refused(file, &["longer than", "cut it"]);
}

#[test]
fn a_wav_file_that_was_written_to_a_pipe_is_read_to_its_end() {
    let expected = samples(1, 5000);
    let mut file = wav(Encoding::Pcm16, 1, 16000, &expected);
    for at in [4, 40] {
        file[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    }
    let sound = Audio::from_bytes(file, Path::new("pipe"), 16000).unwrap();
    assert_eq!(sound.samples, expected);
}

#[test]
fn any_number_of_channels_is_mixed_and_any_rate_resampled() {
    for (channels, rate) in [(1, 8000), (2, 44100), (6, 48000), (8, 96000), (3, 22050)] {
        let frames = samples(2, rate as usize / 2);
        let frame = |&x: &f32| vec![x; usize::from(channels)];
        let interleaved: Vec<f32> = frames.iter().flat_map(frame).collect();
        let file = wav(Encoding::Float, channels, rate, &interleaved);
        let sound = Audio::from_bytes(file, Path::new("many"), 16000).unwrap();
        assert_eq!(sound.samples.len(), 8000, "{channels} at {rate}");
        assert!((sound.seconds() - 0.5).abs() < 1e-9);
        let loudest = sound.samples.iter().fold(0f32, |most, x| most.max(x.abs()));
        assert!(
            (0.1..2.5).contains(&loudest),
            "{channels} at {rate}: {loudest}"
        );
    }
}

#[test]
fn damaged_files_are_read_or_refused() {
    let mut state = 7u64;
    let mut random = move |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let (mut n_read, mut n_refused) = (0, 0);
    let mut files: Vec<_> = fs::read_dir(weights("files"))
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    files.sort();
    for path in files
        .iter()
        .filter(|path| path.extension().is_some_and(|end| end != "safetensors"))
    {
        let whole = fs::read(path).unwrap();
        for _ in 0..150 {
            let mut damaged = whole.clone();
            for _ in 0..1 + random(6) {
                // Most fields that a reader trusts are at the beginning.
                let below = [damaged.len(), 64, 600][random(3)].min(damaged.len());
                let at = random(below);
                damaged[at] = [0, 1, 0x7f, 0x80, 0xff, random(256) as u8][random(6)];
            }
            if random(4) == 0 {
                damaged.truncate(random(damaged.len()));
            }
            match Audio::from_bytes(damaged, Path::new("damaged"), 16000) {
                Ok(_) => n_read += 1,
                Err(error) => {
                    assert!(error.to_string().starts_with("damaged: "), "{error}");
                    n_refused += 1;
                }
            }
        }
    }
    assert!(
        n_read > 100 && n_refused > 100,
        "{n_read} read, {n_refused} refused"
    );
}

fn tone(frequency: f64, rate: u32, n: usize) -> Vec<f32> {
    let angle = |i: usize| i as f64 * frequency * std::f64::consts::TAU / f64::from(rate);
    (0..n).map(|i| (0.5 * angle(i).sin()) as f32).collect()
}

/// Returns a resampled tone, one second long, pushed in uneven pieces.
fn resampled(frequency: f64, from: u32, to: u32) -> Vec<f32> {
    let mut resampler = Resampler::new(from, to).unwrap();
    for piece in tone(frequency, from, from as usize).chunks(1153) {
        resampler.push(piece).unwrap();
    }
    resampler.finish().unwrap()
}

#[test]
fn tones_below_the_band_limit_keep_their_samples() {
    for from in [8000, 11025, 22050, 32000, 44100, 48000, 96000, 44101] {
        let to = 16000;
        let limit = 0.9 * f64::from(from.min(to)) / 2.0;
        for frequency in [50.0, 440.0, 1234.5, limit] {
            let (made, expected) = (
                resampled(frequency, from, to),
                tone(frequency, to, to as usize),
            );
            assert_eq!(made.len(), expected.len(), "{from}");
            // The filter reads silence before the beginning and after the end.
            let inner = 3000..13000;
            let pairs = made[inner.clone()].iter().zip(&expected[inner]);
            let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-3, "{frequency} Hz from {from}: {worst}");
        }
    }
}

#[test]
fn tones_above_the_band_limit_are_attenuated_by_60_db() {
    for (frequency, from) in [(8200.0, 22050), (10000.0, 44100), (20000.0, 48000)] {
        let made = resampled(frequency, from, 16000);
        let loudest = made[3000..13000].iter().fold(0f32, |m, x| m.max(x.abs()));
        assert!(loudest < 0.5e-3, "{frequency} Hz from {from}: {loudest}");
    }
}

#[test]
fn audio_has_the_length_that_the_ratio_gives() {
    for n in [0, 1, 2, 440, 441, 442, 4095, 4096, 4097, 100_003] {
        let mut resampler = Resampler::new(44100, 16000).unwrap();
        resampler.push(&vec![0.25; n]).unwrap();
        let expected = (n * 16000).div_ceil(44100);
        assert_eq!(resampler.finish().unwrap().len(), expected, "{n}");
    }
}
