//! BERT and the encoders with its blocks (RoBERTa, XLM-R, CamemBERT, ELECTRA): post-norm, exact GELU.
//!
//! transformers' `BertLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/bert/modeling_bert.py>

use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new(
        "bert",
        &["bert", "roberta", "xlm-roberta", "camembert", "electra"],
        config,
    )
    .prefixes(&["bert.", "roberta.", "electra.", ""])
    .block("encoder.layer.{i}.")
    .block_rules([
        Rule::linear("attention.query", &["attention.self.query"]),
        Rule::linear("attention.key", &["attention.self.key"]),
        Rule::linear("attention.value", &["attention.self.value"]),
        Rule::linear("attention.output", &["attention.output.dense"]),
        Rule::norm("attention_norm", &["attention.output.LayerNorm"]),
        Rule::linear("feed_forward.up", &["intermediate.dense"]),
        Rule::linear("feed_forward.down", &["output.dense"]),
        Rule::norm("feed_forward_norm", &["output.LayerNorm"]),
    ])
    .end_rules([
        Rule::linear("embeddings.word", &["embeddings.word_embeddings"]),
        Rule::linear("embeddings.position", &["embeddings.position_embeddings"]),
        Rule::linear("embeddings.type", &["embeddings.token_type_embeddings"]),
        Rule::norm("embeddings.norm", &["embeddings.LayerNorm"]),
        Rule::linear("embeddings.projection", &["embeddings_project"]),
        Rule::linear("pooler.transform", &["pooler.dense"]),
    ])
    .end_rules(heads())
    .embeddings(embeddings)
    .pooler(|_, stack| Ok(first_through_tanh(stack)))
    .head(Task::MaskedLm, masked_lm)
    .head(Task::CausalLm, masked_lm)
    .head(Task::SequenceClassification, sequence_classification)
    .head(Task::TokenClassification, |json, _| {
        token(json, classifier_dropout(json)?)
    })
    .head(Task::QuestionAnswering, question_answering)
    .head(Task::ReplacedTokens, replaced_tokens)
    .new_names(|json| {
        Ok(match family_of(json)?.as_str() {
            "bert" => &["bert.encoder.*", "classifier.weight", "classifier.bias"],
            "electra" => &["electra.encoder.*", "generator_*"],
            _ => &["roberta.encoder.*", "lm_head.*"],
        })
    })
    .ignored(&["*position_ids", "*token_type_ids"])
    .outside(&["*embeddings.*", "*embeddings_project.*", "*pooler.*"])
    .outside(&["cls.*", "lm_head.*"])
    .outside(&["classifier.*", "qa_outputs.*", "*predictions.*"])
    .outside(&["generator_lm_head.*", "*summary.*"])
}

/// The names of heads: BERT's, RoBERTa's, ELECTRA's.
fn heads() -> Vec<Rule> {
    let mut rules = Vec::new();
    for task in ["masked_lm", "causal_lm"] {
        let of = |part: &str| format!("{task}.{part}");
        let transform = [
            "cls.predictions.transform.dense",
            "lm_head.dense",
            "generator_predictions.dense",
        ];
        let norm = [
            "cls.predictions.transform.LayerNorm",
            "lm_head.layer_norm",
            "generator_predictions.LayerNorm",
        ];
        let output = [
            "cls.predictions.decoder.weight",
            "lm_head.decoder.weight",
            "generator_lm_head.weight",
        ];
        let bias = [
            "cls.predictions.bias",
            "cls.predictions.decoder.bias",
            "lm_head.bias",
            "lm_head.decoder.bias",
            "generator_lm_head.bias",
        ];
        rules.push(Rule::linear(&of("transform"), &transform));
        rules.push(Rule::norm(&of("norm"), &norm));
        rules.push(Rule::named(&of("output"), &output, &bias));
    }
    let classification = |part: &str| format!("sequence_classification.{part}");
    rules.push(Rule::linear(
        &classification("transform"),
        &["classifier.dense"],
    ));
    rules.push(Rule::linear(
        &classification("output"),
        &["classifier.out_proj", "classifier"],
    ));
    rules.push(Rule::linear("token_classification.output", &["classifier"]));
    rules.push(Rule::linear("question_answering.output", &["qa_outputs"]));
    let replaced = |part: &str| format!("replaced_tokens.{part}");
    rules.push(Rule::linear(
        &replaced("transform"),
        &["discriminator_predictions.dense"],
    ));
    rules.push(Rule::linear(
        &replaced("output"),
        &["discriminator_predictions.dense_prediction"],
    ));
    rules
}

