//! ERNIE: BERT with task embeddings in its later versions.
//!
//! transformers' `ErnieLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/ernie/modeling_ernie.py>

use super::bert;
use super::prelude::*;

pub(super) fn family() -> Family {
    bert::table()
        .named("ernie")
        .prefixes(&["ernie.", ""])
        .end_rules([Rule::linear(
            "embeddings.task",
            &["embeddings.task_type_embeddings"],
        )])
        .embeddings(|json, stack| {
            let embeddings = bert::embeddings(json, stack, ALL_POSITIONS)?;
            Ok(match embeddings {
                EmbeddingsConfig::Tokens(embeddings) if json.flag(&["use_task_id"], false)? => {
                    let n_tasks = json.size_or(&["task_type_vocab_size"], 3)?;
                    embeddings.with_tasks(n_tasks).into()
                }
                embeddings => embeddings,
            })
        })
}
