//! Sounds of integers, as `weights/fixtures/sounds.py` makes them.

const PIECE: usize = 4000;

/// A triangle wave from -8192 to 8192.
fn triangle(i: usize, period: usize) -> i64 {
    ((i % period * 32768 / period) as i64 - 16384).abs() - 8192
}

/// Returns `n` samples of 16 bits.
pub fn sound(seed: usize, n: usize) -> Vec<i16> {
    let mut state = seed as u64;
    let sample = |i: usize| {
        state = (state * 1_103_515_245 + 12345) % (1 << 31);
        let noise = (state >> 16) as i64 - 16384;
        let kind = seed + i / PIECE;
        let tone = triangle(i, 20 + (seed * 7 + i / PIECE * 13) % 150);
        let kinds = [0, noise >> (kind % 5), tone, (noise * tone) >> 15];
        kinds[kind % 4] as i16
    };
    (0..n).map(sample).collect()
}

/// Returns `n` samples from -1 to 1.
pub fn samples(seed: usize, n: usize) -> Vec<f32> {
    let sound = sound(seed, n);
    sound.into_iter().map(|x| f32::from(x) / 32768.0).collect()
}

/// The encoding of a WAV file's samples.
#[derive(Clone, Copy)]
pub enum Encoding {
    Pcm16,
    Float,
}

/// Returns a WAV file with interleaved samples.
pub fn wav(encoding: Encoding, channels: u16, rate: u32, samples: &[f32]) -> Vec<u8> {
    let (format, bytes): (u16, u16) = match encoding {
        Encoding::Pcm16 => (1, 2),
        Encoding::Float => (3, 4),
    };
    let data = samples.iter().flat_map(|&sample| match encoding {
        Encoding::Pcm16 => ((sample * 32768.0) as i16).to_le_bytes().to_vec(),
        Encoding::Float => sample.to_le_bytes().to_vec(),
    });
    let data: Vec<u8> = data.collect();
    let frame = channels * bytes;
    let mut file = b"RIFF".to_vec();
    file.extend((36 + data.len() as u32).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16u32.to_le_bytes());
    file.extend(format.to_le_bytes());
    file.extend(channels.to_le_bytes());
    file.extend(rate.to_le_bytes());
    file.extend((rate * u32::from(frame)).to_le_bytes());
    file.extend(frame.to_le_bytes());
    file.extend((bytes * 8).to_le_bytes());
    file.extend(b"data");
    file.extend((data.len() as u32).to_le_bytes());
    file.extend(data);
    file
}
