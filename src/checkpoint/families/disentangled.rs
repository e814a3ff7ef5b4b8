//! Reads the configuration of disentangled attention.

use super::bert;
use super::encoder::hidden_dropout;
use super::prelude::*;

/// Returns the number of distances with an embedding, in each direction.
pub(super) fn distances(json: &ConfigJson) -> Result<usize> {
    let given = json.optional_number(&["max_relative_positions"])?;
    match given.filter(|&most| most >= 1.0) {
        Some(most) => Ok(most as usize),
        None => json.size_or(&["max_position_embeddings"], 512),
    }
}

/// Returns BERT's blocks with the position terms that the file names, and scores scaled by the number of terms.
pub(super) fn disentangled(
    json: &ConfigJson,
    distances: DisentangledConfig,
    projections: PositionProjections,
) -> Result<StackConfig> {
    let terms = match json.at("pos_att_type") {
        Some(Value::String(terms)) => terms
            .to_lowercase()
            .split('|')
            .map(|t| t.trim().to_string())
            .collect(),
        _ => json.texts(&["pos_att_type"])?.unwrap_or_default(),
    };
    if let Some(other) = terms.iter().find(|&term| term != "c2p" && term != "p2c") {
        return Err(json.error(
            &["pos_att_type"],
            format!("names {other:?}, expected c2p and p2c"),
        ));
    }
    let has = |term: &str| terms.iter().any(|known| known == term);
    let of = DisentangledConfig {
        content_to_position: has("c2p"),
        position_to_content: has("p2c"),
        projections,
        dropout: hidden_dropout(json)?,
        ..distances
    };
    let mut block = bert::block(json)?;
    let n_terms = 1 + usize::from(of.content_to_position) + usize::from(of.position_to_content);
    block.attention_mut()?.scale = ((block.attention()?.head_dim * n_terms) as f64).powf(-0.5);
    let is_relative = json.flag(&["relative_attention"], false)? && n_terms > 1;
    if is_relative {
        block.attention_mut()?.position = Position::Disentangled(of);
    }
    let stack = StackConfig::uniform(block, json.n_blocks(&["num_hidden_layers"])?, None);
    let table = RelativeEmbeddingsConfig {
        n_rows: 2 * of.span,
        norm: None,
    };
    Ok(match is_relative {
        true => stack.with_relative_embeddings(table),
        false => stack,
    })
}
