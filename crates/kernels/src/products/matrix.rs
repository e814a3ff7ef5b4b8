//! A matrix whose element type is known at run time.

use super::View;
use crate::vectors::{Slice, Stored};

/// A `rows × columns` matrix in a slice, with a row stride and a column stride.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    data: Slice<'a>,
    /// The row count.
    pub rows: usize,
    /// The column count.
    pub columns: usize,
    strides: (usize, usize),
}

impl<'a> Matrix<'a> {
    /// Creates a matrix in which element (i, j) is `data[i * row_stride + j * column_stride]`.
    pub fn new(data: Slice<'a>, (rows, columns): (usize, usize), strides: (usize, usize)) -> Self {
        Self {
            data,
            rows,
            columns,
            strides,
        }
    }

    /// Creates a matrix with contiguous rows, `columns` elements each.
    pub fn of_rows(data: Slice<'a>, columns: usize) -> Self {
        let rows = data.len().checked_div(columns).unwrap_or(0);
        Self::new(data, (rows, columns), (columns, 1))
    }

    /// Returns the transposed matrix.
    pub fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            strides: (self.strides.1, self.strides.0),
            ..self
        }
    }

    /// Returns the matrix as a typed view.
    ///
    /// # Panics
    /// If an element lies outside the data, or the data has another type.
    pub(crate) fn view<T: Stored>(self) -> View<'a, T> {
        View::new(
            T::of_slice(self.data),
            (self.rows, self.columns),
            self.strides,
        )
    }

    /// Returns the elements, widened, in row-major order.
    pub(crate) fn widened<T: Stored>(self) -> Vec<T::Acc> {
        let view = self.view::<T>();
        let mut wide = Vec::with_capacity(self.rows * self.columns);
        for row in 0..self.rows {
            if view.has_whole_rows() {
                wide.extend(view.row(row, 0..self.columns).iter().map(|x| x.widen()));
            } else {
                wide.extend((0..self.columns).map(|column| view.at(row, column).widen()));
            }
        }
        wide
    }
}
