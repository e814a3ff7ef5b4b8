//! ERNIE: BERT under its own name.
//!
//! transformers' `ErnieLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/ernie/modeling_ernie.py>

use super::bert;
use super::prelude::*;

pub(super) fn family() -> Family {
    bert::family()
        .named("ernie")
        .prefixes(&["ernie.", ""])
        .read_by(|json| {
            json.only("use_task_id", &[json!(false)])?; // a table of tasks beside that of types
            bert::config(json)
        })
}
