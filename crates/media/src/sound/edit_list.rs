//! The beginning time in an MP4 file, by its edit list: encoders put samples before it, which symphonia does not leave out.
//!
//! ISO/IEC 14496-12, sections 8.4.2, 8.4.3 and 8.6.6.

use std::io::{Read, Seek, SeekFrom};

/// The largest track description (`moov`) that is read, in bytes.
const MAX_BYTES: u64 = 1 << 26;

/// Returns the seconds before the first audio track in `moov` begins; 0 without an edit list.
pub(super) fn seconds_before(moov: &[u8]) -> f64 {
    let found = tracks(moov).find(|track| is_sound(track)).and_then(before);
    found.unwrap_or(0.0)
}

/// Returns the units of time in a second, for each track in `moov` that has them.
pub(super) fn time_scales(moov: &[u8]) -> impl Iterator<Item = u32> {
    let headers = tracks(moov).filter_map(|track| inside(track, &[b"mdia", b"mdhd"]));
    headers.filter_map(time_scale)
}

fn tracks(moov: &[u8]) -> impl Iterator<Item = &[u8]> {
    let tracks = boxes(moov).filter(|(name, _)| *name == b"trak");
    tracks.map(|(_, track)| track)
}

/// Returns the units of time in a second, from a track's `mdhd`.
fn time_scale(header: &[u8]) -> Option<u32> {
    number(header, if is_long(header) { 20 } else { 12 })
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

fn is_long(bytes: &[u8]) -> bool {
    bytes.first() == Some(&1)
}

/// Returns what the box `moov` contains; nothing for another format.
pub(super) fn description(source: &mut (impl Read + Seek + ?Sized)) -> Vec<u8> {
    read_description(source).unwrap_or_default()
}

fn read_description(source: &mut (impl Read + Seek + ?Sized)) -> Option<Vec<u8>> {
    let mut at = 0;
    loop {
        source.seek(SeekFrom::Start(at)).ok()?;
        let mut head = [0; 16];
        source.read_exact(&mut head).ok()?;
        let size = u64::from(u32::from_be_bytes(head[..4].try_into().ok()?));
        let (size, head_size) = match size {
            1 => (u64::from_be_bytes(head[8..].try_into().ok()?), 16),
            size => (size, 8),
        };
        if at == 0 && &head[4..8] != b"ftyp" {
            return None;
        }
        let n_bytes = size.checked_sub(head_size)?;
        if &head[4..8] == b"moov" && n_bytes <= MAX_BYTES {
            source.seek(SeekFrom::Start(at + head_size)).ok()?;
            let mut contents = Vec::new();
            source.take(n_bytes).read_to_end(&mut contents).ok()?;
            return Some(contents);
        }
        at = at.checked_add(size)?;
    }
}

/// Returns the boxes in some contents, each with its name.
fn boxes(mut contents: &[u8]) -> impl Iterator<Item = (&[u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let (size, rest) = contents.split_first_chunk::<4>()?;
        let (name, rest) = rest.split_first_chunk::<4>()?;
        let size = (u32::from_be_bytes(*size) as usize).checked_sub(8)?;
        let (inner, after) = rest.split_at_checked(size)?;
        contents = after;
        Some((name, inner))
    })
}

/// Returns what the box at a path contains.
fn inside<'b>(contents: &'b [u8], path: &[&[u8; 4]]) -> Option<&'b [u8]> {
    path.iter().try_fold(contents, |contents, wanted| {
        boxes(contents)
            .find(|(name, _)| name == wanted)
            .map(|(_, inner)| inner)
    })
}

fn is_sound(track: &[u8]) -> bool {
    let handler = inside(track, &[b"mdia", b"hdlr"]);
    handler.and_then(|handler| handler.get(8..12)) == Some(b"soun")
}

/// Returns the time at which a track's first edit begins.
fn before(track: &[u8]) -> Option<f64> {
    let scale = time_scale(inside(track, &[b"mdia", b"mdhd"])?)?;
    let list = inside(track, &[b"edts", b"elst"])?;
    // An entry has a duration and a time, each with 8 bytes in the long form. Time -1 is silence.
    let time = match is_long(list) {
        true => i64::from(number(list, 16)? as i32) << 32 | i64::from(number(list, 20)?),
        false => i64::from(number(list, 12)? as i32),
    };
    let is_usable = scale > 0 && (0..=i64::from(scale) * 10).contains(&time);
    is_usable.then(|| time as f64 / f64::from(scale))
}
