//! Headers of WAV and MP4 files that declare a rate of 0, on which symphonia panics.

use std::io::{Read, Seek, SeekFrom};

use super::edit_list::time_scales;

/// symphonia looks this far for a format's first bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Returns true if a file's header declares 0 samples a second, or a track in `moov` 0 units of time.
pub(super) fn is_declared(source: &mut (impl Read + Seek + ?Sized), moov: &[u8]) -> bool {
    let mut head = Vec::new();
    let is_read = source.seek(SeekFrom::Start(0)).is_ok()
        && source.take(MAX_BYTES).read_to_end(&mut head).is_ok();
    let is_of_wav = is_read && (0..head.len()).any(|at| rate_of_wav(&head[at..]) == Some(0));
    is_of_wav || time_scales(moov).any(|scale| scale == 0)
}

/// Returns the sampling rate in a WAV file's header.
fn rate_of_wav(bytes: &[u8]) -> Option<u32> {
    let (size_and_kind, mut chunks) = bytes.strip_prefix(b"RIFF")?.split_first_chunk::<8>()?;
    if &size_and_kind[4..] != b"WAVE" {
        return None;
    }
    loop {
        let (name, rest) = chunks.split_first_chunk::<4>()?;
        let (size, contents) = rest.split_first_chunk::<4>()?;
        if name == b"fmt " {
            let rate = contents.get(4..8)?;
            return Some(u32::from_le_bytes(rate.try_into().ok()?));
        }
        let size = u32::from_le_bytes(*size) as usize;
        chunks = contents.get(size + size % 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::sound::Audio;

    /// A box of an MP4 file.
    fn mp4(name: &[u8; 4], contents: &[u8]) -> Vec<u8> {
        let size = (contents.len() + 8) as u32;
        [&size.to_be_bytes()[..], name, contents].concat()
    }

    #[test]
    fn a_rate_of_zero_is_refused() {
        let mut wav = b"RIFF\x2a\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
        wav.extend([0; 8]);
        wav.extend(b"\x01\0\x08\0data\x06\0\0\0abcdef");
        let header = mp4(b"mdhd", &[0; 24]);
        let track = mp4(b"trak", &mp4(b"mdia", &header));
        let file = [mp4(b"ftyp", b"M4A \0\0\0\0"), mp4(b"moov", &track)].concat();
        let after_others = [&b"junk"[..], &wav].concat();
        for bytes in [wav, after_others, file] {
            let error = Audio::from_bytes(bytes, Path::new("zero"), 16_000).unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains("zero") && error.contains("rate of 0"),
                "{error}"
            );
        }
    }
}
