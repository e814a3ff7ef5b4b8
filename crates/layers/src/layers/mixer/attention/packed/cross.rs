//! Cross-attention, whose keys and values a cache keeps.

use candle_blocks_kernels::attention::{Heads, KeyValue, KeyValuePanels, Origin};
use candle_blocks_kernels::{memory::lend, rows::Source};
use candle_core::{Result, bail};

use super::mix::{AttentionOutput, MixInput, Scored};
use super::prepare::{ProjectedColumns, RotateBy};
use super::{AttentionCall, PackedAttention};
use crate::layers::linear::packed::PackedProduct;
use crate::layers::packed::pass::{PackedEncoderOutput, PackedPass};
use crate::layers::{KeySource, packed::with_elements, state::EncoderState};
use crate::ops::{Reach, Visible};

impl PackedAttention {
    /// Attends with the input's queries to the encoder output.
    pub(super) fn attend_cross(
        &self,
        query: &PackedProduct,
        key_value: &PackedProduct,
        state: Option<&mut EncoderState>,
        call: AttentionCall,
    ) -> Result<()> {
        let pass = call.pass;
        let encoder = pass.encoder_output(&self.config)?;
        let (dims, d_encoder) = (encoder.hidden_states.dims(), self.config.d_encoder);
        if dims.last() != Some(&d_encoder) {
            bail!("encoder_hidden_states: has shape {dims:?}, expected [.., {d_encoder}]");
        }
        let (q, kv) = (self.config.query_width(), self.config.key_width());
        let made;
        let key_value = match state {
            None => {
                made = self.project_encoder(key_value, encoder, pass)?;
                KeyValue::Projected {
                    keys: pass.keys(encoder.keys),
                    key: heads(&made, 2 * kv, 0),
                    value: heads(&made, 2 * kv, kv),
                }
            }
            Some(state) => {
                let shape = self.cache_shape(pass.batch());
                let panels = state.panels(shape, encoder.keys, || {
                    let made = self.project_encoder(key_value, encoder, pass)?;
                    let mut panels = vec![KeyValuePanels::new(shape.sequence); shape.batch];
                    let (key, value) = (heads(&made, 2 * kv, 0), heads(&made, 2 * kv, kv));
                    let rows = pass.keys(encoder.keys);
                    KeyValuePanels::append_all(&mut panels, self.cpu, rows, key, value);
                    Ok(panels)
                })?;
                KeyValue::Packed(panels)
            }
        };
        let alibi = self.alibi(
            pass,
            (KeySource::Encoder, encoder.keys),
            encoder.keep.as_ref(),
        )?;
        let additive = encoder.additive.as_ref();
        // The encoder output's keys have no other padding than that of its mask.
        let origins: Option<Vec<Origin>> = pass.sequences().map(|of| {
            let queries = of.origins.iter();
            queries.map(|&origin| Origin { key: 0, ..origin }).collect()
        });
        let scored = Scored {
            keys: encoder.keys,
            keep: encoder.mask_bytes.as_deref(),
            reach: Reach::of(&Visible::default()),
            origins: origins.as_deref(),
            biases: self.biases(
                alibi.as_deref().into_iter().chain(additive),
                pass,
                encoder.keys,
            )?,
        };
        let n = call.x.rows() * q;
        lend(super::PROJECTED_ROWS, n, |projected: &mut [f32]| {
            query.apply(call.x, None, projected);
            let columns = ProjectedColumns { q, kv: 0, width: q };
            let prepare = self.preparation(columns, RotateBy::Nothing, pass)?;
            prepare.rows(self.cpu, projected, 0);
            let attended = MixInput {
                queries: pass.queries(),
                query: heads(projected, q, 0),
                key_value,
                scored: &scored,
                relative: None,
                gate: None,
            };
            let output = AttentionOutput {
                residual: call.residual,
                y: call.y,
                cpu: self.cpu,
            };
            self.mix(&attended, output);
            Ok(())
        })
    }

    /// Projects the encoder output to keys and values `[batch · keys, 2 · key_width]`.
    fn project_encoder(
        &self,
        key_value: &PackedProduct,
        encoder: &PackedEncoderOutput,
        pass: PackedPass,
    ) -> Result<Vec<f32>> {
        let kv = self.config.key_width();
        let mut projected = vec![0.0; pass.batch() * encoder.keys * 2 * kv];
        with_elements("cross-attention", &encoder.hidden_states, |rows| {
            let rows = Source::new(rows, self.config.d_encoder);
            key_value.apply(&rows, None, &mut projected);
            Ok(())
        })?;
        let columns = ProjectedColumns {
            q: 0,
            kv,
            width: 2 * kv,
        };
        self.preparation(columns, RotateBy::Nothing, pass)?
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
