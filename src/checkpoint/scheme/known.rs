//! The built-in families, by `model_type`.

use crate::checkpoint::families::{self, ClassDefaults};
use crate::checkpoint::scheme::lacking::lacking;
use crate::checkpoint::scheme::{Family, StackPart};
use crate::error::{Error, Result, listed, near};

/// The reason why there is no such family.
pub(crate) enum Unknown {
    /// No family has this `model_type`.
    ModelType {
        /// The feature that the crate lacks for this model type of transformers.
        lacks: Option<&'static str>,
        /// The most similar names.
        nearest: Vec<String>,
    },
    /// The family has no such stack, or several; the text says what to do.
    Part(String),
}

impl Unknown {
    /// Returns the message.
    pub(crate) fn reason(self, model_type: &str) -> String {
        match self {
            Self::ModelType { lacks, nearest } => {
                let lacks = lacks.unwrap_or("is not a known family");
                let nearest = listed("nearest:", &nearest);
                format!("{model_type:?} {lacks}{nearest}")
            }
            Self::Part(reason) => reason,
        }
    }
}

impl Family {
    /// Returns the built-in family for `model_type`, and the requested stack if it has several. Use it to define a family
    /// that differs from a built-in one in a few points.
    ///
    /// ```
    /// use candle_blocks::{CheckpointOptions, Position};
    /// use candle_blocks::checkpoint::scheme::{BlockChange, Family, Rule};
    /// use serde_json::json;
    ///
    /// // SmolLM3: some layers of this Llama do not turn queries and keys.
    /// let smollm3 = Family::known("llama", None)?
    ///     .named("smollm3")
    ///     .default_of("rope_theta", 2e6)
    ///     .change(BlockChange::new(json!({"attention": {"position": "none"}})).at("no_rope_layers", 0));
    /// let checkpoint = CheckpointOptions::default().family(smollm3).open("weights/like/smollm3")?;
    /// assert_eq!(checkpoint.config().blocks[1].attention.position, Position::None);
    ///
    /// // A Llama whose feed-forward has other names, inside a larger model.
    /// let own = Family::known("llama", None)?
    ///     .named("own")
    ///     .prefixes(&["language_model."])
    ///     .section("text_config")
    ///     .replace_block_rules([Rule::linear("feed_forward.down", &["mlp.out_proj"])]);
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there is no such family, or it has several stacks and `part` selects none.
    pub fn known(model_type: &str, part: Option<StackPart>) -> Result<Self> {
        known(model_type, part).map_err(|unknown| {
            let what = match unknown {
                Unknown::ModelType { .. } => "model_type",
                Unknown::Part(_) => "part",
            };
            Error::input(what, unknown.reason(model_type))
        })
    }
}

/// Returns the stack whose family defines how two stacks make one model.
pub(crate) fn first_of_two(model_type: &str) -> Option<StackPart> {
    let of_type = families::of_type(model_type);
    let first = of_type.iter().find(|family| family.joined.is_some());
    first
        .filter(|_| of_type.len() > 1)
        .and_then(|family| family.part)
}

/// Like [`Family::known`].
pub(crate) fn known(
    model_type: &str,
    part: Option<StackPart>,
) -> std::result::Result<Family, Unknown> {
    let of_type = families::of_type(model_type);
    if of_type.is_empty() {
        let known = families::all().flat_map(|f| &f.model_types);
        let lacking = lacking(model_type);
        let nearest = match &lacking {
            Some(lacking) if !lacking.is_table => vec![], // another family's table would not help
            _ => near(model_type, known.map(String::as_str)),
        };
        return Err(Unknown::ModelType {
            lacks: lacking.map(|lacking| lacking.what),
            nearest,
        });
    }
    let parts: Vec<String> = of_type
        .iter()
        .flat_map(|f| f.part)
        .map(|p| p.to_string())
        .collect();
    let is_only = of_type.len() == 1 && part.is_none();
    let found = of_type
        .into_iter()
        .find(|family| is_only || family.part == part);
    let found = found.map(|mut family| {
        family.keys.class = ClassDefaults::of(model_type, &family);
        family
    });
    found.ok_or_else(|| {
        let asked = match part {
            Some(part) => format!("{part} chosen"),
            None => "none chosen".to_string(),
        };
        let cure = match parts.is_empty() {
            true => "which has a single stack; select none".to_string(),
            false => format!(
                "which has several stacks; select {} with `CheckpointOptions::part`",
                parts.join(" or ")
            ),
        };
        Unknown::Part(format!("{asked} for a {model_type} checkpoint, {cure}"))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    #[test]
    fn the_documents_list_every_model_type() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/families.md");
        let text = fs::read_to_string(path).unwrap();
        let (_, list) = text.split_once("| model types |").unwrap();
        let list = list.split("\n\n").next().unwrap();
        let listed: BTreeSet<&str> = list.split('`').skip(1).step_by(2).collect();
        let known = families::all().flat_map(|family| &family.model_types);
        let known: BTreeSet<&str> = known.map(String::as_str).collect();
        let lacking: Vec<_> = known.difference(&listed).collect();
        let unknown: Vec<_> = listed.difference(&known).collect();
        assert!(
            lacking.is_empty() && unknown.is_empty(),
            "{lacking:?}, {unknown:?}"
        );
    }

    #[test]
    fn a_rule_of_the_stack_is_for_no_role_around_it() {
        let mut n = 0;
        for family in families::all() {
            for rule in &family.stack_rules {
                n += 1;
                let other = family
                    .end_rules
                    .iter()
                    .find(|other| other.role == rule.role);
                assert!(other.is_none(), "{}: {}", family.name, rule.role);
            }
        }
        assert!(n > 10, "only {n} rules");
    }

    // Model types in transformers 5.23.
    #[test]
    fn families_that_are_not_near_are_not_offered() {
        let known = || families::all().flat_map(|family| &family.model_types);
        let mut found = Vec::new();
        for model_type in [
            "bamba",
            "big_bird",
            "canine",
            "convbert",
            "dbrx",
            "detr",
            "diffllama",
            "doge",
            "florence2",
            "fnet",
            "funnel",
            "jamba",
            "led",
            "lfm2",
            "longformer",
            "lxmert",
            "mamba",
            "mamba2",
            "mobilebert",
            "moonshine",
            "moshi",
            "mra",
            "musicgen",
            "nystromformer",
            "prophetnet",
            "rag",
            "rwkv",
            "sam",
            "seamless_m4t",
            "segformer",
            "speech_to_text",
            "squeezebert",
            "swin",
            "timm_backbone",
            "xlnet",
            "xlstm",
            "yolos",
            "yoso",
            "zamba",
            "zamba2",
            "",
        ] {
            let offered = near(model_type, known().map(String::as_str));
            if !offered.is_empty() {
                found.push((model_type, offered));
            }
        }
        assert!(found.is_empty(), "{found:?}");
    }
}
