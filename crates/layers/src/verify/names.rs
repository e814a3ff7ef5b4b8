//! The names of a fixture's tensors, and the order in which a run produces them.

/// The suffix of a tensor's double-precision twin.
pub(super) const TWIN: &str = ".f64";
/// The prefix of every gradient.
const GRADIENT: &str = "grads.";
/// The input's gradient, the only gradient with one row per token.
pub(super) const INPUT_GRADIENT: &str = "grads.hidden_states";

/// A whole model's inputs.
pub(super) const WHOLE: [&str; 4] = [
    "input_ids",
    "pixel_values",
    "input_features",
    "decoder_input_ids",
];

/// The point in a run that produces a tensor. The derived order is the execution order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stage {
    stack: StackOrder,
    at: At,
}

/// The stack in a model that produces a tensor, in execution order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StackOrder {
    /// An encoder, which runs before the decoder.
    Encoder,
    /// The only stack; with two, the decoder or the text tower.
    Own,
    /// The vision tower.
    Vision,
    /// Both stacks.
    Both,
}

/// The point in a stack that produces a tensor, in execution order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum At {
    /// The input to block 0, computed by the model.
    Embeddings,
    /// A tensor in block `layer`.
    Block { layer: usize, point: Point },
    /// The whole stack's output, after its final norm.
    LastHiddenState,
    /// The pooler's output.
    PoolerOutput,
    /// The head's output.
    Logits,
    /// A text's vector in the space shared by texts and images.
    TextEmbeds,
    /// An image's vector in that space.
    ImageEmbeds,
    /// The similarities between images and texts.
    LogitsPerImage,
}

/// The point in a block that produces a tensor, in execution order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Point {
    FeedForwardInput,
    FeedForwardOutput,
    Output,
}

impl Stage {
    /// Parses a stage's name; `None` for any other name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let both = |at| Some((StackOrder::Both, at));
        let two_stacks = match name {
            "encoder_last_hidden_state" => Some((StackOrder::Encoder, At::LastHiddenState)),
            "text_embeds" => both(At::TextEmbeds),
            "image_embeds" => both(At::ImageEmbeds),
            "logits_per_image" => both(At::LogitsPerImage),
            _ => None,
        };
        if let Some((stack, at)) = two_stacks {
            return Some(Self { stack, at });
        }
        let in_stack = |stack, start| name.strip_prefix(start).map(|name| (stack, name));
        let (stack, name) = in_stack(StackOrder::Encoder, "encoder.")
            .or(in_stack(StackOrder::Vision, "vision."))
            .unwrap_or((StackOrder::Own, name));
        let at = At::parse(name)?;
        // The encoder's last hidden state has its own name.
        let is_spelt_otherwise = (stack, at) == (StackOrder::Encoder, At::LastHiddenState);
        (!is_spelt_otherwise).then_some(Self { stack, at })
    }

    /// Returns the block index, or `None` after all blocks.
    pub(super) fn layer(self) -> Option<usize> {
        match self.at {
            At::Block { layer, .. } => Some(layer),
            _ => None,
        }
    }
}

impl At {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "embeddings" => return Some(Self::Embeddings),
            "last_hidden_state" => return Some(Self::LastHiddenState),
            "pooler_output" => return Some(Self::PoolerOutput),
            "logits" => return Some(Self::Logits),
            _ => {}
        }
        let (number, point) = name.strip_prefix("layers.")?.split_once('.')?;
        let layer: usize = number.parse().ok()?;
        // "01" and "+1" also parse; accepting them would give block 1 two names.
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
}

/// Tells whether a name is a gradient's.
pub(super) fn is_gradient(name: &str) -> bool {
    name.starts_with(GRADIENT)
}

/// The input that a run starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// The input to block 0.
    Blocks,
    /// A whole model's input.
    Model,
}

/// Tells whether a name is an input's, rather than a result's.
pub(super) fn is_input(name: &str) -> bool {
    [Start::Blocks, Start::Model]
        .iter()
        .any(|&start| starts_a_run(name, start))
}

/// Tells whether such a run reads the tensor with this name. If the input to block 0 is present, the model's input
/// is not read: it only documents the origin.
pub(super) fn starts_a_run(name: &str, start: Start) -> bool {
    match name {
        "hidden_states"
        | "attention_mask"
        | "position_ids"
        | "encoder_hidden_states"
        | "encoder_attention_mask"
        | "grad_output" => true,
        "token_type_ids" | "decoder_attention_mask" | "grad_logits" => start == Start::Model,
        _ => start == Start::Model && WHOLE.contains(&name),
    }
}

/// Tells whether a tensor has one row per token, so that a mask applies to it.
///
/// A parameter gradient sums over all rows, even if its shape happens to begin like the mask's.
pub(super) fn is_per_token(name: &str) -> bool {
    match Stage::parse(name) {
        Some(Stage {
            stack: StackOrder::Both,
            ..
        }) => false,
        Some(Stage {
            at: At::PoolerOutput,
            ..
        }) => false,
        _ => !is_gradient(name) || name == INPUT_GRADIENT,
    }
}

/// Returns a key for sorting names naturally: digits compare by value, so that layer 2 precedes layer 10.
pub(super) fn natural_key(name: &str) -> impl Ord + use<> {
    let (mut parts, mut rest) = (Vec::new(), name);
    while let Some(first) = rest.chars().next() {
        let n_digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        // Without leading zeros the longer digit string is the larger number.
        let number = rest[..n_digits].trim_start_matches('0').to_string();
        let character = if n_digits > 0 { '0' } else { first };
        parts.push((character, number.len(), number));
        rest = &rest[n_digits.max(first.len_utf8())..];
    }
    (parts, name.to_string()) // equal except for leading zeros: in any fixed order
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
    fn an_encoder_runs_before_its_decoder_and_two_towers_before_what_they_share() {
        let mut names = vec![
            "logits_per_image",
            "vision.layers.0.output",
            "logits",
            "layers.0.output",
            "embeddings",
            "encoder_last_hidden_state",
            "encoder.layers.10.output",
        ];
        let ordered: Vec<&str> = names.iter().rev().copied().collect();
        names.sort_by_key(|name| Stage::parse(name));
        assert_eq!(names, ordered);
        assert_eq!(Stage::parse("encoder.last_hidden_state"), None);
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
