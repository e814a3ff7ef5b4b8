//! The output of `inspect` for every family: its name, its sizes, and counts of parameters by role that add up.

use candle_blocks::{
    BlockConfig, FeedForwardForm, Position,
    config::{
        AltUpConfig, DeltaForm, ExpertBranch, LatentConfig, Mamba2Config, MixerConfig,
        OutputGateSpan, OwnConfig, PositionProjections, RelativeBiasSpan, SharedExpertConfig,
    },
};
use serde_json::Value;

use crate::{
    all::all,
    committed::{self, Committed},
    said::assert_says,
    scratch::{Answer, answer, program},
    weights::weights,
};

fn inspect(stack: &Committed, flags: &[&str]) -> Answer {
    let mut command = program();
    command.arg("inspect").arg(stack.folder()).args(flags);
    if let Some(part) = stack.part {
        command.arg("--part").arg(part.to_string());
    }
    let answer = answer(&mut command);
    answer.assert_status(0);
    answer
}

fn count(inspected: &Value, role: &str) -> usize {
    let n = inspected["parameters"][role].as_u64();
    n.unwrap_or_else(|| panic!("no count of {role}")) as usize
}

#[test]
fn every_element_of_every_checkpoint_is_counted_once() {
    for stack in all() {
        let inspected = inspect(&stack, &["--json"]).json();
        let checkpoint = stack.open();
        let files = checkpoint.files();
        let infos = files.names().map(|name| files.info(name).unwrap());
        let in_file: usize = infos.map(|info| info.shape.iter().product::<usize>()).sum();
        let of = |roles: &[&str]| {
            roles
                .iter()
                .map(|role| count(&inspected, role))
                .sum::<usize>()
        };
        let label = stack.label();
        assert_eq!(of(&["total", "ignored", "unused"]), in_file, "{label}");
        let roles = [
            "attention",
            "cross_attention",
            "feed_forward",
            "norms",
            "layer_inputs",
            "streams",
            "layer_scales",
            "outside",
        ];
        assert_eq!(of(&roles), count(&inspected, "total"), "{label}");
        assert_eq!(count(&inspected, "unused"), 0, "{label}");
        assert_eq!(inspected["family"], checkpoint.family(), "{label}");
        assert_eq!(
            inspected["n_blocks"],
            checkpoint.config().blocks.len(),
            "{label}"
        );
    }
}

/// The sizes in a block's configuration.
struct Expected {
    /// Attention, cross-attention, feed-forward, experts, router, per-layer inputs, streams.
    counts: [usize; 7],
}

