//! Long arrays in a GGUF file, which are read on request: a tokenizer's tokens, scores and types.

use serde_json::Value;

use super::{Cursor, Gguf, TEXT};
use crate::bytes::positioned::PositionedFile;
use candle_blocks_base::Result;

/// An array's beginning in the first file.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArrayPlace(pub u64);

impl Gguf {
    /// Reads the array of strings under a key from the first file; `None` if there is none.
    ///
    /// # Errors
    /// If it contains something else, or a string is not UTF-8.
    pub(crate) fn texts(&self, first: &PositionedFile, key: &str) -> Result<Option<Vec<String>>> {
        let Some((mut cursor, kind, n)) = self.array(first, key)? else {
            return Ok(None);
        };
        if kind != TEXT {
            return Err(cursor.error(format!("key {key:?} is not an array of strings")));
        }
        (0..n)
            .map(|_| cursor.text())
            .collect::<Result<_>>()
            .map(Some)
    }

    /// Reads the array under a key from the first file, for any numeric type; `None` if there is none.
    ///
    /// # Errors
    /// If it contains something else.
    pub(crate) fn numbers(&self, first: &PositionedFile, key: &str) -> Result<Option<Vec<f64>>> {
        let number = |value: &Value| value.as_f64();
        if let Some(Value::Array(kept)) = self.metadata.get(key) {
            return Ok(kept.iter().map(number).collect());
        }
        let Some((mut cursor, kind, n)) = self.array(first, key)? else {
            return Ok(None);
        };
        let mut numbers = Vec::new();
        for _ in 0..n {
            let value = cursor.scalar(key, kind)?;
            let Some(number) = number(&value) else {
                return Err(
                    cursor.error(format!("key {key:?} contains {value}, expected a number"))
                );
            };
            numbers.push(number);
        }
        Ok(Some(numbers))
    }

    /// Finds an array that was not kept: its items' location, type and count.
    fn array<'f>(
        &self,
        first: &'f PositionedFile,
        key: &str,
    ) -> Result<Option<(Cursor<'f>, u32, u64)>> {
        let Some(&ArrayPlace(at)) = self.arrays.get(key) else {
            return Ok(None);
        };
        let mut cursor = Cursor::at(first, at);
        let (kind, n) = (cursor.u32()?, cursor.u64()?);
        Ok(Some((cursor, kind, n)))
    }
}
