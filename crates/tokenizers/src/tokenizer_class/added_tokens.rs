//! Tokens that files beside `tokenizer.json` add to a vocabulary.

use std::collections::{BTreeMap, HashSet};

use tokenizers::AddedToken;

/// The tokens that files add.
pub(crate) struct AddedTokens {
    /// The tokens, in the order in which they get ids.
    pub all: Vec<AddedToken>,
    /// Special tokens by name, such as `unk_token`, or `image_token` for one model.
    pub named: BTreeMap<String, String>,
    /// True if the tokens that `tokenizer.json` adds are left out.
    pub replaces: bool,
    /// The tokens that a file beside `tokenizer.json` lists by their ids.
    pub listed: Vec<(u64, String)>,
    /// The special tokens that have neither a name nor an id.
    pub unnamed: Vec<String>,
    /// The keys in the files.
    pub said: HashSet<String>,
}
