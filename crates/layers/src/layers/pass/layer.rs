//! The current layer's state in a pass, and the keys and values that later layers share.

use candle_core::{Result, bail};

use super::Pass;
use crate::layers::own::zamba::SharedTransformer;
use crate::{config::AttentionConfig, ops::Value};

/// The current layer's state in a pass.
#[derive(Clone, Default)]
#[doc(hidden)]
pub struct Layer {
    /// The layer's index, if later layers attend to its keys.
    pub shared_as: Option<usize>,
    /// The per-layer input.
    pub input: Option<Value>,
    /// The transformer that the layer runs before its mixer, and the number of this use.
    pub(crate) transformer: Option<(SharedTransformer, usize)>,
    /// True if the layer computes output only for each sequence's last position.
    pub only_last: bool,
}

/// The keys and values for a pass's queries.
#[derive(Clone)]
#[doc(hidden)]
pub struct KeysAndValues {
    pub key: Value,
    pub value: Value,
    /// The number of positions in each sequence.
    pub keys: usize,
}

impl Pass<'_> {
    /// Begins a layer.
    pub fn begin(&self, layer: Layer) {
        self.layer.replace(layer);
    }

    /// Returns the per-layer input.
    ///
    /// # Errors
    /// If the layer has none.
    pub fn layer_input(&self) -> Result<Value> {
        let input = self.layer.borrow().input.clone();
        let none = "layer input: the block needs a per-layer input, which its stack computes; run the block in its stack";
        self.requested_rows(input.ok_or_else(|| candle_core::Error::msg(none))?)
    }

    /// Returns the transformer that the layer runs before its mixer, and the number of this use.
    ///
    /// # Errors
    /// If the layer has none.
    pub(crate) fn transformer(&self) -> Result<(SharedTransformer, usize)> {
        let of_layer = self.layer.borrow().transformer.clone();
        let none = "transformer: the block runs a transformer that its stack's blocks share; run the block in its stack";
        of_layer.ok_or_else(|| candle_core::Error::msg(none))
    }

    /// Returns the pass for the positions whose output the current layer computes: this pass, or the pass for only
    /// the last positions.
    pub fn requested(&self) -> &Self {
        match &self.last {
            Some(last) if self.layer.borrow().only_last => last,
            _ => self,
        }
    }

    /// Selects the rows at the requested positions.
    pub fn requested_rows(&self, rows: Value) -> Result<Value> {
        match self.requested().seq == self.seq {
            true => Ok(rows),
            false => rows.last_of_each(self.seq),
        }
    }

    /// Keeps the current layer's keys and values, if later layers attend to them.
    pub fn share_keys(&self, of: &KeysAndValues) {
        if let Some(layer) = self.layer.borrow().shared_as {
            self.put_shared(layer, of.clone());
        }
    }

    /// Keeps a layer's keys and values.
    pub fn put_shared(&self, layer: usize, of: KeysAndValues) {
        self.shared.borrow_mut().push((layer, of));
    }

    /// Returns a layer's keys and values, if it has run and shares them.
    pub fn shared_of(&self, layer: usize) -> Option<KeysAndValues> {
        let shared = self.shared.borrow();
        let found = shared.iter().find(|(of, _)| *of == layer);
        found.map(|(_, keys)| keys.clone())
    }

    /// Returns the keys and values from the earlier layer that an attention reads.
    ///
    /// # Errors
    /// If that layer has not run.
    pub fn shared_keys(&self, config: &AttentionConfig) -> Result<KeysAndValues> {
        match config.shared_keys.and_then(|layer| self.shared_of(layer)) {
            Some(shared) => Ok(shared),
            None => bail!(
                "attention: keys and values come from layer {:?}, which has not run; run the block in its stack",
                config.shared_keys
            ),
        }
    }
}
