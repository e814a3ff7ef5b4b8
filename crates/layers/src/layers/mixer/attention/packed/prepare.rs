//! Preparation of projected queries and keys: clipping, norms and rotary embedding.

use std::sync::Arc;

use candle_blocks_kernels::rows::rotary::{Pairing, rotate_heads};
use candle_blocks_kernels::{Cpu, Isa, threads};
use candle_core::Result;

use super::PackedAttention;
use crate::config::{Position, QueryKeyNorm};
use crate::layers::norm::packed::SpanNorms;
use crate::layers::packed::pass::{PackedPass, Tables};

/// The number of rows per task.
const ROWS: usize = 16;

/// Columns in projected rows: queries first, then keys, values and the gate.
#[derive(Clone, Copy)]
pub(super) struct ProjectedColumns {
    /// The number of query columns.
    pub q: usize,
    /// The number of key columns, and of value columns.
    pub kv: usize,
    /// The number of columns in a row.
    pub width: usize,
}

/// Selects if queries and keys are rotated by their positions.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum RotateBy {
    Position,
    Nothing,
}

/// The rotation by the rows' positions, if there is one.
pub(super) struct HeadRotation<'a> {
    tables: Option<(Arc<Tables>, Pairing)>,
    /// Cosine tables that hold the temperature of each query.
    temperature: Option<Arc<Tables>>,
    /// The index of each row in the batch, if padding is left out.
    unpadded: Option<&'a [usize]>,
}

impl HeadRotation<'_> {
    /// Rotates the first dimensions of all heads in one row.
    pub fn rotate(&self, isa: Isa, row: usize, heads: &mut [f32], head_dim: usize) {
        if let Some((tables, pairing)) = &self.tables {
            let (cos, sin) = tables.row(self.unpadded.map_or(row, |rows| rows[row]));
            rotate_heads(isa, heads, head_dim, cos, sin, *pairing);
        }
    }

    /// Multiplies the queries in one row by the temperature at its position.
    pub fn temper(&self, isa: Isa, row: usize, queries: &mut [f32], head_dim: usize) {
        if let Some(tables) = &self.temperature {
            let (cos, sin) = tables.row(self.unpadded.map_or(row, |rows| rows[row]));
            rotate_heads(isa, queries, head_dim, cos, sin, Pairing::Halves);
        }
    }

    fn is_none(&self) -> bool {
        self.tables.is_none() && self.temperature.is_none()
    }
}

/// The steps between projection and scores, for the rows of a pass.
pub(super) struct Prepare<'a> {
    of: &'a PackedAttention,
    columns: ProjectedColumns,
    rotation: HeadRotation<'a>,
}

impl PackedAttention {
    /// Returns the preparation for projected rows with these columns.
    ///
    /// # Errors
    /// If the positions do not fit the pass.
    pub(super) fn preparation<'a>(
        &'a self,
        columns: ProjectedColumns,
        rotate_by: RotateBy,
        pass: PackedPass<'a>,
    ) -> Result<Prepare<'a>> {
        Ok(Prepare {
            of: self,
            columns,
            rotation: self.rotation(rotate_by, pass)?,
        })
    }

    /// # Errors
    /// If the positions do not fit the pass.
    pub(super) fn rotation<'a>(
        &self,
        rotate_by: RotateBy,
        pass: PackedPass<'a>,
    ) -> Result<HeadRotation<'a>> {
        Ok(HeadRotation {
            tables: match &self.config.position {
                Position::Rotary(rotary) if rotate_by == RotateBy::Position => {
                    Some((pass.rotary_tables(rotary)?, rotary.pairing.into()))
                }
                _ => None,
            },
            temperature: match self.config.temperature {
                Some(temperature) if rotate_by == RotateBy::Position => {
                    pass.temperatures((temperature, self.config.head_dim / 2))?
                }
                _ => None,
            },
            unpadded: pass.unpadded(),
        })
    }
}

impl Prepare<'_> {
    /// Prepares rows in place. The first row is row `first_row` of the pass.
    pub(super) fn rows(&self, cpu: Cpu, projected: &mut [f32], first_row: usize) {
        let ProjectedColumns { q, kv, width } = self.columns;
        let PackedAttention { config, norms, .. } = self.of;
        let value_norm = self.of.value_norm.as_ref().filter(|_| kv > 0);
        let is_plain = config.clip.is_none() && norms.is_none() && value_norm.is_none();
        if is_plain && self.rotation.is_none() {
            return;
        }
        let is_after_rotation = |of: QueryKeyNorm| of.after_rotation;
        let (before, after) = match config.query_key_norm.is_some_and(is_after_rotation) {
            true => (None, norms.as_ref()),
            false => (norms.as_ref(), None),
        };
        let normalize = |norms: Option<&SpanNorms>, row: &mut [f32]| {
            if let Some(norms) = norms {
                norms.query(cpu.isa, &mut row[..q]);
                norms.key(cpu.isa, &mut row[q..q + kv]);
            }
        };
        let n_threads = threads::threads_for(projected.len(), cpu.threads);
        threads::for_chunks(n_threads, projected, ROWS * width, |start, rows| {
            for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                if let Some(clip) = config.clip {
                    let clip = clip as f32;
                    let projected = row[..q + 2 * kv].iter_mut();
                    projected.for_each(|x| *x = x.clamp(-clip, clip));
                }
                normalize(before, row);
                if let Some(norm) = value_norm {
                    let values = row[q + kv..q + 2 * kv].chunks_exact_mut(norm.width());
                    values.for_each(|value| norm.row_in_place(cpu.isa, value));
                }
                let at = first_row + start / width + i;
                self.rotation
                    .rotate(cpu.isa, at, &mut row[..q + kv], config.head_dim);
                normalize(after, row);
                self.rotation
                    .temper(cpu.isa, at, &mut row[..q], config.head_dim);
            }
        });
    }
}
