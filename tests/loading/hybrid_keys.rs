//! Keys of hybrids as transformers' classes read them: their aliases, null, and keys that a class lacks.

use serde_json::{Value, json};

use crate::config_keys::{config, open};
use crate::said::assert_says;
use crate::weights::is_present;

/// `attribute_map` in the configuration classes, and names that their `__post_init__` replaces.
#[test]
fn aliases_of_keys_are_read() {
    if !is_present("families") {
        return;
    }
    let mixtures = [
        ("norm_topk_prob", "moe_renormalize"),
        ("n_group", "num_expert_group"),
        ("num_local_experts", "num_experts"),
        ("num_experts_per_tok", "num_experts_per_token"),
        ("n_shared_experts", "num_shared_experts"),
        ("max_position_embeddings", "model_max_length"),
    ];
    let nemotron = [
        ("layer_types", "layers_block_type"),
        ("num_local_experts", "n_routed_experts"),
        ("mamba_n_groups", "n_groups"),
        ("mamba_d_conv", "conv_kernel"),
        ("mamba_dt_min", "time_step_min"),
        ("mamba_dt_limit", "time_step_limit"),
        ("mamba_conv_bias", "use_conv_bias"),
    ];
    let zamba = [
        ("layer_types", "layers_block_type"),
        ("head_dim", "attention_head_dim"),
    ];
    let families: [(&str, &[(&str, &str)]); 7] = [
        ("kimi_linear", &mixtures),
        ("bailing_hybrid", &mixtures),
        ("nemotron_h", &nemotron),
        ("zamba", &zamba),
        ("zamba2", &zamba),
        ("jamba", &[("num_local_experts", "num_experts")]),
        ("granitemoehybrid", &[("layers_block_type", "layer_types")]),
    ];
    let all = families.iter().flat_map(|(family, aliases)| {
        let each = aliases.iter();
        each.map(|(alias, own)| (*family, *alias, *own))
    });
    let mut n_compared = 0;
    for (family, alias, own) in all {
        let renamed = open(family, |config| {
            let value = config.remove(own).unwrap_or_else(|| panic!("{own}"));
            config.insert(alias.to_string(), value);
        });
        let renamed = renamed.unwrap_or_else(|e| panic!("{family}: {alias}: {e}"));
        assert_eq!(renamed.config(), &config(family, &[]), "{family}: {alias}");
        assert!(renamed.report().unread_keys.is_empty(), "{alias}");
        n_compared += 1;
    }
    assert_eq!(n_compared, 25);
}

/// Python takes null for false.
#[test]
fn null_is_false_for_a_key_that_is_true_if_absent() {
    if !is_present("families") {
        return;
    }
    for (family, key) in [
        ("kimi_linear", "moe_renormalize"),
        ("bailing_hybrid", "moe_renormalize"),
        ("granitemoehybrid", "mamba_conv_bias"),
        ("bamba", "mamba_conv_bias"),
        ("falcon_h1", "mamba_conv_bias"),
    ] {
        let with = |value: Value| {
            let opened = open(family, |config| {
                config.insert(key.to_string(), value);
            });
            opened.unwrap().config().clone()
        };
        assert_eq!(with(Value::Null), with(json!(false)), "{family}: {key}");
        assert_ne!(with(Value::Null), with(json!(true)), "{family}: {key}");
    }
}

#[test]
fn keys_that_a_class_lacks_or_replaces_change_nothing() {
    if !is_present("families") {
        return;
    }
    for (family, key, value) in [
        ("lfm2", "hidden_activation", json!("relu")),
        ("lfm2_moe", "hidden_activation", json!("relu")),
        ("lfm3", "hidden_activation", json!("relu")),
        ("bamba", "partial_rotary_factor", json!(1.0)),
        ("kimi_linear", "q_lora_rank", Value::Null), // absent
    ] {
        let (with, without) = (config(family, &[(key, value)]), config(family, &[]));
        assert_eq!(with, without, "{family}: {key}");
    }
    let null = open("lfm3", |config| {
        config.insert("rope_parameters".to_string(), Value::Null);
    });
    let absent = config("lfm3", &[("rope_parameters", Value::Null)]);
    assert_eq!(null.unwrap().config(), &absent);
}

/// The convolutions of these classes have the feed-forward's activation; candle-blocks has one with SiLU.
#[test]
fn mamba_2_with_another_activation_is_refused_by_the_key() {
    if !is_present("families") {
        return;
    }
    for family in ["granitemoehybrid", "bamba"] {
        let gelu = open(family, |config| {
            config.insert("hidden_act".to_string(), json!("gelu"));
        });
        assert_says(gelu.unwrap_err(), &["\"hidden_act\"", "gelu", "silu"]);
    }
}
