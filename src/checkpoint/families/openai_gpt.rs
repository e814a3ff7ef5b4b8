//! The first GPT: GPT-2's blocks with norms after each residual. BERT's order, GPT-2's names.
//!
//! transformers' `OpenAIGPTModel`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/openai/modeling_openai.py>

use super::gpt2;
use super::prelude::*;

pub(super) fn family() -> Family {
    Family {
        stack_rules: vec![],
        ..gpt2::family()
    }
    .named("openai-gpt")
    .read_by(config)
    .initialization(initializer_range::normal)
    .replace_end_rules([
        Rule::linear("embeddings.word", &["tokens_embed"]),
        Rule::linear("embeddings.position", &["positions_embed"]),
    ])
    .outside(&["*tokens_embed.*", "*positions_embed.*"])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    json.only("is_causal", &[json!(true)])?; // transformers' class does not read it
    // Its names of activations are its own: "gelu" is the tanh variant.
    json.only("afn", &["gelu", "relu", "silu", "swish"].map(Value::from))?;
    let activation = match json.text(&["afn"])?.as_deref() {
        Some("relu") => Activation::Relu,
        Some("silu" | "swish") => Activation::Silu,
        _ => Activation::GeluTanh,
    };
    let mut block = gpt2::block(&json.without("n_inner").without("activation_function"))?;
    block.feed_forward.activation = activation;
    block.attention_placement = NormPlacement::Post;
    block.feed_forward_placement = NormPlacement::Post;
    let n_blocks = json.n_blocks(&["n_layer", "num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, None))
}
