//! End-of-text tokens: the `generation_config.json` that a GGUF file's keys imply.
//!
//! Files name one or two of these tokens. llama.cpp finds others by their text (`llama_vocab::impl::load`,
//! <https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp>), and so does this module.

use serde_json::{Map, Value, json};

use crate::gguf::vocabulary::{GgufTokenizer, SpecialToken, TokenType};

/// Tokens that end a text, or a model's message in a chat.
const ENDS: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Fill-in-the-middle tokens for code, which end a text too: the key for each, and texts to search if there is no key.
const FILLED: [(&str, &[&str]); 3] = [
    (
        "fim_pad_token_id",
        &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    ),
    (
        "fim_rep_token_id",
        &[
            "<|fim_repo|>",
            "<|repo_name|>",
            "<fim-repo>",
            "<REPO>",
            "<reponame>",
        ],
    ),
    ("fim_sep_token_id", &["<|file_sep|>"]),
];

/// gpt-oss's tokens that are visible in output.
const SHOWN: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

impl GgufTokenizer {
    /// Returns the tokens that end a text, the file's own first.
    pub fn stops(&self) -> Vec<u32> {
        let mut stops: Vec<u32> = [SpecialToken::Eos, SpecialToken::Eot, SpecialToken::Eom]
            .into_iter()
            .filter_map(|special| self.id(special))
            .collect();
        stops.extend(self.filled());
        stops.extend(ENDS.iter().filter_map(|text| self.found(text)));
        let has = |stops: &[u32], text: &str| self.find(text).is_some_and(|id| stops.contains(&id));
        stops.retain({
            let among = stops.clone();
            move |&id| {
                let is = |text: &str| self.text(id) == Some(text);
                !(is("<|end|>") && !self.ends_a_turn(|text| has(&among, text))
                    || is("</s>") && has(&among, "<|tool_response>"))
            }
        });
        let mut seen = std::collections::HashSet::new();
        stops.retain(|id| seen.insert(*id));
        stops
    }

    /// Returns the token with this text, if it is a special token. Tokens that merges produce are excluded, such as Qwen's
    /// `</s>`, an HTML tag.
    ///
    /// Added tokens are never produced by merges. llama.cpp treats every `</s>` as an end token.
    fn found(&self, text: &str) -> Option<u32> {
        let id = self.find(text)?;
        let is_normal = self.types.get(id as usize) == Some(&TokenType::Normal);
        let is_made =
            |merge: &String| merge.len() == text.len() + 1 && merge.replacen(' ', "", 1) == text;
        (!(is_normal && self.merges.iter().any(is_made))).then_some(id)
    }

    /// Returns whether `<|end|>` ends a model's message: in gpt-oss and Solar Open it only ends a part.
    fn ends_a_turn(&self, has: impl Fn(&str) -> bool) -> bool {
        let calls = has("<|call|>") || has("<|calls|>");
        !(calls && (has("<|return|>") || has("<|flush|>")))
    }

    fn filled(&self) -> impl Iterator<Item = u32> {
        FILLED.into_iter().filter_map(|(key, texts)| {
            let by_text = || texts.iter().find_map(|text| self.found(text));
            self.numbered(key).or_else(by_text)
        })
    }

    /// Returns each token's type. End tokens are control tokens, whatever the file says.
    pub fn settled_types(&self) -> Vec<TokenType> {
        let mut types = self.types.clone();
        let mut set = |id: Option<u32>, settled: TokenType| {
            if let Some(of) = id.and_then(|id| types.get_mut(id as usize)) {
                *of = settled;
            }
        };
        let filled = FILLED.iter().flat_map(|(_, texts)| texts.iter());
        for text in ENDS.iter().chain(filled) {
            set(self.found(text), TokenType::Control);
        }
        for text in SHOWN {
            set(self.find(text), TokenType::UserDefined);
        }
        let stops = self.stops();
        let is_left_out = |id: &u32| !stops.contains(id);
        set(
            self.find("<|end|>").filter(is_left_out),
            TokenType::UserDefined,
        );
        set(self.find("</s>").filter(is_left_out), TokenType::Normal);
        types
    }

    /// Returns the `generation_config.json` that the file's keys imply.
    pub fn generation_config(&self) -> Value {
        let mut config = Map::new();
        config.insert("eos_token_id".to_string(), json!(self.stops()));
        if let Some(id) = self.id(SpecialToken::Padding) {
            config.insert("pad_token_id".to_string(), id.into());
        }
        config.insert("suppress_tokens".to_string(), self.suppressed());
        if let Some(id) = self.decoder_start() {
            config.insert("decoder_start_token_id".to_string(), id.clone());
        }
        let sampling = [
            ("temp", "temperature"),
            ("top_k", "top_k"),
            ("top_p", "top_p"),
            ("min_p", "min_p"),
            ("penalty_repeat", "repetition_penalty"),
        ];
        for (key, name) in sampling {
            if let Some(value) = self.sampling(key) {
                config.insert(name.to_string(), value.clone());
                config.insert("do_sample".to_string(), true.into());
            }
        }
        // Those that generation does not follow keep their own names, for a note.
        for (key, value) in self.all_sampling() {
            let is_followed =
                |(known, _): &(&str, &str)| *key == format!("general.sampling.{known}");
            if !sampling.iter().any(is_followed) {
                config.insert(key.clone(), value.clone());
            }
        }
        config.into()
    }
}
