//! What is done to projections before they meet: clipping, norms of queries and keys, rotation.

use candle_core::Result;

use super::PackedAttention;
use crate::{
    config::Position,
    cpu::{parallel, rotary::rotate_heads},
    packed::pass::PackedPass,
};

/// Rows that a task takes.
const ROWS: usize = 16;

/// Where queries and keys are in projected rows: the queries first, the keys next.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    /// Columns of queries.
    pub q: usize,
    /// Columns of keys.
    pub kv: usize,
    /// Columns of a row.
    pub width: usize,
}

/// Whether queries and keys have positions to turn by.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Turn {
    Yes,
    No,
}

impl PackedAttention {
    /// Clips projections, and normalises and turns their queries and keys.
    pub(super) fn prepare(
        &self,
        projected: &mut [f32],
        columns: Columns,
        turn: Turn,
        pass: &PackedPass,
    ) -> Result<()> {
        let Columns { q, kv, width } = columns;
        let tables = match &self.config.position {
            Position::Rotary(rotary) if turn == Turn::Yes => {
                Some((pass.rotary_tables(rotary)?, rotary.pairing))
            }
            _ => None,
        };
        let kept = pass.kept();
        if self.config.clip.is_none() && self.norms.is_none() && tables.is_none() {
            return Ok(());
        }
        parallel::for_chunks(projected, ROWS * width, |start, rows| {
            for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                if let Some(clip) = self.config.clip {
                    let clip = clip as f32;
                    row.iter_mut().for_each(|x| *x = x.clamp(-clip, clip));
                }
                if let Some(norms) = &self.norms {
                    norms.query(self.arithmetic.isa, &mut row[..q]);
                    norms.key(self.arithmetic.isa, &mut row[q..q + kv]);
                }
                if let Some((tables, pairing)) = &tables {
                    let at = start / width + i;
                    let (cos, sin) = tables.row(kept.map_or(at, |kept| kept[at]));
                    let turned = &mut row[..q + kv];
                    rotate_heads(
                        self.arithmetic.isa,
                        turned,
                        self.config.head_dim,
                        cos,
                        sin,
                        (*pairing).into(),
                    );
                }
            }
        });
        Ok(())
    }
}
