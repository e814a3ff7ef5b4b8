//! A file's segments: markers with bodies, and a scan's data.

/// The marker at a file's end.
pub const END: u8 = 0xd9;

/// Goes through a file.
pub struct Segments<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Segments<'b> {
    /// Starts after the marker at the beginning.
    pub fn new(bytes: &'b [u8]) -> Self {
        Self { bytes, at: 2 }
    }

    /// Returns the next marker with its body, which is empty for a marker without one. Other bytes before it are skipped.
    ///
    /// # Errors
    /// If the file is cut off.
    pub fn next(&mut self) -> Result<(u8, std::slice::Iter<'b, u8>), String> {
        loop {
            let rest = self.rest();
            let at = rest.iter().position(|&byte| byte == 0xff);
            self.at += at.ok_or_else(|| self.cut())? + 1;
            match *self.bytes.get(self.at).ok_or_else(|| self.cut())? {
                0xff => {}                                 // a fill byte
                0x00 | 0x01 | 0xd0..=0xd8 => self.at += 1, // no segment
                END => return Ok((END, [].iter())),
                marker => {
                    let length = self.bytes.get(self.at + 1..self.at + 3);
                    let length = length.ok_or_else(|| self.cut())?;
                    let length = usize::from(u16::from_be_bytes([length[0], length[1]])).max(2);
                    let end = self.at + 1 + length;
                    let body = self.bytes.get(self.at + 3..end);
                    let body = body.ok_or_else(|| self.cut())?;
                    self.at = end;
                    return Ok((marker, body.iter()));
                }
            }
        }
    }

    /// Returns the bytes after the last segment.
    pub fn rest(&self) -> &'b [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// Goes on at a scan's end, before `rest`.
    pub fn skip_to(&mut self, rest: &[u8]) {
        self.at = self.bytes.len() - rest.len();
    }

    fn cut(&self) -> String {
        cut_off()
    }
}

/// Returns the error for a file that is cut off.
pub fn cut_off() -> String {
    "is cut off; copy or download it again".into()
}
