//! The names that a fixture gives its tensors, and the order in which a run produces them.

/// The suffix of a tensor's double-precision twin.
pub(super) const TWIN: &str = ".f64";
/// The prefix of every gradient.
const GRADIENT: &str = "grads.";
/// The gradient of the input; the only gradient that has one row per token.
pub(super) const INPUT_GRADIENT: &str = "grads.hidden_states";

/// What a whole model reads.
pub(super) const WHOLE: [&str; 3] = ["input_ids", "pixel_values", "input_features"];

/// Where in a run a tensor comes into being. The derived order is the order of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// The input of block 0, made by the model.
    Embeddings,
    /// A tensor of block `layer`.
    Block { layer: usize, point: Point },
    /// The output of the whole stack, behind its last norm.
    LastHiddenState,
    /// What the pooler makes of it.
    PoolerOutput,
    /// What the head makes of it.
    Logits,
}

/// Where in a block a tensor comes into being, in order of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Point {
    FeedForwardInput,
    FeedForwardOutput,
    Output,
}

impl Stage {
    /// Reads a stage's name; `None` for any other name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        match name {
            "embeddings" => return Some(Self::Embeddings),
            "last_hidden_state" => return Some(Self::LastHiddenState),
            "pooler_output" => return Some(Self::PoolerOutput),
            "logits" => return Some(Self::Logits),
            _ => {}
        }
        let (number, point) = name.strip_prefix("layers.")?.split_once('.')?;
        let layer: usize = number.parse().ok()?;
        // "01" and "+1" also parse; taking them would give block 1 two names.
        if layer.to_string() != number {
            return None;
        }
        let point = match point {
            "feed_forward.input" => Point::FeedForwardInput,
            "feed_forward.output" => Point::FeedForwardOutput,
            "output" => Point::Output,
            _ => return None,
        };
        Some(Self::Block { layer, point })
    }

    /// The number of its block; `None` behind all blocks.
    pub(super) fn layer(self) -> Option<usize> {
        match self {
            Self::Block { layer, .. } => Some(layer),
            Self::Embeddings | Self::LastHiddenState | Self::PoolerOutput | Self::Logits => None,
        }
    }
}

/// Whether a name is that of a gradient.
pub(super) fn is_gradient(name: &str) -> bool {
    name.starts_with(GRADIENT)
}

/// What a run starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// The input of block 0.
    Blocks,
    /// The input of a whole model.
    Model,
}

/// Whether a name is that of an input, rather than a result.
pub(super) fn is_input(name: &str) -> bool {
    [Start::Blocks, Start::Model]
        .iter()
        .any(|&start| starts_a_run(name, start))
}

/// Whether a name is that of a tensor which such a run reads; beside the input of block 0, that of the model only says
/// where it came from.
pub(super) fn starts_a_run(name: &str, start: Start) -> bool {
    match name {
        "hidden_states"
        | "attention_mask"
        | "position_ids"
        | "encoder_hidden_states"
        | "encoder_attention_mask"
        | "grad_output" => true,
        "token_type_ids" | "grad_logits" => start == Start::Model,
        _ => start == Start::Model && WHOLE.contains(&name),
    }
}

/// Whether a tensor has one row per token, so that a mask applies to it.
///
/// A parameter's gradient sums over all rows, even where its shape happens to begin like the mask's.
pub(super) fn is_per_token(name: &str) -> bool {
    match Stage::parse(name) {
        Some(Stage::PoolerOutput) => false,
        _ => !is_gradient(name) || name == INPUT_GRADIENT,
    }
}

/// What orders names as a reader would: runs of digits by their number, so that layer 2 precedes layer 10.
pub(super) fn natural_key(name: &str) -> impl Ord + use<> {
    let (mut parts, mut rest) = (Vec::new(), name);
    while let Some(first) = rest.chars().next() {
        let n_digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        // Without zeros in front the longer number is the larger.
        let number = rest[..n_digits].trim_start_matches('0').to_string();
        let character = if n_digits > 0 { '0' } else { first };
        parts.push((character, number.len(), number));
        rest = &rest[n_digits.max(first.len_utf8())..];
    }
    (parts, name.to_string()) // equal but for leading zeros: any fixed order will do
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_sort_in_order_of_execution_not_of_spelling() {
        let mut names = vec![
            "last_hidden_state",
            "layers.10.output",
            "layers.10.feed_forward.output",
            "layers.2.output",
            "layers.10.feed_forward.input",
        ];
        names.sort_by_key(|name| Stage::parse(name));
        assert_eq!(
            names,
            [
                "layers.2.output",
                "layers.10.feed_forward.input",
                "layers.10.feed_forward.output",
                "layers.10.output",
                "last_hidden_state",
            ]
        );
    }

    #[test]
    fn a_layer_has_one_spelling() {
        for name in ["layers.01.output", "layers.+1.output", "layers..output"] {
            assert_eq!(Stage::parse(name), None, "{name}");
        }
        let too_large = format!("layers.{}0.output", usize::MAX);
        assert_eq!(Stage::parse(&too_large), None);
    }

    #[test]
    fn digits_inside_names_are_ordered_by_value() {
        let mut names = ["h.10.w", "h.2.w", "h.2.b", "é.1", "h.02.w", "h", ""];
        names.sort_by_key(|name| natural_key(name));
        assert_eq!(
            names,
            ["", "h", "h.2.b", "h.02.w", "h.2.w", "h.10.w", "é.1"]
        );
    }

    #[test]
    fn only_the_inputs_gradient_has_a_row_per_token() {
        assert!(is_per_token("layers.0.output"));
        assert!(is_per_token("grads.hidden_states"));
        assert!(!is_per_token("grads.h.0.mlp.c_fc.weight"));
    }
}
