//! Attention and Mamba-2 side by side on the same input.

use candle_blocks_kernels::memory::LargePages;
use candle_core::Result;

use super::layer::{MixerLayer, passes};
use super::{Attention, Mamba2, Mixer};
use crate::config::{HybridHeadsConfig, MixerFacts, getters};
use crate::layers::ParameterSource;
use crate::layers::packed::Packing;
use crate::layers::visit::parts;
use crate::layers::{pass::Pass, state::LayerState};
use crate::ops::Value;

/// Attention and Mamba-2 side by side, whose outputs are added. [`HybridHeadsConfig`] has the formula.
///
/// ```
/// use candle_blocks::config::{AttentionConfig, HybridHeadsConfig, Mamba2Config};
/// use candle_blocks::layers::HybridHeads;
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// let parameters = VarMap::new();
/// let vb = VarBuilder::from_varmap(&parameters, DType::F32, &Device::Cpu);
/// let attention = AttentionConfig::new(8, 2)?.causal();
/// let heads = HybridHeads::new(&HybridHeadsConfig::new(attention, Mamba2Config::new(8, [4, 4], 6)), vb)?;
/// let x = Tensor::randn(0f32, 1., (2, 5, 8), &Device::Cpu)?; // [batch, seq, d_model]
/// assert_eq!(heads.forward(&x)?.dims(), [2, 5, 8]);
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct HybridHeads {
    attention: Attention,
    mamba: Mamba2,
    /// The factors on the outputs of attention and Mamba-2.
    multipliers: [f64; 2],
}

impl HybridHeads {
    /// Creates the layer with the attention's parameters from `vb`, under the names in [`Attention::new`], and Mamba-2's
    /// from `mamba` in it, under those in [`Mamba2::new`].
    ///
    /// # Errors
    /// If the configuration is invalid, or a parameter is missing or has another shape.
    pub fn new<'p>(config: &HybridHeadsConfig, vb: impl Into<ParameterSource<'p>>) -> Result<Self> {
        let vb = vb.into();
        config.validate()?;
        Ok(Self {
            mamba: Mamba2::new(&config.mamba, vb.pp(super::MAMBA))?,
            attention: Attention::new(&config.attention, vb)?,
            multipliers: [config.attention_multiplier, config.mamba_multiplier],
        })
    }

    getters! {
        /// The attention.
        attention(&self) -> &Attention => &self.attention;
        /// Mamba-2.
        mamba(&self) -> &Mamba2 => &self.mamba;
    }

    /// Returns the configuration.
    pub fn config(&self) -> HybridHeadsConfig {
        let attention = self.attention.config().clone();
        let heads = HybridHeadsConfig::new(attention, *self.mamba.config());
        heads.with_multipliers(self.multipliers)
    }

    fn packed(&self, packing: &Packing) -> Result<Self> {
        Ok(Self {
            attention: self.attention.packed(packing)?,
            mamba: self.mamba.packed(&packing.at(super::MAMBA))?,
            multipliers: self.multipliers,
        })
    }
}

impl MixerLayer for HybridHeads {
    fn name(&self) -> &'static str {
        "hybrid heads"
    }

    fn facts(&self) -> MixerFacts {
        self.mamba.facts().after(Some(self.attention.config()))
    }

    fn is_packed(&self) -> bool {
        self.mamba.is_packed()
    }

    fn packed_mixer(&self, packing: &Packing) -> Result<Mixer> {
        Ok(Mixer::HybridHeads(self.packed(packing)?.into()))
    }

    fn new_state(&self, pages: &LargePages) -> LayerState {
        LayerState::pair(self.attention.new_state(pages), self.mamba.new_state(pages))
    }

    fn check_state(&self, state: &LayerState, batch: usize) -> Result<()> {
        let [keys, states] = state.check_pair()?;
        self.attention.check_state(keys, batch)?;
        self.mamba.check_state(states, batch)
    }

    fn apply(
        &self,
        x: &Value,
        pass: &Pass,
        state: Option<&mut LayerState>,
        residual: Option<&Value>,
    ) -> Result<Value> {
        let (keys, states) = state.map(LayerState::as_pair).transpose()?.unzip();
        let attended = self.attention.apply(x, None, pass, keys, None)?;
        let mixed = self.mamba.apply(x, pass, states, None)?;
        let [attention, mamba] = self.multipliers;
        // transformers adds the attention's output to Mamba-2's, and the sum to the residual.
        let sum = attended.multiplied(attention)?;
        sum.added_to(Some(&mixed.multiplied(mamba)?))?
            .added_to(residual)
    }
}

parts!(HybridHeads: Self { attention, mamba, .. } => [attention] [mamba]);

passes!(HybridHeads);
