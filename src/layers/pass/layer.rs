//! What a pass knows of the layer that runs, and what layers leave for later ones.

use candle_core::{Result, bail};

use super::Pass;
use crate::{config::AttentionConfig, ops::Value};

/// What a pass knows of the layer that runs.
#[derive(Clone, Default)]
pub(crate) struct Layer {
    /// Its number, if later layers attend to its keys.
    pub shared_as: Option<usize>,
    /// The input that it has for itself.
    pub input: Option<Value>,
    /// Whether it computes no output but that of the pass's last positions.
    pub asks_last: bool,
}

/// What queries of a pass attend to.
#[derive(Clone)]
pub(crate) struct KeysAndValues {
    pub key: Value,
    pub value: Value,
    /// Positions of each sequence.
    pub keys: usize,
}

impl Pass<'_> {
    /// Begins a layer.
    pub fn begin(&self, layer: Layer) {
        self.layer.replace(layer);
    }

    /// The input that the layer has for itself.
    ///
    /// # Errors
    /// If it has none.
    pub fn layer_input(&self) -> Result<Value> {
        let input = self.layer.borrow().input.clone();
        let none = "layer input: the block has an input for itself, which its stack makes; run the block there";
        self.asked_rows(input.ok_or_else(|| candle_core::Error::msg(none))?)
    }

    /// The pass of the positions whose output is requested of the layer that runs: this one, or that of the last positions.
    pub fn asked(&self) -> &Self {
        match &self.last {
            Some(last) if self.layer.borrow().asks_last => last,
            _ => self,
        }
    }

    /// Among the rows of all positions, those of the requested ones.
    pub fn asked_rows(&self, rows: Value) -> Result<Value> {
        match self.asked().seq == self.seq {
            true => Ok(rows),
            false => rows.last_of_each(self.seq),
        }
    }

    /// Keeps the keys and values of the layer that runs, if later ones attend to them.
    pub fn share_keys(&self, of: &KeysAndValues) {
        if let Some(layer) = self.layer.borrow().shared_as {
            self.put_shared(layer, of.clone());
        }
    }

    /// Keeps keys and values of a layer.
    pub fn put_shared(&self, layer: usize, of: KeysAndValues) {
        self.shared.borrow_mut().push((layer, of));
    }

    /// The keys and values of a layer, if it has run and shares them.
    pub fn shared_of(&self, layer: usize) -> Option<KeysAndValues> {
        let shared = self.shared.borrow();
        let found = shared.iter().find(|(of, _)| *of == layer);
        found.map(|(_, keys)| keys.clone())
    }

    /// The keys and values of the earlier layer that an attention reads.
    ///
    /// # Errors
    /// If that has not run.
    pub fn shared_keys(&self, config: &AttentionConfig) -> Result<KeysAndValues> {
        match config.shared_keys.and_then(|layer| self.shared_of(layer)) {
            Some(shared) => Ok(shared),
            None => bail!(
                "attention: the keys and values are those of layer {:?}, which has not run; run the block in its stack",
                config.shared_keys
            ),
        }
    }
}
