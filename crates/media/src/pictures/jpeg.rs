//! The end of a JPEG file. The decoder fills a file that is cut off with gray, and PIL refuses it.

/// Checks that a file has its end marker.
///
/// # Errors
/// If it is cut off.
pub(super) fn check_end(bytes: &[u8]) -> Result<(), String> {
    let cut = || {
        let n = bytes.len();
        format!("is a JPEG file that is cut off after {n} bytes; copy or download it again")
    };
    let mut at = 2; // after the start marker
    loop {
        // Bytes between segments, and entropy-coded ones, are skipped: a marker begins with 255, and another byte than 0 follows.
        let rest = bytes.get(at..).ok_or_else(cut)?;
        let marker = rest.iter().position(|&byte| byte == 0xff);
        at += marker.ok_or_else(cut)? + 1;
        match bytes.get(at).ok_or_else(cut)? {
            0xd9 => return Ok(()),
            0xff => {}                            // a fill byte
            0x00 | 0x01 | 0xd0..=0xd8 => at += 1, // no segment
            _ => {
                let length = bytes.get(at + 1..at + 3).ok_or_else(cut)?;
                at += 1 + usize::from(u16::from_be_bytes([length[0], length[1]])).max(2);
            }
        }
    }
}
