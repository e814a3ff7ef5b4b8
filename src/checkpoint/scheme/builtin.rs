//! The built-in families, by `model_type`.

use crate::checkpoint::families;
use crate::checkpoint::scheme::lacking::lacking;
use crate::checkpoint::scheme::{ClassDefaults, Family, StackPart};
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
    /// assert_eq!(checkpoint.config().blocks[1].attention()?.position, Position::None);
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
    let same_type = families::of_type(model_type);
    let first = same_type.iter().find(|family| family.joined.is_some());
    first
        .filter(|_| same_type.len() > 1)
        .and_then(|family| family.part)
}

/// Like [`Family::known`].
pub(crate) fn known(
    model_type: &str,
    part: Option<StackPart>,
) -> std::result::Result<Family, Unknown> {
    let same_type = families::of_type(model_type);
    if same_type.is_empty() {
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
    let parts: Vec<String> = same_type
        .iter()
        .flat_map(|f| f.part)
        .map(|p| p.to_string())
        .collect();
    let is_only = same_type.len() == 1 && part.is_none();
    let found = same_type
        .into_iter()
        .find(|family| is_only || family.part == part);
    let found = found.map(|mut family| {
        family.keys.class = ClassDefaults::of(model_type, &family);
        family
    });
    found.ok_or_else(|| {
        let selected = match part {
            Some(part) => format!("{part} chosen"),
            None => "none chosen".to_string(),
        };
        let cure = match parts.is_empty() {
            true => "which has a single stack; select none".to_string(),
            false => format!(
                "which has several stacks; open both with `CheckpointOptions::whole`, or select {} \
                 with `CheckpointOptions::part`",
                parts.join(" or ")
            ),
        };
        Unknown::Part(format!("{selected} for a {model_type} checkpoint, {cure}"))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use serde_json::{Map, Value};

    use super::*;
    use crate::checkpoint::config_json::ConfigJson;
    use crate::checkpoint::plan::outside_blocks::described;
    use crate::config::{EmbeddingsConfig, HeadTask};

    const VARIABLE: &str = "CANDLE_BLOCKS_WRITE_MODEL_TYPES";

    /// The rows of the table in docs/families.md.
    const KINDS: [&str; 10] = [
        "encoders",
        "images",
        "text and images",
        "speech encoders",
        "blocks only",
        "decoders",
        "decoders of experts",
        "the text side of",
        "encoder-decoders",
        "PyTorch's own",
    ];

    /// Returns the row for a model type, given the default configuration of its class, if transformers has it.
    fn kind(model_type: &str, config: Option<&Value>) -> &'static str {
        let families = families::of_type(model_type);
        let family = &families[0];
        if model_type.starts_with("torch_") {
            return "PyTorch's own";
        }
        let sees = config.is_some_and(|config| config.get("vision_config").is_some());
        match family.part {
            Some(StackPart::Encoder | StackPart::Decoder) => return "encoder-decoders",
            _ if families
                .iter()
                .any(|family| family.part == Some(StackPart::Text)) =>
            {
                return "text and images";
            }
            _ if sees || family.keys.section.is_some() => return "the text side of",
            _ if family.embeddings.is_none() => return "blocks only",
            _ => {}
        }
        let json = config.map(|config| ConfigJson::given(Path::new("config.json"), config.clone()));
        let stack = json
            .as_ref()
            .and_then(|json| family.stack_config(json).ok());
        let model = json
            .zip(stack.as_ref())
            .and_then(|(json, stack)| described(family, &json, stack, false).ok());
        match model.map(|model| model.embeddings) {
            Some(EmbeddingsConfig::Patches(_)) => return "images",
            Some(EmbeddingsConfig::Spectrum(_)) => return "speech encoders",
            _ => {}
        }
        let has_causal_head =
            family.has_head(HeadTask::CausalLm) && !family.has_head(HeadTask::MaskedLm);
        let block = stack.as_ref().map(|stack| &stack.blocks[0]);
        let is_decoder = block.map_or(has_causal_head, |block| {
            block.facts().is_causal && family.pooler.is_none()
        });
        let has_experts = |family: &Family| {
            let mut rules = family.block_rules.iter();
            rules.any(|rule| rule.role == "feed_forward.router")
        };
        match is_decoder {
            true if has_experts(family) => "decoders of experts",
            true => "decoders",
            false => "encoders",
        }
    }

    /// Returns the table of docs/families.md.
    fn table() -> String {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/weights/default_configs.json");
        let configs: Map<String, Value> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let names: BTreeSet<&str> = families::all()
            .flat_map(|family| family.model_types.iter().map(String::as_str))
            .collect();
        let mut rows = KINDS.map(|kind| (kind, Vec::new()));
        for name in names {
            let kind = kind(name, configs.get(name));
            let row = rows.iter_mut().find(|(known, _)| *known == kind).unwrap();
            row.1.push(format!("`{name}`"));
        }
        let rows = rows.map(|(kind, names)| format!("| {kind} | {} |", names.join(", ")));
        format!("| | model types |\n|---|---|\n{}", rows.join("\n"))
    }

    /// The other tests of model types are in tests/refusals/of_transformers.rs.
    #[test]
    fn the_document_lists_the_model_types_that_load() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/families.md");
        let document = fs::read_to_string(path).unwrap();
        let start = document.find("| | model types |").unwrap();
        let length = document[start..].find("\n\n").unwrap();
        let (written, today) = (&document[start..start + length], table());
        if std::env::var_os(VARIABLE).is_some() {
            return fs::write(path, document.replace(written, &today)).unwrap();
        }
        let differing = written.lines().zip(today.lines()).find(|(a, b)| a != b);
        assert_eq!(
            written, today,
            "{differing:?}; set {VARIABLE}=1 to write docs/families.md again"
        );
    }

    /// By the classes that have `_tied_weights_keys`, and by the defaults of their configurations, of which some pass on the text's value.
    #[test]
    fn the_output_layer_is_tied_by_the_configurations_whose_classes_tie() {
        type Tied = fn(Option<bool>, Option<bool>) -> bool;
        let cases: [(&str, Tied); 9] = [
            ("llava", |outside, inside| {
                outside == Some(true) || inside == Some(true)
            }),
            ("mistral3", |outside, inside| {
                outside != Some(false) || inside == Some(true)
            }),
            ("llama4", |_, inside| inside == Some(true)),
            ("blip-2", |_, inside| inside != Some(false)),
            ("kosmos-2.5", |_, inside| inside != Some(false)),
            ("kosmos-2", |outside, inside| {
                outside != Some(false) || inside != Some(false)
            }),
            ("paddleocr_vl", |outside, inside| {
                outside != Some(false) || inside != Some(false)
            }),
            ("hunyuan_vl", |outside, inside| {
                outside != Some(false) || inside != Some(false)
            }),
            ("encoder-decoder", |_, inside| inside != Some(false)),
        ];
        let all = [None, Some(false), Some(true)];
        for (model_type, expected) in cases {
            let keys = Family::known(model_type, None).unwrap().keys;
            for (outside, inside) in all
                .into_iter()
                .flat_map(|one| all.map(|other| (one, other)))
            {
                let said = |tie: Option<bool>| {
                    let entries =
                        tie.map(|tie| ("tie_word_embeddings".to_string(), Value::from(tie)));
                    entries.into_iter().collect::<Map<_, _>>()
                };
                let mut contents = said(outside);
                let section = families::TextSide::of(model_type).unwrap().section();
                contents.insert(section.to_string(), said(inside).into());
                let json = ConfigJson::given(Path::new("config.json"), contents.into());
                let seen = keys.seen(&json).unwrap();
                let is_tied = seen.flag(&["tie_word_embeddings"], true).unwrap();
                let expected = expected(outside, inside);
                assert_eq!(is_tied, expected, "{model_type} {outside:?} {inside:?}");
            }
        }
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
            "led",
            "longformer",
            "lxmert",
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
