//! Attention of a sequence to itself.

use candle_core::Result;

use super::{
    Call, PackedAttention,
    mix::Attended,
    prepare::{Columns, Turn},
};
use crate::{
    config::Position,
    cpu::{
        attention::{Heads, KeyValue},
        scratch::lend,
    },
    ops::Visible,
    packed::{
        cache::PackedLayerCache,
        linear::{Finishing, PackedLinear},
    },
};

impl PackedAttention {
    /// Of projections side by side, behind the cached positions.
    pub(super) fn attend_own(
        &self,
        joined: &PackedLinear,
        cache: Option<&mut PackedLayerCache>,
        call: Call,
    ) -> Result<()> {
        let (q, kv) = (self.config.query_width(), self.config.key_width());
        let (width, pass) = (q + 2 * kv, call.pass);
        lend(super::PROJECTED_ROWS, call.x.rows() * width, |projected| {
            joined.run(call.x, &Finishing::NONE, projected);
            self.prepare(projected, Columns { q, kv, width }, Turn::Yes, pass)?;
            let heads = |offset| Heads {
                data: projected,
                row_stride: width,
                offset,
            };
            let (key, value) = (heads(q), heads(q + kv));
            let key_value = match cache {
                None => KeyValue::Projected {
                    keys: pass.queries(),
                    key,
                    value,
                },
                Some(cache) => {
                    let panels = cache.own(self.panel_shape(pass.batch));
                    if let Some(window) = self.config.window {
                        panels.drop_before(pass.seen.saturating_sub(window - 1));
                    }
                    panels.append(pass.seq, key, value);
                    KeyValue::Packed(panels)
                }
            };
            let keys = pass.seen + pass.seq;
            let keep = pass.keep(keys)?;
            let alibi = match &self.config.position {
                Position::Alibi(alibi) => Some(pass.alibi(alibi, self.config.n_heads, keys)?),
                _ => None,
            };
            let additive = alibi.as_deref().into_iter().chain(&pass.additive);
            let attended = Attended {
                query: heads(0),
                key_value,
                keys,
                keep,
                visible: Visible {
                    keep: None,
                    visibility: self.config.visibility,
                    window: self.config.window,
                    first_query: pass.seen,
                },
                biases: self.biases(additive, pass, keys)?,
            };
            self.mix(&attended, call);
            Ok(())
        })
    }
}
