//! Attention to an encoder's output, whose keys and values a cache keeps.

use candle_core::{Result, bail};

use super::{
    Call, PackedAttention,
    mix::{Attended, Output, Scored},
    prepare::{Columns, Turn},
};
use crate::{
    config::Position,
    cpu::{
        attention::{Heads, KeyValue, KeyValuePanels},
        scratch::lend,
        source::Source,
    },
    layers::alibi_bias,
    ops::{Reach, Visible},
    packed::{
        cache::PackedLayerCache,
        linear::{Finishing, PackedLinear},
        pass::{Additive, PackedPass, PassMemory},
        with_elements,
    },
};

impl PackedAttention {
    /// Attention of the input's queries to the pass's memory.
    pub(super) fn attend_memory(
        &self,
        query: &PackedLinear,
        key_value: &PackedLinear,
        cache: Option<&mut PackedLayerCache>,
        call: Call,
    ) -> Result<()> {
        let pass = call.pass;
        let memory = pass.memory()?;
        let (dims, d_memory) = (memory.hidden_states.dims(), self.config.d_memory);
        if dims.last() != Some(&d_memory) {
            bail!("encoder_hidden_states: has shape {dims:?}, expected [.., {d_memory}]");
        }
        let (q, kv) = (self.config.query_width(), self.config.key_width());
        let made;
        let key_value = match cache {
            None => {
                made = self.project_memory(key_value, memory, pass)?;
                KeyValue::Projected {
                    keys: pass.keys(memory.keys),
                    key: heads(&made, 2 * kv, 0),
                    value: heads(&made, 2 * kv, kv),
                }
            }
            Some(cache) => {
                let shape = self.panel_shape(pass.batch);
                let panels = cache.memory(shape, memory.keys, || {
                    let made = self.project_memory(key_value, memory, pass)?;
                    let mut panels = KeyValuePanels::new(shape);
                    let (key, value) = (heads(&made, 2 * kv, 0), heads(&made, 2 * kv, kv));
                    panels.append(memory.keys, key, value, self.threads);
                    Ok(panels)
                })?;
                KeyValue::Packed(panels)
            }
        };
        let alibi = match &self.config.position {
            Position::Alibi(alibi) => {
                let keep = memory.keep.as_ref();
                let bias = alibi_bias(alibi, self.config.n_heads, memory.keys, keep)?;
                Some(Additive::new(&bias)?)
            }
            _ => None,
        };
        let scored = Scored {
            keys: memory.keys,
            keep: memory.keep_elements.as_deref(),
            reach: Reach::of(&Visible::default()),
            biases: self.biases(alibi.iter().chain(&memory.additive), pass, memory.keys)?,
        };
        lend(super::PROJECTED_ROWS, call.x.rows() * q, |projected| {
            query.run(call.x, &Finishing::NONE, projected);
            let columns = Columns { q, kv: 0, width: q };
            let prepare = self.preparation(columns, Turn::No, pass)?;
            prepare.rows(projected, 0);
            let attended = Attended {
                queries: pass.queries(),
                query: heads(projected, q, 0),
                key_value,
                scored: &scored,
            };
            let output = Output {
                finishing: *call.finishing,
                y: call.y,
                threads: self.threads,
            };
            self.mix(&attended, output);
            Ok(())
        })
    }

    /// The keys and values `[batch · keys, 2 · key_width]` of the memory.
    fn project_memory(
        &self,
        key_value: &PackedLinear,
        memory: &PassMemory,
        pass: &PackedPass,
    ) -> Result<Vec<f32>> {
        let kv = self.config.key_width();
        let mut projected = vec![0.0; pass.batch * memory.keys * 2 * kv];
        with_elements("cross-attention", &memory.hidden_states, |rows| {
            let rows = Source::new(rows, self.config.d_memory);
            key_value.run(&rows, &Finishing::NONE, &mut projected);
            Ok(())
        })?;
        let columns = Columns {
            q: 0,
            kv,
            width: 2 * kv,
        };
        self.preparation(columns, Turn::No, pass)?
            .rows(&mut projected, 0);
        Ok(projected)
    }
}

/// The heads in rows of `row_stride` columns, starting at column `offset`.
fn heads(data: &[f32], row_stride: usize, offset: usize) -> Heads<'_> {
    Heads {
        data,
        row_stride,
        offset,
    }
}
