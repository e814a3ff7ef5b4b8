//! WAV files.

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
