//! Decodes an audio file with symphonia, mixes its channels and resamples it.

use std::io::{Seek, SeekFrom};
use std::path::Path;

use candle_blocks_base::{Error, Result};
use symphonia::core::audio::{Channels, SampleBuffer};
use symphonia::core::codecs::{CODEC_TYPE_NULL, CodecParameters, DecoderOptions};
use symphonia::core::errors::Error as SymphoniaError;
use symphonia::core::formats::{FormatOptions, FormatReader};
use symphonia::core::io::{MediaSource, MediaSourceStream};
use symphonia::core::meta::MetadataOptions;
use symphonia::core::probe::Hint;

use super::edit_list::{description, seconds_before};
use super::resampler::Resampler;
use super::{Audio, MAX_HOURS, fault, zero_rate};

/// The sampling rates that are read.
const RATES: std::ops::RangeInclusive<u32> = 1_000..=768_000;

/// The maximum difference between a header's length and a lossy format's samples, in seconds: encoders count their delay
/// differently.
const LOSSY_TOLERANCE: f64 = 0.1;

/// Reads a clip at `rate`; `path` is its name in errors.
pub(super) fn decode(mut source: Box<dyn MediaSource>, path: &Path, rate: u32) -> Result<Audio> {
    let moov = description(&mut *source);
    if zero_rate::is_declared(&mut *source, &moov) {
        let reason = "its header declares a rate of 0; encode it again";
        return Err(fault(path, reason));
    }
    let before = seconds_before(&moov);
    source
        .seek(SeekFrom::Start(0))
        .map_err(|cause| Error::io(path, "read", cause))?;
    let mut format = open(source, path)?;
    let is_sound = |parameters: &CodecParameters| {
        parameters.codec != CODEC_TYPE_NULL && parameters.sample_rate.is_some()
    };
    let mut tracks = format.tracks().iter();
    let Some(track) = tracks.find(|track| is_sound(&track.codec_params)) else {
        return Err(fault(
            path,
            "it contains no audio track in a known format; convert it to WAV",
        ));
    };
    let (id, parameters) = (track.id, track.codec_params.clone());
    let declared = declared_seconds(&parameters);
    if declared.is_some_and(|seconds| seconds > (MAX_HOURS * 3600) as f64) {
        return Err(too_long(path));
    }
    let unreadable = |error: SymphoniaError| {
        let reason = format!("audio that cannot be decoded: {error}; convert it to WAV");
        fault(path, reason)
    };
    let options = DecoderOptions::default();
    let mut decoder = symphonia::default::get_codecs()
        .make(&parameters, &options)
        .map_err(unreadable)?;
    let mut mono = Mono::new(rate, before);
    loop {
        let packet = match format.next_packet() {
            Ok(packet) => packet,
            // symphonia's error at a file's end.
            Err(SymphoniaError::IoError(error))
                if error.kind() == std::io::ErrorKind::UnexpectedEof =>
            {
                break;
            }
            Err(error) => return Err(mono.damaged(path, &error)),
        };
        if packet.track_id() != id {
            continue;
        }
        let decoded = match decoder.decode(&packet) {
            Ok(decoded) => decoded,
            Err(error) => return Err(mono.damaged(path, &error)),
        };
        let spec = *decoded.spec();
        let mut samples = SampleBuffer::<f32>::new(decoded.capacity() as u64, spec);
        samples.copy_interleaved_ref(decoded);
        mono.push(path, samples.samples(), spec.channels, spec.rate)?;
    }
    if let Some(declared) = declared {
        let tolerance = match parameters.bits_per_sample {
            Some(_) => 0.0, // a lossless format
            None => LOSSY_TOLERANCE,
        };
        let found = mono.seconds();
        if found + tolerance + 1e-9 < declared {
            let reason = format!(
                "it is truncated: its header declares {declared:.3} seconds, found {found:.3}; copy or download it again"
            );
            return Err(fault(path, reason));
        }
    }
    mono.finish(path)
}

/// Finds the file's format.
fn open(source: Box<dyn MediaSource>, path: &Path) -> Result<Box<dyn FormatReader>> {
    let stream = MediaSourceStream::new(source, Default::default());
    let options = FormatOptions {
        enable_gapless: true,
        ..FormatOptions::default()
    };
    let probed = symphonia::default::get_probe().format(
        &Hint::new(),
        stream,
        &options,
        &MetadataOptions::default(),
    );
    match probed {
        Ok(probed) => Ok(probed.format),
        Err(error) => {
            let reason = format!(
                "it is not audio that can be read ({error}); expected WAV, FLAC, MP3, Ogg Vorbis or M4A (AAC)"
            );
            Err(fault(path, reason))
        }
    }
}

/// Returns the length that a file's header declares.
fn declared_seconds(parameters: &CodecParameters) -> Option<f64> {
    let (n, rate) = (parameters.n_frames?, parameters.sample_rate?);
    let seconds = match parameters.time_base {
        Some(base) => n as f64 * f64::from(base.numer) / f64::from(base.denom),
        None => n as f64 / f64::from(rate),
    };
    // A WAV file that was written to a pipe declares the largest length.
    let is_of_pipe = (parameters.bits_per_sample)
        .zip(parameters.channels)
        .is_some_and(|(bits, channels)| {
            let bytes = n * u64::from(bits.div_ceil(8)) * channels.count() as u64;
            bytes > u64::from(u32::MAX) - (1 << 16)
        });
    (!is_of_pipe).then_some(seconds)
}

