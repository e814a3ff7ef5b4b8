//! The documented list of roles is complete, and its shapes are those that layers request.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use candle_blocks::{
    Checkpoint, StackConfig,
    candle_core::DType,
    checkpoint::scheme::{Family, StackPart},
    config::{DeltaForm, ExpertBranch, MixerConfig, OwnConfig},
};
use serde_json::Value;

use crate::{
    all::all, committed::Committed, trained::trained, weights::is_present, weights::weights,
};

/// Returns the documented shapes of each role's weight, as products of names.
fn documented() -> BTreeMap<String, Vec<String>> {
    let path = weights("../src/checkpoint/scheme/roles.md");
    let text = fs::read_to_string(path).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, role, shapes, purpose, _] = cells[..] else {
            panic!("{line}");
        };
        assert!(purpose.len() > 5, "{line}");
        let shapes = shapes
            .split(" or ")
            .map(|shape| shape.replace(['`', '[', ']'], ""));
        (role.replace('`', ""), shapes.collect())
    };
    rows.map(row).collect()
}

/// Returns a role without its indices: `blocks.3.feed_forward.experts.1.up` becomes `feed_forward.experts.{e}.up`.
fn pattern(role: &str) -> String {
    let local = match role.strip_prefix("blocks.") {
        Some(rest) => rest.split_once('.').unwrap().1,
        None => role,
    };
    let segments = local
        .split('.')
        .map(|segment| match segment.parse::<usize>() {
            Ok(_) => "{e}",
            Err(_) => segment,
        });
    segments.collect::<Vec<_>>().join(".")
}

/// Returns the size that a name stands for in a recurrent mixer, alone or beside attention.
fn of_mixer(name: &str, role: &str, mixer: &MixerConfig) -> Option<usize> {
    if let MixerConfig::HybridHeads(of) = mixer {
        let is_of_mamba = role.contains(".mamba.");
        return is_of_mamba
            .then(|| of_mixer(name, role, &of.mamba.into()))
            .flatten();
    }
    Some(match (mixer, name) {
        (MixerConfig::ShortConvolution(of), "taps") => of.taps,
        (MixerConfig::GatedDeltaNet(of), "taps") => of.taps,
        (MixerConfig::GatedDeltaNet(of), "n_key_heads") => of.n_key_heads,
        (MixerConfig::GatedDeltaNet(of), "n_value_heads") => of.n_value_heads,
        (MixerConfig::GatedDeltaNet(of), "key_dim") => of.key_dim,
        (MixerConfig::GatedDeltaNet(of), "value_dim") => of.value_dim,
        (MixerConfig::GatedDeltaNet(of), "rank") => match of.form {
            DeltaForm::Channel { rank, .. } => rank.unwrap_or(of.d_model),
            _ => of.d_model,
        },
        (MixerConfig::GatedDeltaNet(of), "n_channels") => match of.form {
            DeltaForm::Channel { .. } => of.key_dim,
            _ => 1,
        },
        (MixerConfig::Mamba(of), "taps") => of.taps,
        (MixerConfig::Mamba(of), "d_inner") => of.d_inner,
        (MixerConfig::Mamba(of), "head_dim") => of.d_inner / of.n_heads,
        (MixerConfig::Mamba(of), "state_dim") => of.state_dim,
        (MixerConfig::Mamba(of), "step_rank") => of.step_rank,
        (MixerConfig::Lightning(of), "n_heads") => of.n_heads,
        (MixerConfig::Lightning(of), "head_dim") => of.head_dim,
        (MixerConfig::RgLru(of), "taps") => of.taps,
        (MixerConfig::RgLru(of), "d_inner") => of.d_inner,
        (MixerConfig::RgLru(of), "head_dim") if role.contains(".lru.") => of.d_inner / of.n_heads,
        (MixerConfig::Mamba2(of), "taps") => of.taps,
        (MixerConfig::Mamba2(of), "n_heads") => of.n_heads,
        (MixerConfig::Mamba2(of), "head_dim") => of.head_dim,
        (MixerConfig::Mamba2(of), "n_groups") => of.n_groups,
        (MixerConfig::Mamba2(of), "state_dim") => of.state_dim,
        _ => return None,
    })
}

