//! The order in which Qwen 3.5's GGUF files store value heads. In transformers, value heads that share a key head are side by
//! side. llama.cpp's converter writes each key head's first value head, then each one's second, and so on.

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

/// The value heads in a tensor that stores them in another order than transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::checkpoint::gguf) struct ValueHeads {
    n_keys: usize,
    n_values: usize,
    /// Rows or columns before the first head.
    first: usize,
    /// A head's number of rows or columns.
    width: usize,
    along: Along,
}

impl ValueHeads {
    /// Returns a module's value heads; `None` if their order is transformers' own, or the shape has no place for them.
    pub fn new(config: &Value, module: &str, shape: &[usize]) -> Option<Self> {
        let &(_, along) = MODULES.iter().find(|(known, _)| *known == module)?;
        // transformers' defaults.
        let size = |key: &str, default: u64| {
            let found = config.get(key).and_then(Value::as_u64);
            usize::try_from(found.unwrap_or(default)).ok()
        };
        let n_keys = size("linear_num_key_heads", 16)?;
        let n_values = size("linear_num_value_heads", 32)?;
        let n = match along {
            Along::Rows => *shape.first()?,
            Along::Columns => *shape.get(1)?,
        };
        let width = match n == n_values {
            true => 1,
            false => size("linear_value_head_dim", 128)?,
        };
        let first = n.checked_sub(n_values.checked_mul(width)?)?;
        let is_ordered = n_keys > 0 && n_keys != n_values && n_values.is_multiple_of(n_keys);
        (is_ordered && width > 0).then_some(Self {
            n_keys,
            n_values,
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
        let mut columns = vec![0; self.n_values * self.width];
        for head in 0..self.n_values {
            for i in 0..self.width {
                columns[self.stored(head) * self.width + i] = (head * self.width + i) as u32;
            }
        }
        (self.along == Along::Columns).then(|| columns.into())
    }

    /// Returns the place in the file for a head in transformers.
    fn stored(&self, head: usize) -> usize {
        let of_key = self.n_values / self.n_keys;
        head % of_key * self.n_keys + head / of_key
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn heads(module: &str, shape: &[usize]) -> Option<ValueHeads> {
        let config = json!({
            "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_value_head_dim": 3
        });
        ValueHeads::new(&config, module, shape)
    }

    #[test]
    fn rows_before_the_heads_stay_and_heads_are_found_one_by_one() {
        let heads = heads("attn_qkv", &[8 + 18, 4]).unwrap();
        // Heads 0, 1 and 2 are those of the first key head.
        let expected = [6..8, 8..11, 14..17, 20..23, 11..13];
        assert_eq!(heads.rows(6..8 + 11), expected);
        assert_eq!(heads.rows(9..10), [9..10]);
        assert_eq!(heads.columns(), None);
    }

    #[test]
    fn columns_have_the_inverse_order() {
        let heads = heads("ssm_out", &[5, 18]).unwrap();
        let columns = heads.columns().unwrap();
        assert_eq!(columns[..9], [0, 1, 2, 9, 10, 11, 3, 4, 5]);
        assert_eq!(heads.rows(1..4), [1..4]);
    }

    #[test]
    fn a_vector_has_one_row_for_each_head() {
        let heads = heads("ssm_a", &[6]).unwrap();
        assert_eq!(heads.rows(0..6), [0..1, 2..3, 4..5, 1..2, 3..4, 5..6]);
    }

    #[test]
    fn a_shape_without_place_for_the_heads_is_read_as_it_is() {
        for (module, shape) in [
            ("attn_gate", &[17, 4][..]),
            ("ssm_out", &[5]),
            ("ssm_a", &[]),
        ] {
            assert_eq!(heads(module, shape), None, "{module}");
        }
        assert_eq!(heads("attn_q", &[18, 4]), None);
    }
}
