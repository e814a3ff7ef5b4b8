//! The decoder of an encoder-decoder as a language model: transformers' `BartForCausalLM`, `WhisperForCausalLM` and others.
//!
//! These classes have the decoder's cross-attention too, and compute it only if they are given an encoder's output:
//! <https://github.com/huggingface/transformers/blob/v5.24.0/src/transformers/models/bart/modeling_bart.py>

use super::prelude::*;

/// The suffix of these classes' names.
const CLASS: &str = "ForCausalLM";

/// Returns whether a class has only the decoder, if `first` is the model's first stack.
pub(in crate::checkpoint) fn is_of_decoder(class: &str, first: StackPart) -> bool {
    first == StackPart::Decoder && class.ends_with(CLASS)
}

impl Family {
    /// Returns the decoder's table without its cross-attention, whose tensors are ignored.
    pub(in crate::checkpoint) fn alone(self) -> Self {
        let is_cross = |role: &str| role.starts_with("cross_attention");
        let cross_rules = self.block_rules.iter().filter(|rule| is_cross(&rule.role));
        let names = cross_rules.flat_map(|rule| rule.weight.iter().chain(&rule.bias));
        let names: Vec<String> = names.map(|name| format!("*.{name}")).collect();
        let mut family = self.change(BlockChange::new(json!({"cross_attention": null})));
        family.block_rules.retain(|rule| !is_cross(&rule.role));
        family.ignored.extend(names);
        family.joined = None;
        // The heads of these classes have no bias.
        family.head(HeadTask::CausalLm, causal_lm)
    }
}