/// Returns the size that a name in a shape stands for.
fn size(name: &str, role: &str, config: &StackConfig) -> usize {
    let index = role
        .split('.')
        .nth(1)
        .and_then(|index| index.parse::<usize>().ok());
    let block = &config.blocks[index.unwrap_or(0)];
    let transformer = || block.own.zamba().unwrap().transformer.as_ref().unwrap();
    let is_shared = role.contains(".transformer.");
    let attention = || match role.contains(".cross_attention.") {
        true => block.cross_attention.as_ref().unwrap(),
        false if is_shared => &transformer().attention,
        false => block.attention().unwrap(),
    };
    let latent = || attention().latent.unwrap();
    let experts = || block.feed_forward.experts.unwrap();
    let gemma = || block.own.gemma().unwrap();
    if let Some(size) = of_mixer(name, role, &block.mixer).filter(|_| !is_shared) {
        return size;
    }
    match name {
        "1" => 1,
        "2" => 2,
        "3" => 3,
        "8" => 8,
        "d_model" => block.d_model(),
        "d_encoder" => attention().d_encoder,
        "n_heads" => attention().n_heads,
        "n_kv_heads" => attention().n_kv_heads,
        "head_dim" => attention().head_dim,
        "value_dim" => attention().value_dim(),
        "query_rank" => latent().query_rank.unwrap_or(0),
        "rank" => latent().rank,
        "kept_width" => latent().rank + latent().rotary_dim,
        "key_value_dim" => attention().head_dim - latent().rotary_dim + latent().value_dim,
        "d_ff" if is_shared => transformer().d_ff,
        "adapter_rank" => transformer().adapter_rank.unwrap(),
        "d_ff" => block.feed_forward.d_ff,
        "n_experts" => experts().n_experts,
        "latent_width" => match experts().branch {
            ExpertBranch::Latent { width } => width,
            _ => block.d_model(),
        },
        "shared_d_ff" => experts().shared.unwrap().d_ff,
        "n_buckets" => config.relative_bias.unwrap().n_buckets,
        "width" => gemma().layer_input.unwrap().width,
        "laurel_rank" => gemma().laurel_rank.unwrap(),
        "adapter_width" => match &block.own {
            OwnConfig::Adapter { width } => *width,
            other => panic!("{other:?} has no adapter"),
        },
        "n_streams" => gemma().altup.unwrap().n_streams,
        "n_layers" => config.layers.len(),
        "n_rows" => config.relative_embeddings.unwrap().n_rows,
        other => panic!("{other} in the shape of {role}"),
    }
}

/// Returns the roles that a stack's layers request, after checking each one's documented shape.
fn checked(stack: &Committed, documented: &BTreeMap<String, Vec<String>>) -> BTreeSet<String> {
    let checkpoint: Checkpoint = stack.open();
    let mut roles = BTreeSet::new();
    for (role, variable) in trained(&checkpoint, DType::F32) {
        let (module, parameter) = role.rsplit_once('.').unwrap();
        let pattern = pattern(module);
        let shapes = documented.get(&pattern);
        let shapes = shapes.unwrap_or_else(|| panic!("{pattern} is not documented"));
        let product = |text: &str| {
            let names = text.split('*').map(str::trim);
            names
                .map(|name| size(name, module, checkpoint.config()))
                .product::<usize>()
        };
        let fits = shapes.iter().any(|shape| {
            let lengths = shape.split(',').filter(|length| !length.is_empty());
            let mut dims: Vec<usize> = lengths.map(product).collect();
            if parameter == "bias" {
                dims.truncate(1);
            }
            dims == variable.dims()
        });
        assert!(
            fits,
            "{}: {role} {:?}, not {shapes:?}",
            stack.label(),
            variable.dims()
        );
        roles.insert(pattern);
    }
    roles
}

#[test]
fn every_role_that_a_layer_requests_is_listed_with_its_shape() {
    let documented = documented();
    let mut requested = BTreeSet::new();
    // Norms before and after cross-attention are only in this one.
    let t5gemma = is_present("heads").then(|| Committed {
        name: "heads/t5gemma".to_string(),
        part: Some(StackPart::Decoder),
    });
    for stack in all().into_iter().chain(t5gemma) {
        requested.extend(checked(&stack, &documented));
    }
    assert!(requested.len() >= 9, "{requested:?}"); // BERT's and GPT-2's
    if is_present("families") {
        let listed: BTreeSet<String> = documented.into_keys().collect();
        assert_eq!(listed, requested);
    }
}

#[test]
fn every_role_that_a_family_has_a_rule_for_is_listed() {
    let documented = documented();
    for stack in all() {
        let config = fs::read_to_string(stack.folder().join("config.json")).unwrap();
        let config: Value = serde_json::from_str(&config).unwrap();
        let model_type = config["model_type"].as_str().unwrap();
        let family = Family::known(model_type, stack.part).unwrap();
        assert!(!family.block_rules.is_empty(), "{model_type}");
        for rule in family.block_rules.iter().chain(&family.stack_rules) {
            assert!(
                documented.contains_key(&rule.role),
                "{model_type}: {}",
                rule.role
            );
        }
    }
}