fn too_long(path: &Path) -> candle_blocks_base::Error {
    let reason = format!("it is longer than {MAX_HOURS} hours; cut it into shorter files");
    fault(path, reason)
}

/// A clip's mixed channels, in progress.
struct Mono {
    /// The file's rate and its resampler, known with the first samples.
    source: Option<(u32, Resampler)>,
    rate: u32,
    /// The seconds before the beginning, which are left out.
    before: f64,
    n_read: u64,
    mixed: Vec<f32>,
}

impl Mono {
    fn new(rate: u32, before: f64) -> Self {
        Self {
            source: None,
            rate,
            before,
            n_read: 0,
            mixed: Vec::new(),
        }
    }

    /// Returns how many seconds have been read.
    fn seconds(&self) -> f64 {
        match &self.source {
            Some((rate, _)) => self.n_read as f64 / f64::from(*rate),
            None => 0.0,
        }
    }

    fn damaged(&self, path: &Path, error: &SymphoniaError) -> candle_blocks_base::Error {
        let at = self.seconds();
        let reason =
            format!("it is damaged after {at:.3} seconds: {error}; copy or encode it again");
        fault(path, reason)
    }

    /// Adds interleaved samples.
    fn push(&mut self, path: &Path, samples: &[f32], places: Channels, rate: u32) -> Result<()> {
        let channels = places.count();
        if channels == 0 || !RATES.contains(&rate) {
            let reason = format!(
                "it has {channels} channels at {rate} samples a second, expected at least one channel and {} to {} samples",
                RATES.start(),
                RATES.end()
            );
            return Err(fault(path, reason));
        }
        let resampling = |reason| fault(path, format!("it cannot be resampled: {reason}"));
        let source = match self.source.take() {
            Some(source) => source,
            None => (rate, Resampler::new(rate, self.rate).map_err(resampling)?),
        };
        let (first_rate, resampler) = self.source.insert(source);
        if *first_rate != rate {
            let reason = format!(
                "its rate changes from {first_rate} to {rate} samples a second; convert it to WAV"
            );
            return Err(fault(path, reason));
        }
        let weights = mix(places);
        self.mixed.clear();
        let frames = samples.chunks_exact(channels);
        let sum = |frame: &[f32]| {
            frame
                .iter()
                .zip(&weights)
                .map(|(x, weight)| x * weight)
                .sum()
        };
        self.mixed.extend(frames.map::<f32, _>(sum));
        if let Some(at) = self.mixed.iter().position(|sample| !sample.is_finite()) {
            let seconds = (self.n_read + at as u64) as f64 / f64::from(rate);
            let reason = format!(
                "sample {} (at {seconds:.3} seconds) is {}, expected a finite number",
                self.n_read + at as u64,
                self.mixed[at]
            );
            return Err(fault(path, reason));
        }
        let n_before = (self.before * f64::from(rate)).round() as u64;
        let left_out = n_before.saturating_sub(self.n_read);
        let left_out = left_out.min(self.mixed.len() as u64) as usize;
        self.n_read += self.mixed.len() as u64;
        if self.n_read > MAX_HOURS * 3600 * u64::from(rate) {
            return Err(too_long(path));
        }
        resampler.push(&self.mixed[left_out..]).map_err(resampling)
    }

    fn finish(self, path: &Path) -> Result<Audio> {
        let resampling = |reason| fault(path, format!("it cannot be resampled: {reason}"));
        let finished = self.source.map(|(_, resampler)| resampler.finish());
        let samples = finished
            .transpose()
            .map_err(resampling)?
            .unwrap_or_default();
        match samples.is_empty() {
            true => Err(fault(path, "it contains no samples, expected audio")),
            false => Ok(Audio {
                samples,
                rate: self.rate,
            }),
        }
    }
}

/// Returns each channel's weight in the mix: ffmpeg's weights for `-ac 1` and samples in floating point (`auto_matrix` in
/// libswresample), which are not divided by their sum.
fn mix(places: Channels) -> Vec<f32> {
    const HALF: f32 = std::f32::consts::FRAC_1_SQRT_2; // of the power
    const TABLE: [(Channels, f32); 5] = [
        (Channels::FRONT_LEFT.union(Channels::FRONT_RIGHT), HALF),
        (Channels::FRONT_CENTRE, 1.0),
        (
            Channels::FRONT_LEFT_CENTRE.union(Channels::FRONT_RIGHT_CENTRE),
            HALF,
        ),
        (
            Channels::REAR_LEFT
                .union(Channels::REAR_RIGHT)
                .union(Channels::REAR_CENTRE),
            0.5,
        ),
        (Channels::SIDE_LEFT.union(Channels::SIDE_RIGHT), 0.5),
    ];
    if places.count() == 1 {
        return vec![1.0];
    }
    let weight = |place: Channels| {
        let found = TABLE.iter().find(|(places, _)| places.contains(place));
        found.map_or(0.0, |&(_, weight)| weight) // low frequencies, and places above
    };
    places.iter().map(weight).collect()
}
