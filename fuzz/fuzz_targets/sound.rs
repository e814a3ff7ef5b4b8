//! An audio file, resampled, and its spectrogram.

#![no_main]

use std::path::Path;

use candle_blocks::speech::Audio;
use candle_blocks_fuzz::said;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let read = Audio::from_bytes(data.to_vec(), Path::new("sound"), 16000);
    if let Some(sound) = said(read) {
        assert!(!sound.samples.is_empty());
        assert!(sound.samples.iter().all(|sample| sample.is_finite()));
    }
});
