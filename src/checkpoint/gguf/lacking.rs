//! Architectures that are not built in, and the feature that each lacks.

use crate::checkpoint::scheme::matches;

/// The arithmetic that an architecture has and the crate lacks, for a message, by name patterns.
const LACKING: [(&[&str], &str); 9] = [
    (&["plamo2"], "state-space layers"),
    (&["rwkv*", "arwkv*"], "recurrent layers"),
    (&["qwen4exp", "kimi-k3"], "its kind of gated delta rule"),
    (
        &[
            "glm-dsa",
            "deepseek32",
            "deepseek4",
            "minimax-m3",
            "glm5-next",
        ],
        "sparse attention with an indexer",
    ),
    (
        &["mimo2", "plm"],
        "its kind of latent attention or of heads",
    ),
    (
        &["deci", "openelm", "step35", "laguna"],
        "layers of different widths and heads",
    ),
    (
        &[
            "arctic",
            "grok",
            "grovemoe",
            "smallthinker",
            "dbrx",
            "phimoe",
        ],
        "its mixture of experts",
    ),
    (&["chameleon", "cogvlm"], "layers for the tokens of images"),
    (
        &["wavtokenizer*", "pockettts", "qwen3tts"],
        "convolutions of a vocoder",
    ),
];

/// The words for a message about an architecture that is not read.
pub(super) fn lacks(architecture: &str) -> String {
    let is_named = |names: &[&str]| names.iter().any(|name| matches(name, architecture));
    let found = LACKING.iter().find(|(names, _)| is_named(names));
    found.map_or(String::new(), |(_, what)| {
        format!(", which has {what} that are not supported")
    })
}
