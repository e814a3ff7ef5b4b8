//! Text encoders of models whose other parts are not loaded, Splinter, I-BERT, and the text of GIT, LUKE and VisualBERT: BERT's
//! or RoBERTa's blocks and embeddings under other model types.
//!
//! transformers' `AlignTextModel`, `ChineseCLIPTextModel`, `ClapTextModel`, `BridgeTowerTextModel`, `SplinterModel`, `BlipTextModel`,
//! `IBertModel`, `GitModel`, `LukeModel` and `VisualBertModel`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/align/modeling_align.py>

use super::encoder::*;
use super::prelude::*;
use super::{bert, roberta};

pub(super) fn families() -> Vec<Family> {
    let text = |name: &str| encoder(bert::table().named(name).prefixes(&["text_model.", ""]));
    let blip = text("blip_text_model")
        .read_by(|json| {
            // The class for language models is the only one that masks.
            let classes = json.texts(&["architectures"])?.unwrap_or_default();
            let is_decoder = classes.iter().any(|class| class.ends_with("LMHeadModel"));
            bert::config(&json.with("is_decoder", is_decoder))
        })
        .embeddings(untyped)
        .ignored(&["*.crossattention.*"]);
    let git = encoder(bert::encoder("git", "git."))
        .read_by(|json| bert::config(&json.with("is_decoder", true)))
        .embeddings(untyped)
        .end_rules([Rule::linear("causal_lm.output", &["output"])])
        .head(HeadTask::CausalLm, |json, _| {
            next_token(language_model(json)?.with_bias(true))
        })
        .outside(&["image_encoder.*", "visual_projection.*"])
        .outside(&["img_temporal_embedding.*", "output.*"]);
    let ibert = roberta::family("ibert", "ibert.")
        .read_by(|json| {
            json.only("quant_mode", &[json!(false)])?;
            bert::config(&json.without("is_decoder"))
        })
        .ignored(&["*.x_min", "*.x_max", "*_scaling_factor", "*_integer"])
        .ignored(&["*.shift"]);
    vec![
        text("align_text_model"),
        text("chinese_clip_text_model"),
        text("visual_bert")
            .prefixes(&["visual_bert.", ""])
            .outside(&["additional_layer.*"]),
        Family {
            pooler: None,
            ..text("splinter").prefixes(&["splinter.", ""])
        },
        encoder(roberta::family("clap_text_model", "text_model.")),
        roberta::family("bridgetower_text_model", "text_model.").without_heads(),
        blip,
        git,
        ibert,
        luke(),
    ]
}

/// Returns the table of a class that is always an encoder.
pub(super) fn encoder(table: Family) -> Family {
    table
        .without_heads()
        .read_by(|json| bert::config(&json.without("is_decoder").without("add_cross_attention")))
}

/// Returns BERT's embeddings without token types.
fn untyped(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    let embeddings = padded_token_embeddings(json, stack)?
        .with_positions(json.size(&["max_position_embeddings"])?)
        .with_norm(stack.blocks[0].norm)
        .with_dropout(hidden_dropout(json)?);
    Ok(embeddings.into())
}

/// The table for LUKE without entities: words attend to words as in RoBERTa.
fn luke() -> Family {
    encoder(roberta::family("luke", "luke."))
        .end_rules([Rule::linear(
            "sequence_classification.output",
            &["classifier"],
        )])
        .head(HeadTask::MaskedLm, |json, stack| {
            // Only the entities' output layer is tied.
            word_by_gelu(&json.with("tie_word_embeddings", false), stack)
        })
        .head(HeadTask::SequenceClassification, pooled_of_encoder)
        .head(HeadTask::TokenClassification, |json, _| {
            token(json, classifier_dropout(json)?)
        })
        .head(HeadTask::QuestionAnswering, question_answering)
        .head(HeadTask::MultipleChoice, |json, _| {
            Ok(choice(classifier_dropout(json)?))
        })
        .ignored(&["*.w2e_query.*", "*.e2w_query.*", "*.e2e_query.*"])
        .outside(&["entity_predictions.*"])
}
