//! Cross-attention, whose keys and values a cache keeps.

use candle_blocks_kernels::attention::{Heads, KeyValue, KeyValuePanels};
use candle_blocks_kernels::{memory::lend, rows::Source};
use candle_core::{Result, bail};

use super::mix::{Attended, Output, Scored};
use super::prepare::{Columns, Turn};
use super::{Call, PackedAttention};
use crate::layers::packed::cache::PackedLayerCache;
use crate::layers::packed::linear::Product;
use crate::layers::packed::pass::{PackedMemory, PackedPass};
use crate::layers::{Marked, packed::with_elements};
use crate::ops::{Reach, Visible};

impl PackedAttention {
    /// Attends with the input's queries to the encoder output.
    pub(super) fn attend_memory(
        &self,
        query: &Product,
        key_value: &Product,
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
                let shape = self.panel_shape(pass.batch());
                let panels = cache.memory(shape, memory.keys, || {
                    let made = self.project_memory(key_value, memory, pass)?;
                    let mut panels = KeyValuePanels::new(shape);
                    let (key, value) = (heads(&made, 2 * kv, 0), heads(&made, 2 * kv, kv));
                    panels.append(self.cpu, memory.keys, key, value);
                    Ok(panels)
                })?;
                KeyValue::Packed(panels)
            }
        };
        let alibi = self.alibi(pass, (Marked::Memory, memory.keys), memory.keep.as_ref())?;
        let additive = memory.additive.as_ref();
        let scored = Scored {
            keys: memory.keys,
            keep: memory.marks.as_deref(),
            reach: Reach::of(&Visible::default()),
            biases: self.biases([alibi.as_deref(), additive], pass, memory.keys)?,
        };
        let n = call.x.rows() * q;
        lend(super::PROJECTED_ROWS, n, |projected: &mut [f32]| {
            query.apply(call.x, None, projected);
            let columns = Columns { q, kv: 0, width: q };
            let prepare = self.preparation(columns, Turn::No, pass)?;
            prepare.rows(self.cpu, projected, 0);
            let attended = Attended {
                queries: pass.queries(),
                query: heads(projected, q, 0),
                key_value,
                scored: &scored,
            };
            let output = Output {
                residual: call.residual,
                y: call.y,
                cpu: self.cpu,
            };
            self.mix(&attended, output);
            Ok(())
        })
    }

    /// Projects the encoder output to keys and values `[batch · keys, 2 · key_width]`.
    fn project_memory(
        &self,
        key_value: &Product,
        memory: &PackedMemory,
        pass: PackedPass,
    ) -> Result<Vec<f32>> {
        let kv = self.config.key_width();
        let mut projected = vec![0.0; pass.batch() * memory.keys * 2 * kv];
        with_elements("cross-attention", &memory.hidden_states, |rows| {
            let rows = Source::new(rows, self.config.d_memory);
            key_value.apply(&rows, None, &mut projected);
            Ok(())
        })?;
        let columns = Columns {
            q: 0,
            kv,
            width: 2 * kv,
        };
        self.preparation(columns, Turn::No, pass)?
            .rows(self.cpu, &mut projected, 0);
        Ok(projected)
    }
}

/// Returns the heads in rows with `row_stride` columns, starting at column `offset`.
fn heads(data: &[f32], row_stride: usize, offset: usize) -> Heads<'_> {
    Heads {
        data,
        row_stride,
        offset,
    }
}
