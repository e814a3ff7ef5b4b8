//! From queries, keys and values to the output: scores, softmax and values of a tile at a time, and the last projection.

use std::cell::Cell;

use candle_core::Result;

use super::{Call, PackedAttention};
use crate::{
    cpu::{
        attention::{Bias, Heads, KeyValue, Scoring, Shape, attend},
        scratch::{Aligned, Scratch, lend},
        source::Source,
    },
    ops::{Reach, Visible},
    packed::pass::{Additive, PackedPass},
};

thread_local!(static MIXED: Cell<Aligned<f32>> = const { Cell::new(Aligned::empty()) });
static MIXED_ROWS: &Scratch<f32> = &MIXED;

/// Queries, and what they see.
pub(super) struct Attended<'a> {
    pub query: Heads<'a>,
    pub key_value: KeyValue<'a>,
    /// Positions of each sequence's keys.
    pub keys: usize,
    /// `[batch, keys]`, 1 = keep.
    pub keep: Option<&'a [u8]>,
    pub visible: Visible<'a>,
    /// Added to the scores in this order.
    pub biases: Vec<Bias<'a>>,
}

impl PackedAttention {
    /// What is added to the scores.
    ///
    /// # Errors
    /// If it does not broadcast to them.
    pub(super) fn biases<'a>(
        &self,
        additive: impl Iterator<Item = &'a Additive>,
        pass: &PackedPass,
        keys: usize,
    ) -> Result<Vec<Bias<'a>>> {
        let lengths = [pass.batch, self.config.n_heads, pass.seq, keys];
        additive.map(|added| added.checked(lengths)).collect()
    }

    /// Writes the call's output.
    pub(super) fn mix(&self, attended: &Attended, call: Call) {
        let config = &self.config;
        let shape = Shape {
            queries: call.pass.queries(),
            n_heads: config.n_heads,
            n_kv_heads: config.n_kv_heads,
            head_dim: config.head_dim,
        };
        let reach = Reach::of(&attended.visible);
        let scoring = Scoring {
            scale: config.scale as f32,
            soft_cap: config.soft_cap.map(|cap| cap as f32),
            biases: &attended.biases,
            keep: attended.keep,
            reach: &|query| reach.range(query, attended.keys),
        };
        let width = config.query_width();
        lend(MIXED_ROWS, call.pass.n_rows() * width, |mixed| {
            attend(
                self.arithmetic,
                &shape,
                &scoring,
                attended.query,
                attended.key_value,
                mixed,
                self.threads,
            );
            self.output
                .run(&Source::new(mixed, width), call.finishing, call.y);
        });
    }
}
