//! The order in which Qwen 3.5's GGUF files store value heads. In transformers, value heads that share a key head are side by
//! side. llama.cpp's converter writes each key head's first value head, then each one's second, and so on.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;

/// The dimension along which a tensor has value heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Along {
    /// The last rows; rows before them belong to key heads.
    Rows,
    Columns,
}

/// Modules with value heads.
const MODULES: [(&str, Along); 8] = [
    ("attn_qkv", Along::Rows),
    ("attn_gate", Along::Rows),
    ("ssm_beta", Along::Rows),
    ("ssm_alpha", Along::Rows),
    ("ssm_a", Along::Rows),
    ("ssm_dt", Along::Rows),
    ("ssm_conv1d", Along::Rows),
    ("ssm_out", Along::Columns),
];

/// A file's head counts, and the width of all value heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::checkpoint::gguf) struct HeadCounts {
    n_keys: usize,
    n_values: usize,
    values_width: usize,
}

impl HeadCounts {
    /// Reads them from a file's keys; `None` if each key head has one value head, which stay in their order.
    pub fn of(keys: &BTreeMap<String, Value>) -> Option<Self> {
        let architecture = keys.get("general.architecture")?.as_str()?;
        let size = |key: &str| {
            let found = keys.get(&format!("{architecture}.ssm.{key}"))?.as_u64()?;
            usize::try_from(found).ok()
        };
        let counts = Self {
            n_keys: size("group_count")?,
            n_values: size("time_step_rank")?,
            values_width: size("inner_size")?,
        };
        let Self {
            n_keys, n_values, ..
        } = counts;
        (n_keys > 0 && n_values > n_keys && n_values.is_multiple_of(n_keys)).then_some(counts)
    }
}

/// The value heads in a tensor that stores them in another order than transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::checkpoint::gguf) struct ValueHeads {
    counts: HeadCounts,
    /// Rows or columns before the first head.
    first: usize,
    /// A head's number of rows or columns.
    width: usize,
    along: Along,
}

impl ValueHeads {
    /// Returns a module's value heads; `None` if it has none, or its shape has no place for them.
    pub fn new(counts: HeadCounts, module: &str, shape: &[usize]) -> Option<Self> {
        let &(_, along) = MODULES.iter().find(|(known, _)| *known == module)?;
        let n = match along {
            Along::Rows => *shape.first()?,
            Along::Columns => *shape.get(1)?,
        };
        let width = match n == counts.n_values {
            true => 1,
            false => counts.values_width / counts.n_values,
        };
        let first = n.checked_sub(counts.n_values * width)?;
        (width > 0).then_some(Self {
            counts,
            first,
            width,
            along,
        })
    }

    /// Returns the row ranges in the file that make up `rows`, in order.
    pub fn rows(&self, rows: Range<usize>) -> Vec<Range<usize>> {
        if self.along == Along::Columns {
            return vec![rows];
        }
        let mut found = vec![];
        let before = rows.start..rows.end.min(self.first);
        if !before.is_empty() {
            found.push(before);
        }
        let mut row = rows.start.max(self.first);
        while row < rows.end {
            let (head, in_head) = (
                (row - self.first) / self.width,
                (row - self.first) % self.width,
            );
            let n = (self.width - in_head).min(rows.end - row);
            let start = self.first + self.stored(head) * self.width + in_head;
            found.push(start..start + n);
            row += n;
        }
        found
    }

    /// Returns transformers' column for each column in the file, if they differ.
    pub fn columns(&self) -> Option<Arc<[u32]>> {
        let mut columns = vec![0; self.counts.n_values * self.width];
        for head in 0..self.counts.n_values {
            for i in 0..self.width {
                columns[self.stored(head) * self.width + i] = (head * self.width + i) as u32;
            }
        }
        (self.along == Along::Columns).then(|| columns.into())
    }

    /// Returns the place in the file for a head in transformers.
    fn stored(&self, head: usize) -> usize {
        let HeadCounts {
            n_keys, n_values, ..
        } = self.counts;
        let of_key = n_values / n_keys;
        head % of_key * n_keys + head / of_key
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Two key heads, and six value heads of 3.
    fn counts(n_keys: usize) -> Option<HeadCounts> {
        let keys = [
            ("general.architecture", json!("qwen35")),
            ("qwen35.ssm.group_count", json!(n_keys)),
            ("qwen35.ssm.time_step_rank", json!(6)),
            ("qwen35.ssm.inner_size", json!(18)),
        ];
        HeadCounts::of(&keys.map(|(key, value)| (key.to_string(), value)).into())
    }

    fn heads(module: &str, shape: &[usize]) -> Option<ValueHeads> {
        ValueHeads::new(counts(2).unwrap(), module, shape)
    }

    #[test]
    fn rows_before_the_heads_stay_and_heads_are_found_one_by_one() {
        let heads = heads("attn_qkv", &[8 + 18, 4]).unwrap();
        // Heads 0, 1 and 2 are those of the first key head.
        let expected = [6..8, 8..11, 14..17, 20..23, 11..13];
        assert_eq!(heads.rows(6..8 + 11), expected);
        assert_eq!(heads.rows(9..12), [9..11, 14..15]);
        assert_eq!(heads.columns(), None);
    }

    #[test]
    fn columns_have_the_inverse_order() {
        let heads = heads("ssm_out", &[5, 18]).unwrap();
        let columns = heads.columns().unwrap();
        assert_eq!(columns[..9], [0, 1, 2, 9, 10, 11, 3, 4, 5]);
        assert_eq!(heads.rows(1..4), vec![1..4]);
    }

    #[test]
    fn a_vector_has_one_row_for_each_head() {
        let heads = heads("ssm_a", &[6]).unwrap();
        assert_eq!(heads.rows(0..6), [0..1, 2..3, 4..5, 1..2, 3..4, 5..6]);
    }

    #[test]
    fn other_tensors_and_equal_counts_keep_their_order() {
        for (module, shape) in [
            ("attn_gate", &[17, 4][..]),
            ("ssm_out", &[5]),
            ("ssm_a", &[]),
        ] {
            assert_eq!(heads(module, shape), None, "{module}");
        }
        assert_eq!(heads("attn_q", &[18, 4]), None);
        assert_eq!([6, 4, 0].map(counts), [None; 3]);
    }
}