fn expected(block: &BlockConfig) -> Expected {
    let latent = |config: &candle_blocks::AttentionConfig, latent: &LatentConfig| {
        let (d_model, bias) = (config.d_model, config.bias);
        let output = (latent.value_dim * config.n_heads + usize::from(bias.output)) * d_model;
        let kept = latent.rank + latent.rotary_dim;
        let of_keys = kept * (d_model + usize::from(bias.key));
        let each = config.head_dim - latent.rotary_dim + latent.value_dim;
        let expansion = config.n_heads * each * latent.rank;
        let queries = match latent.query_rank {
            None => config.query_width() * (d_model + usize::from(bias.query)),
            Some(rank) => rank * (d_model + usize::from(bias.query) + config.query_width()),
        };
        output + of_keys + expansion + queries
    };
    let attention = |config: &candle_blocks::AttentionConfig| {
        let (q, bias) = (config.query_width(), config.bias);
        let gates = config.output_gate.map_or(0, |gate| match gate.span {
            OutputGateSpan::Channel => q,
            OutputGateSpan::Head => config.n_heads,
        });
        if let Some(of) = &config.latent {
            return latent(config, of) + gates * config.d_model;
        }
        let kv = config.shared_keys.map_or(config.key_width(), |_| 0);
        let value = if config.values_are_keys { 0 } else { kv };
        let weights = (2 * q + gates) * config.d_model + (kv + value) * config.d_encoder;
        let biases = [
            (bias.query, q),
            (bias.key, kv),
            (bias.value, value),
            (bias.output, config.d_model),
            (config.sinks, config.n_heads),
        ];
        let biases: usize = biases.iter().map(|&(has, n)| if has { n } else { 0 }).sum();
        let positions = match &config.position {
            Position::Disentangled(of) => match of.projections {
                PositionProjections::Shared => [None; 2],
                PositionProjections::Own {
                    key_bias,
                    query_bias,
                } => [
                    of.content_to_position.then_some(key_bias),
                    of.position_to_content.then_some(query_bias),
                ],
            },
            _ => [None; 2],
        };
        let position = |has_bias| q * config.d_model + if has_bias { q } else { 0 };
        let positions: usize = positions.into_iter().flatten().map(position).sum();
        weights + biases + positions
    };
    let ff = &block.feed_forward;
    let n_up = match ff.form {
        FeedForwardForm::Plain => 1,
        FeedForwardForm::Gated => 2,
        FeedForwardForm::Absent => 0,
        other => panic!("{other:?} is new"),
    };
    let of_width = |d_model: usize, d_ff: usize| {
        let up_bias = if ff.up_bias { n_up * d_ff } else { 0 };
        let down_bias = if ff.down_bias { d_model } else { 0 };
        // An xIELU has two learned and two fixed parameters.
        let n_numbers = if ff.xielu.is_some() { 4 } else { 0 };
        (n_up + 1) * d_ff * d_model + up_bias + down_bias + n_numbers
    };
    let mlp = |d_ff: usize| of_width(ff.d_model, d_ff);
    let (experts, router, shared) = match &ff.experts {
        None => (0, 0, mlp(ff.d_ff)),
        Some(experts) => {
            // Its output may be multiplied by a gate of one feature.
            let of_shared = |shared: SharedExpertConfig| {
                mlp(shared.d_ff) + if shared.gate { ff.d_model } else { 0 }
            };
            let shared = experts.shared.map_or(0, of_shared);
            let (width, has_scale) = match experts.branch {
                ExpertBranch::Plain => (ff.d_model, false),
                ExpertBranch::Latent { width } => (width, false),
                ExpertBranch::Normalized { .. } => (ff.d_model, true),
                other => panic!("{other:?} is new"),
            };
            let is_latent = width != ff.d_model;
            let latent = if is_latent { 2 * width * ff.d_model } else { 0 };
            let has = [experts.correction, experts.router_bias, has_scale];
            let numbers = has.into_iter().filter(|&has| has).count();
            let router = experts.n_experts * (ff.d_model + numbers);
            let experts = experts.n_experts * of_width(width, ff.d_ff);
            (experts, router, shared + latent)
        }
    };
    let has_sum = ff.experts.is_some_and(|experts| experts.output_bias);
    let summed = if has_sum { ff.d_model } else { 0 };
    let gemma = block.own.gemma().copied().unwrap_or_default();
    let of_mamba = |of: &Mamba2Config| {
        let convolved = of.values_width() + 2 * of.keys_width();
        let projected = convolved + 2 * of.values_width() + of.n_heads;
        let biases = if of.convolution_bias { convolved } else { 0 };
        projected * of.d_model + convolved * of.taps + biases + 3 * of.n_heads
    };
    let mixer = |block: &BlockConfig| match &block.mixer {
        MixerConfig::ShortConvolution(of) => {
            let biases = if of.bias { 5 } else { 0 };
            (4 * of.d_model + of.taps + biases) * of.d_model
        }
        MixerConfig::GatedDeltaNet(of) => {
            let convolved = of.values_width() + 2 * of.keys_width();
            let [values, heads] = [of.values_width(), of.n_value_heads];
            let gates = match of.form {
                DeltaForm::Head => (values + heads) * of.d_model + 2 * heads,
                DeltaForm::Channel { rank, .. } => {
                    let channels = heads * of.key_dim;
                    let both = values + channels;
                    let low = rank.map_or(0, |rank| 2 * rank * of.d_model);
                    low + rank.unwrap_or(of.d_model) * both + channels + heads
                }
                other => panic!("{other:?} is new"),
            };
            (convolved + values + heads) * of.d_model + convolved * of.taps + gates
        }
        MixerConfig::Mamba(of) => {
            let bias = usize::from(of.convolution_bias);
            let rows = 3 * of.d_model + 2 * of.step_rank + 3 * of.state_dim + of.taps + bias + 2;
            rows * of.d_inner
        }
        MixerConfig::Mamba2(of) => of_mamba(of),
        MixerConfig::Lightning(of) => 5 * of.d_model * of.width(),
        MixerConfig::RgLru(of) => {
            let rows = 3 * of.d_model + 2 * of.d_inner / of.n_heads + of.taps + 6;
            rows * of.d_inner + of.d_model
        }
        MixerConfig::HybridHeads(of) => attention(&of.attention) + of_mamba(&of.mamba),
        MixerConfig::Absent { .. } => 0,
        other => attention(other.attention().unwrap()),
    };
    Expected {
        counts: [
            mixer(block)
                + gemma
                    .laurel_rank
                    .map_or(0, |rank| 2 * rank * block.d_model()),
            block.cross_attention.as_ref().map_or(0, attention),
            experts + router + shared + summed,
            experts,
            router,
            gemma
                .layer_input
                .map_or(0, |input| 2 * input.width * block.d_model()),
            gemma.altup.map_or(0, |AltUpConfig { n_streams: n, .. }| {
                n * (1 + n) * n + (1 + n) * block.d_model()
            }),
        ],
    }
}

