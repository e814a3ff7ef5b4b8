//! Row and column lookup by index, and concatenation.

use candle_core::{D, Result, Tensor};

use super::Array;
use crate::ops::recorder::issued;

impl Array {
    /// Selects this matrix's rows with these indices (u32).
    pub fn select_rows(&self, ids: &Self) -> Result<Self> {
        let n_ids = ids.dims()[0];
        if n_ids == 0 || self.is_empty() {
            return self.narrow(0, 0, 0)?.reshape(&[n_ids, self.width()]);
        }
        let table = self.contiguous()?;
        issued("index_select", &[&ids.0, &table.0], None)?;
        table.0.index_select(&ids.0, 0).map(Self)
    }

    /// Returns this matrix plus `rows`, each added to the row with its index (u32).
    pub fn add_rows(&self, ids: &Self, rows: &Self) -> Result<Self> {
        if rows.is_empty() {
            return Ok(self.clone());
        }
        // CUDA does not support a view with an offset.
        let (x, rows) = (self.contiguous()?.at_its_beginning()?, rows.contiguous()?);
        issued("index_add", &[&ids.0, &x.0, &rows.0], None)?;
        x.0.index_add(&ids.0, &rows.0, 0).map(Self)
    }

    /// Selects, in each row, the columns with its indices (u32).
    pub fn gather(&self, ids: &Self) -> Result<Self> {
        if ids.is_empty() {
            return self.narrow(0, 0, 0)?.reshape(ids.dims());
        }
        let (x, ids) = (self.contiguous()?, ids.contiguous()?);
        issued("gather", &[&ids.0, &x.0], None)?;
        x.0.gather(&ids.0, D::Minus1).map(Self)
    }

    /// Returns this matrix plus `source`, each column added to the column with its index (u32) in the row.
    pub fn scatter_add(&self, ids: &Self, source: &Self) -> Result<Self> {
        if ids.is_empty() {
            return Ok(self.clone());
        }
        let (x, ids, source) = (self.contiguous()?, ids.contiguous()?, source.contiguous()?);
        issued("scatter_add", &[&ids.0, &x.0, &source.0], None)?;
        x.0.scatter_add(&ids.0, &source.0, D::Minus1).map(Self)
    }

    /// Returns each row's column indices (u32) sorted by value, smallest first, with equal values in any order.
    /// Supports up to [`Self::SORTED`] columns.
    pub fn argsort(&self) -> Result<Self> {
        let x = self.contiguous()?;
        issued("argsort", &[&x.0], None)?;
        x.0.arg_sort_last_dim(true).map(Self)
    }

    /// The maximum column count that both backends sort.
    pub const SORTED: usize = 1024;

    /// Concatenates arrays along a dimension.
    pub fn cat(parts: &[Self], dim: usize) -> Result<Self> {
        if let [part] = parts {
            return Ok(part.clone());
        }
        let with_elements = parts.iter().filter(|part| !part.is_empty());
        let parts: Vec<&Tensor> = match with_elements.clone().count() {
            0 => parts.iter().map(|part| &part.0).collect(),
            _ => with_elements.map(|part| &part.0).collect(),
        };
        for part in &parts {
            issued("cat", &[part], None)?;
        }
        Tensor::cat(&parts, dim).map(Self)
    }
}
