//! Attention of a sequence to itself.

use candle_blocks_kernels::attention::{Heads, KeyValue, KeyValuePanels, Sequences};
use candle_blocks_kernels::{memory::lend, rows::Source};
use candle_core::Result;

use super::mix::{Attended, Output, Scored};
use super::prepare::{Columns, Prepare, Turn};
use super::{Call, PackedAttention, groups::for_groups};
use crate::ops::{Reach, Visible};
use crate::packed::linear::{Finishing, PackedLinear};
use crate::{layers::Marked, packed::cache::PackedLayerCache};

/// What all sequences of a pass share.
struct Own<'a> {
    of: &'a PackedAttention,
    joined: &'a PackedLinear,
    columns: Columns,
    prepare: Prepare<'a>,
}

/// The rows of some of the pass's sequences.
struct Part<'a> {
    x: Source<'a>,
    /// The place of the first row in the pass.
    first_row: usize,
    queries: Sequences<'a>,
    keys: Keys<'a>,
    scored: &'a Scored<'a>,
    output: Output<'a>,
}

/// Where keys and values are.
enum Keys<'a> {
    /// In the projected rows themselves.
    Own,
    /// In a cache, to which those of the rows are appended.
    Behind(&'a mut KeyValuePanels),
}

impl PackedAttention {
    /// Self-attention from query, key and value in one projection, for positions after the cached ones.
    pub(super) fn attend_own(
        &self,
        joined: &PackedLinear,
        cache: Option<&mut PackedLayerCache>,
        call: Call,
    ) -> Result<()> {
        let (q, kv) = (self.config.query_width(), self.config.key_width());
        let columns = Columns {
            q,
            kv,
            width: q + 2 * kv,
        };
        let pass = call.pass;
        let keys = pass.seen() + pass.seq();
        let alibi = self.alibi(pass, (Marked::Sequence, keys), pass.keep())?;
        let additive = pass.additive();
        let scored = Scored {
            keys,
            keep: pass.marks()?,
            reach: Reach::of(&Visible {
                on_host: None,
                keep: None,
                visibility: self.config.visibility,
                window: self.config.window,
                first_query: pass.seen(),
            }),
            biases: self.biases(alibi.as_deref(), additive.as_deref(), pass, keys)?,
        };
        let own = Own {
            of: self,
            joined,
            columns,
            prepare: self.preparation(columns, Turn::Yes, pass)?,
        };
        let finishing = *call.finishing;
        match cache {
            None => for_groups(pass.queries(), self.cpu.threads, call.y, |group, y| {
                let rows = group.rows;
                own.apply(Part {
                    x: call.x.part(rows.clone()),
                    first_row: rows.start,
                    queries: group.queries,
                    keys: Keys::Own,
                    scored: &scored.part(group.sequences),
                    output: Output {
                        finishing: finishing.part(rows, self.output.d_out()),
                        y,
                        cpu: self.cpu.on(group.threads),
                    },
                });
            }),
            Some(cache) => {
                let shape = self.panel_shape(pass.batch());
                let panels = cache.own(shape, pass.seen(), self.config.window);
                own.apply(Part {
                    x: *call.x,
                    first_row: 0,
                    queries: pass.queries(),
                    keys: Keys::Behind(panels),
                    scored: &scored,
                    output: Output {
                        finishing,
                        y: call.y,
                        cpu: self.cpu,
                    },
                });
            }
        }
        Ok(())
    }
}

impl Own<'_> {
    fn apply(&self, part: Part) {
        let Columns { q, kv, width } = self.columns;
        let cpu = part.output.cpu;
        let n = part.x.rows() * width;
        lend(super::PROJECTED_ROWS, n, |projected: &mut [f32]| {
            let plain = &Finishing::NONE;
            self.joined.apply_on(cpu, &part.x, plain, projected);
            self.prepare.rows(cpu, projected, part.first_row);
            let heads = |offset| Heads {
                data: projected,
                row_stride: width,
                offset,
            };
            let (key, value) = (heads(q), heads(q + kv));
            let key_value = match part.keys {
                Keys::Own => KeyValue::Projected {
                    keys: part.queries,
                    key,
                    value,
                },
                Keys::Behind(panels) => {
                    panels.append(cpu, part.queries.longest(), key, value);
                    KeyValue::Packed(panels)
                }
            };
            let attended = Attended {
                queries: part.queries,
                query: heads(0),
                key_value,
                scored: part.scored,
            };
            self.of.mix(&attended, part.output);
        });
    }
}