#[test]
fn counts_by_role_are_those_of_the_configuration() {
    for stack in all() {
        let inspected = inspect(&stack, &["--json"]).json();
        let checkpoint = stack.open();
        let mut sums = [0; 7];
        for block in &checkpoint.config().blocks {
            for (sum, n) in sums.iter_mut().zip(expected(block).counts) {
                *sum += n;
            }
            if let OwnConfig::Adapter { width } = block.own {
                sums[2] += (2 * width + 1) * block.d_model() + width;
            }
            if let Some(of) = block.own.zamba().and_then(|own| own.transformer.as_ref()) {
                let (d_model, wide) = (block.d_model(), of.attention.d_model);
                let projected = of.attention.query_width() + 2 * of.attention.key_width();
                let adapted = if of.adapts_attention {
                    projected + 3 * wide
                } else {
                    0
                };
                let adapter = of.adapter_rank.unwrap_or(0) * (adapted + d_model + 2 * of.d_ff);
                let first = usize::from(!of.uses.is_empty());
                sums[0] += first * (projected * wide + of.attention.mixed_width() * d_model);
                sums[2] += first * 3 * of.d_ff * d_model + of.uses.len() * adapter;
                sums[2] += d_model * d_model;
            }
        }
        if let Some(bias) = &checkpoint.config().relative_bias {
            let n_tables = match checkpoint.config().relative_bias_span {
                RelativeBiasSpan::Block => checkpoint.config().blocks.len(),
                _ => 1,
            };
            sums[0] += n_tables * bias.n_buckets * bias.n_heads;
        }
        if let Some(table) = &checkpoint.config().relative_embeddings {
            let block = &checkpoint.config().blocks[0];
            let attention = block.attention().unwrap();
            let is_gated = matches!(attention.position, Position::GatedBias(_));
            let width = if is_gated {
                attention.n_heads
            } else {
                block.d_model()
            };
            sums[0] += table.n_rows * width;
            if is_gated {
                let gate = 8 * (attention.head_dim + 1) + attention.n_heads;
                sums[0] += checkpoint.config().blocks.len() * gate;
            }
        }
        if let Some(norm) = &checkpoint.config().layer_inputs {
            let n_layers = checkpoint.config().layers.len();
            sums[5] += n_layers * norm.d_model * checkpoint.config().blocks[0].d_model();
        }
        let gemma = checkpoint.config().blocks[0].own.gemma();
        if let Some(altup) = gemma.and_then(|gemma| gemma.altup) {
            let d_model = checkpoint.config().blocks[0].d_model();
            sums[6] += 2 * (altup.n_streams - 1) * d_model * d_model;
        }
        let roles = [
            "attention",
            "cross_attention",
            "feed_forward",
            "experts",
            "router",
            "layer_inputs",
            "streams",
        ];
        assert_eq!(
            roles.map(|role| count(&inspected, role)),
            sums,
            "{}",
            stack.label()
        );
    }
}

#[test]
fn the_text_says_what_is_special_of_a_family() {
    let all = committed::families();
    for (name, words) in [
        (
            "families/mixtral",
            vec!["family     mixtral", "experts    ", "router"],
        ),
        ("families/t5", vec!["family     t5", "width"]),
        (
            "families/deepseek_v3",
            vec!["latent     8 numbers, and a key of 4 that all heads share; values of 6"],
        ),
        ("families/dinov2", vec!["layer scales"]),
    ] {
        // The package leaves the families out.
        for stack in all.iter().filter(|stack| stack.name == name) {
            let text = inspect(stack, &[]).stdout;
            assert_says(&text, &words);
            let is_decoder = stack.part.is_some_and(|part| part.to_string() == "decoder");
            assert_eq!(text.contains("cross-attention"), is_decoder, "{text}");
        }
    }
}

#[test]
fn a_class_with_a_head_that_is_not_known_is_noted() {
    let folder = tempfile::tempdir().unwrap();
    let source = weights("tiny-bert");
    let text = std::fs::read_to_string(source.join("config.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let config = folder.path().join("config.json");
    for (class, is_noted) in [("BertForRanking", true), ("BertModel", false)] {
        json["architectures"] = serde_json::json!([class]);
        std::fs::write(&config, json.to_string()).unwrap();
        let mut command = program();
        command.arg("inspect").arg(&source);
        let answer = answer(command.arg("--config").arg(&config));
        answer.assert_status(0);
        let said = answer.stderr.contains("\"architectures\" in config.json");
        assert_eq!(said, is_noted, "{}", answer.stderr);
    }
}

/// Notes go to standard error, so that standard output only has the results.
#[test]
fn a_key_of_config_json_that_nothing_reads_is_noted_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let source = weights("tiny-bert");
    let text = std::fs::read_to_string(source.join("config.json")).unwrap();
    let config = folder.path().join("config.json");
    let note = "note: config.json has keys that are not read";
    for (key, is_noted) in [("own_key", true), ("use_cache", false)] {
        let text = text.replacen('{', &format!("{{\"{key}\": 1,"), 1);
        std::fs::write(&config, text).unwrap();
        let mut command = program();
        command.arg("inspect").arg(&source);
        let answer = answer(command.arg("--config").arg(&config));
        answer.assert_status(0);
        let said = answer.stderr.contains(note) && answer.stderr.contains("\"own_key\"");
        assert_eq!(said, is_noted, "{}", answer.stderr);
    }
}
