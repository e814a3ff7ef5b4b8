//! Every committed checkpoint.

use crate::committed::{Committed, families, present, stacks};

/// The checkpoints that are no family's own.
pub const OTHERS: [&str; 5] = [
    "tiny-bert",
    "tiny-gpt2",
    "tiny-bert-bf16",
    "tiny-gpt2-f16",
    "minilm-block0",
];

/// Returns every stack in every committed checkpoint.
pub fn all() -> Vec<Committed> {
    let others = present(OTHERS, |&name| name).into_iter();
    let others = others.flat_map(|name| stacks(name.to_string()));
    others.chain(families()).collect()
}