fn embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    let d_model = stack.blocks[0].d_model();
    let width = json.size_or(&["embedding_size"], d_model)?;
    let positions = PositionTableConfig {
        n_rows: json.size(&["max_position_embeddings"])?,
        ..match family_of(json)?.as_str() {
            "bert" | "electra" => ALL_POSITIONS,
            _ => positions_except(json.size_or(&["pad_token_id"], 1)?),
        }
    };
    let tokens = words(json, stack)?
        .with_width(width)
        .with_position_table(positions)
        .with_types(json.size_or(&["type_vocab_size"], 2)?)
        .with_norm(NormConfig::layer_norm(width, stack.blocks[0].norm.eps))
        .with_dropout(json.number(&["hidden_dropout_prob"], 0.1)?);
    let projection = EmbeddingProjection {
        of: Projected::Sum,
        bias: true,
    };
    Ok(match width == d_model {
        true => tokens.into(),
        false => tokens.with_projection(projection).into(),
    })
}

/// BERT's, RoBERTa's and ELECTRA's are not the same in all.
fn family_of(json: &ConfigJson) -> Result<String> {
    Ok(json.text(&["model_type"])?.unwrap_or_default())
}

/// BERT's pooler: the first position through a linear layer and a tanh.
pub(super) fn first_through_tanh(stack: &StackConfig) -> ReadoutConfig {
    let d_model = stack.blocks[0].d_model();
    ReadoutConfig::new(Reads::First).with_transform(TransformConfig::new(d_model, Activation::Tanh))
}

fn masked_lm(json: &ConfigJson, stack: &StackConfig) -> Result<ReadoutConfig> {
    let d_model = stack.blocks[0].d_model();
    let (width, activation) = match family_of(json)?.as_str() {
        "electra" => (
            json.size_or(&["embedding_size"], d_model)?,
            Activation::Gelu,
        ),
        "bert" => (d_model, json.activation(&["hidden_act"], Activation::Gelu)?),
        _ => (d_model, Activation::Gelu),
    };
    transformed_lm(json, stack, width, activation)
}

/// The logits of words behind a linear layer of this width, an activation and a norm.
pub(super) fn transformed_lm(
    json: &ConfigJson,
    stack: &StackConfig,
    width: usize,
    activation: Activation,
) -> Result<ReadoutConfig> {
    let norm = NormConfig::layer_norm(width, stack.blocks[0].norm.eps);
    Ok(ReadoutConfig::new(Reads::Each)
        .with_transform(TransformConfig::new(width, activation).with_norm(norm))
        .with_output(language_model(json)?.with_bias(true)))
}

fn sequence_classification(json: &ConfigJson, stack: &StackConfig) -> Result<ReadoutConfig> {
    let dropout = classifier_dropout(json)?;
    match family_of(json)?.as_str() {
        "bert" => pooled(json, dropout),
        "electra" => first_token(json, stack, Activation::Gelu, dropout),
        _ => first_token(json, stack, Activation::Tanh, dropout),
    }
}

/// The label of a text by what the pooler made of it.
pub(super) fn pooled(json: &ConfigJson, dropout: f64) -> Result<ReadoutConfig> {
    let output = labels(json)?.with_dropout(dropout);
    Ok(ReadoutConfig::new(Reads::Pooled).with_output(output))
}

/// The label of a text by its first position, through a linear layer and an activation, each behind a dropout.
pub(super) fn first_token(
    json: &ConfigJson,
    stack: &StackConfig,
    activation: Activation,
    dropout: f64,
) -> Result<ReadoutConfig> {
    let transform = TransformConfig::new(stack.blocks[0].d_model(), activation);
    Ok(ReadoutConfig::new(Reads::First)
        .with_dropout(dropout)
        .with_transform(transform)
        .with_output(labels(json)?.with_dropout(dropout)))
}

/// Which tokens ELECTRA's generator replaced: one number for each.
fn replaced_tokens(json: &ConfigJson, stack: &StackConfig) -> Result<ReadoutConfig> {
    let activation = json.activation(&["hidden_act"], Activation::Gelu)?;
    let transform = TransformConfig::new(stack.blocks[0].d_model(), activation);
    Ok(ReadoutConfig::new(Reads::Each)
        .with_transform(transform)
        .with_output(OutputConfig::number()))
}

pub(super) fn classifier_dropout(json: &ConfigJson) -> Result<f64> {
    let hidden = json.number(&["hidden_dropout_prob"], 0.1)?;
    json.number(&["classifier_dropout"], hidden)
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    json.only("position_embedding_type", &[json!("absolute")])?;
    json.only("add_cross_attention", &[json!(false)])?;
    let mut block = block(json)?;
    if json.flag(&["is_decoder"], false)? {
        block.attention.visibility = Visibility::Causal;
    }
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, None))
}

/// The block that most encoders since BERT describe in the same keys.
pub(super) fn block(json: &ConfigJson) -> Result<BlockConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let attention = AttentionConfig::new(d_model, json.size(&["num_attention_heads"])?)?
        .with_dropout(json.number(&["attention_probs_dropout_prob"], 0.1)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["intermediate_size"])?)
        .with_activation(json.activation(&["hidden_act"], Activation::Gelu)?);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_eps"], 1e-12)?);
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Post);
    Ok(block.with_residual_dropout(json.number(&["hidden_dropout_prob"], 0.1)?))
}
