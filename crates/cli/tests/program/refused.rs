//! Bad input to the program: one clear line that names file, tensor and cure; status 2; nothing written.
//!
//! `tests/files` has all refusals of the safetensors reader; here is one of each kind.

use std::fs;

use candle_blocks::candle_core::{DType, Device, Tensor};
use serde_json::json;

use crate::{
    damage::{change_header, convert, copy, mask, rename, rewrite, set_len, start_with},
    scratch::{Scratch, answer, program},
};

/// A test per line: its name, what it does to a good checkpoint (a BERT) and its input, the flags
/// that it adds to `run`, and what the error must say.
macro_rules! refused {
    ($($name:ident: $break:expr, $flags:expr, $words:expr;)*) => {
        $(
            #[test]
            fn $name() {
                let scratch = Scratch::of("tiny-bert");
                let spoil: fn(&Scratch) = $break;
                spoil(&scratch);
                scratch.run(&$flags).assert_refused(&$words);
                assert_eq!(scratch.written(), [""; 0], "something was written");
            }
        )*
    };
}

/// Without this, all below might be refused for another reason.
#[test]
fn the_model_that_the_cases_start_from_runs() {
    for flags in [&[] as &[&str], &["--backward"]] {
        let scratch = Scratch::of("tiny-bert");
        scratch.run(flags).assert_status(0);
        assert_eq!(scratch.written(), ["stages.safetensors"]);
    }
    let scratch = Scratch::of("tiny-bert");
    scratch.shard();
    scratch.run(&[]).assert_status(0);
}

const UP: &str = "encoder.layer.1.intermediate.dense.weight";
const NOT_SAFETENSORS: &str = "model.safetensors: not a valid safetensors file: ";

// The weights as a file.
refused! {
    text_in_place_of_weights_is_refused:
        |s| fs::write(s.weights(), "these are no weights").unwrap(), [],
        [NOT_SAFETENSORS, "export it again"];
    an_empty_file_of_weights_is_refused:
        |s| fs::write(s.weights(), "").unwrap(), [], [NOT_SAFETENSORS, "it has 0 bytes"];
    a_header_longer_than_the_file_is_refused:
        |s| start_with(s, 1 << 40), [], [NOT_SAFETENSORS, "only", "follow"];
    a_header_of_gigabytes_is_refused_even_if_the_file_has_them:
        |s| { start_with(s, 3 << 30); set_len(&s.weights(), 4 << 30) }, [],
        [NOT_SAFETENSORS, "its header has 3221225472 bytes; the format allows 100000000"];
    overlapping_tensors_are_refused_by_name:
        |s| change_header(&s.weights(), |header| {
            let key = header["encoder.layer.0.attention.self.key.bias"].clone();
            header["encoder.layer.0.attention.self.query.bias"] = key;
        }), [], [NOT_SAFETENSORS, "overlap", "encoder.layer.0.attention.self.query.bias"];
    offsets_beyond_the_file_are_refused:
        |s| change_header(&s.weights(), |header| {
            header[UP]["data_offsets"] = json!([1u64 << 40, (1u64 << 40) + 4160]);
        }), [], [NOT_SAFETENSORS, "belong to no tensor"];
    truncated_data_are_refused:
        |s| set_len(&s.weights(), fs::metadata(s.weights()).unwrap().len() - 1), [],
        [NOT_SAFETENSORS, "it is cut short"];
    a_model_that_is_not_there_is_named:
        |s| fs::remove_dir_all(s.model()).unwrap(), [], ["model: cannot open: "];
    a_folder_without_weights_is_refused:
        |s| fs::remove_file(s.weights()).unwrap(), [], ["model: there is no safetensors file"];
}

// The tensors.
refused! {
    a_missing_tensor_is_named_with_the_names_tried_and_the_nearest:
        |s| s.change_weights(|tensors| { tensors.remove(UP); }), [],
        ["model.safetensors: no tensor for blocks.1.feed_forward.up.weight",
         "tried encoder.layer.1.intermediate.dense.weight",
         "similar encoder.layer.0.intermediate.dense.weight", "check that the file is complete"];
    a_renamed_tensor_is_missing_and_its_new_name_the_nearest:
        |s| s.change_weights(|tensors| rename(tensors, UP, "encoder.layer.1.intermediate.dens.weight")), [],
        ["no tensor for blocks.1.feed_forward.up.weight", "tried encoder.layer.1.intermediate.dense.weight",
         "holds the similar encoder.layer.1.intermediate.dens.weight; rename it"];
    a_missing_norm_is_named_with_both_names_tried:
        |s| s.change_weights(|tensors| { tensors.remove("encoder.layer.2.output.LayerNorm.bias"); }), [],
        ["blocks.2.feed_forward_norm.bias",
         "tried encoder.layer.2.output.LayerNorm.bias, encoder.layer.2.output.LayerNorm.beta"];
    a_missing_block_is_named:
        |s| s.set_config(json!({"num_hidden_layers": 4})), [],
        ["model.safetensors: no tensor for blocks.3.", "tried encoder.layer.3."];
    an_extra_tensor_is_refused:
        |s| s.change_weights(|tensors| copy(tensors, UP, "encoder.layer.1.adapter.weight")), [],
        ["model.safetensors: 1 tensor(s) that bert does not know: encoder.layer.1.adapter.weight",
         "give `--allow-unused`"];
    blocks_beyond_the_configured_depth_are_refused:
        |s| s.set_config(json!({"num_hidden_layers": 2})), [],
        ["model.safetensors: 16 tensor(s) that bert does not know", "and 8 more"];
    a_transposed_weight_is_refused_with_both_shapes:
        |s| s.change_weights(|tensors| {
            let turned = tensors[UP].t().unwrap().contiguous().unwrap();
            tensors.insert(UP.to_string(), turned);
        }), [],
        ["model.safetensors: tensor encoder.layer.1.intermediate.dense.weight has shape [20, 52], expected [52, 20]",
         "check that the configuration is that of these weights"];
    a_config_of_another_size_is_refused_at_the_first_tensor:
        |s| s.set_config(json!({"intermediate_size": 51})), [],
        ["model.safetensors: tensor encoder.layer.0.intermediate.dense.weight has shape [52, 20], expected [51, 20]"];
    an_integer_weight_is_refused:
        |s| s.change_weights(|tensors| convert(tensors, UP, DType::I64)), [],
        ["model.safetensors: tensor encoder.layer.1.intermediate.dense.weight is stored as I64",
         "supported: F32, F16, BF16, F64; convert it"];
}

// Shards.
refused! {
    a_missing_shard_is_named:
        |s| { s.shard(); fs::remove_file(s.path("model/model-00002-of-00002.safetensors")).unwrap() }, [],
        ["index.json: 1 of its 2 shards are missing: model-00002-of-00002.safetensors; download"];
    an_index_that_points_outside_its_folder_is_refused:
        |s| { s.shard(); rewrite(s, "model-00001-of-00002", "../input") }, [],
        ["index.json: tensor", "\"../input.safetensors\", outside the index's own directory", "put the shards beside"];
    an_index_that_is_not_json_is_refused:
        |s| { s.shard(); fs::write(s.index(), "{").unwrap() }, [],
        ["index.json: malformed JSON", "weight_map"];
    a_wrong_shape_in_a_shard_names_the_shard:
        |s| { s.shard(); s.set_config(json!({"intermediate_size": 51})) }, [],
        ["-of-00002.safetensors: tensor encoder.layer.0.intermediate.dense."];
}

// config.json.
refused! {
    a_missing_config_is_named_with_the_cure:
        |s| fs::remove_file(s.config()).unwrap(), [],
        ["config.json: no config.json found; put the checkpoint's config.json beside the weights"];
    a_config_that_is_not_json_is_refused:
        |s| fs::write(s.config(), "hidden_size: 20").unwrap(), [],
        ["config.json: malformed JSON", "line 1 column 1"];
    a_config_that_is_no_object_is_refused:
        |s| fs::write(s.config(), "[1, 2]").unwrap(), [],
        ["config.json: expected a JSON object"];
    a_config_that_is_cut_short_is_refused:
        |s| fs::write(s.config(), "{\"hidden_size\": 20").unwrap(), [], ["config.json: malformed JSON"];
    a_config_nested_without_end_is_refused:
        |s| fs::write(s.config(), "[".repeat(1 << 20)).unwrap(), [], ["config.json: malformed JSON"];
    a_config_of_the_wrong_type_is_refused:
        |s| s.set_config(json!({"hidden_size": "20"})), [],
        ["config.json: key \"hidden_size\": found \"20\", expected an integer"];
    a_config_with_half_a_head_is_refused:
        |s| s.set_config(json!({"num_attention_heads": 2.5})), [],
        ["config.json: key \"num_attention_heads\": found 2.5, expected an integer"];
    a_config_without_a_key_is_refused:
        |s| s.set_config(json!({"intermediate_size": null})), [],
        ["config.json: key \"intermediate_size\": missing, expected an integer"];
    a_config_without_model_type_is_refused:
        |s| s.set_config(json!({"model_type": null})), [],
        ["config.json: key \"model_type\": missing, expected the name of a family"];
    an_unknown_model_type_is_refused_with_the_nearest:
        |s| s.set_config(json!({"model_type": "berd"})), [],
        ["config.json: model_type \"berd\" is not a known family; nearest: bert", "`--family FILE`"];
    an_unknown_activation_is_refused_with_the_known_ones:
        |s| s.set_config(json!({"hidden_act": "gelo"})), [],
        ["config.json: key \"hidden_act\": activation \"gelo\" is not known; known: ", "gelu"];
    heads_that_do_not_divide_the_width_are_refused:
        |s| s.set_config(json!({"num_attention_heads": 3})), [],
        ["config.json: 3 heads do not divide the width 20; choose a divisor"];
    no_heads_are_refused:
        |s| s.set_config(json!({"num_attention_heads": 0})), [], ["config.json: n_heads is 0"];
    no_blocks_are_refused:
        |s| s.set_config(json!({"num_hidden_layers": 0})), [],
        ["config.json: key \"num_hidden_layers\": found 0, expected 1 to 10000 blocks"];
    a_depth_that_no_memory_holds_is_refused:
        |s| s.set_config(json!({"num_hidden_layers": 1_000_000_000})), [],
        ["config.json: key \"num_hidden_layers\": found 1000000000, expected 1 to 10000 blocks"];
    a_size_whose_products_overflow_is_refused:
        |s| s.set_config(json!({"hidden_size": 1u64 << 62})), [],
        ["config.json: key \"hidden_size\": found 4611686018427387904, expected an integer up to"];
    a_negative_eps_is_refused:
        |s| s.set_config(json!({"layer_norm_eps": -1.0})), [], ["config.json: the norm's eps is -1"];
    a_dropout_above_one_is_refused:
        |s| s.set_config(json!({"hidden_dropout_prob": 1.5})), [],
        ["config.json: residual dropout is 1.5; expected 0 <= p < 1"];
    a_feature_that_is_not_there_is_refused:
        |s| s.set_config(json!({"position_embedding_type": "relative_key"})), [],
        ["config.json: key \"position_embedding_type\": \"relative_key\" is not supported, only \"absolute\""];
}

// The input.
refused! {
    an_input_that_is_not_safetensors_is_refused:
        |s| fs::write(s.input(), "no tensors either").unwrap(), [],
        ["input.safetensors: not a valid safetensors file"];
    a_truncated_input_is_refused:
        |s| set_len(&s.input(), fs::metadata(s.input()).unwrap().len() - 1), [],
        ["input.safetensors: not a valid safetensors file"];
    an_input_that_is_not_there_is_named:
        |s| fs::remove_file(s.input()).unwrap(), [], ["input.safetensors: cannot read: "];
    a_folder_as_input_is_refused:
        |s| { fs::remove_file(s.input()).unwrap(); fs::create_dir(s.input()).unwrap() }, [],
        ["input.safetensors: cannot read: is a directory"];
    an_input_without_hidden_states_is_refused_with_what_it_has:
        |s| s.change_input(|tensors| rename(tensors, "hidden_states", "hidden_state")), [],
        ["input.safetensors: no tensor for the input of block 0; tried hidden_states", "similar", "hidden_state;"];
    integers_as_hidden_states_are_refused:
        |s| s.change_input(|tensors| convert(tensors, "hidden_states", DType::I64)), [],
        ["input.safetensors: tensor hidden_states is stored as I64", "convert it"];
    an_empty_batch_is_refused:
        |s| s.hidden_states(&[0, 4, 20]), [],
        ["input.safetensors: tensor hidden_states has an empty batch (shape [0, 4, 20])", "at least 1"];
    a_sequence_of_length_zero_is_refused:
        |s| s.hidden_states(&[2, 0, 20]), [],
        ["input.safetensors: tensor hidden_states has sequences of length zero (shape [2, 0, 20])", "at least 1"];
    hidden_states_of_another_width_are_refused:
        |s| s.hidden_states(&[2, 4, 24]), [],
        ["input.safetensors: hidden_states: has shape [2, 4, 24], expected [batch, seq, 20]"];
    hidden_states_of_rank_two_are_refused:
        |s| s.hidden_states(&[4, 20]), [],
        ["input.safetensors: tensor hidden_states has shape [4, 20], expected [batch, seq, d_model]"];
    hidden_states_of_rank_four_are_refused:
        |s| s.hidden_states(&[1, 2, 4, 20]), [],
        ["input.safetensors: tensor hidden_states has shape [1, 2, 4, 20], expected [batch, seq, d_model]"];
    a_mask_of_another_shape_is_refused:
        |s| s.change_input(|tensors| mask(tensors, &[&[1, 1]])), [],
        ["input.safetensors: tensor attention_mask has shape [1, 2], expected [3, 7]"];
    a_mask_with_other_values_is_refused_at_its_place:
        |s| s.change_input(|tensors| mask(tensors, &[&[1; 7], &[1, 1, 1, 1, 2, 0, 0], &[1; 7]])), [],
        ["input.safetensors: tensor attention_mask", "2", "[1, 4]"];
    an_additive_mask_is_refused:
        |s| s.change_input(|tensors| mask(tensors, &[&[0; 7], &[0; 7], &[0, 0, 0, 0, 0, 0, -10_000]])), [],
        ["input.safetensors: tensor attention_mask", "-10000", "[2, 6]"];
    a_mask_that_drops_everything_is_refused:
        |s| s.change_input(|tensors| mask(tensors, &[&[0; 7], &[0; 7], &[0; 7]])), [],
        ["input.safetensors: tensor attention_mask masks every row", "1 means keep"];
    backward_without_grad_output_is_refused:
        |s| s.change_input(|tensors| { tensors.remove("grad_output"); }), ["--backward"],
        ["input.safetensors: grad_output: missing; a backward pass needs it"];
    a_grad_output_of_another_shape_is_refused:
        |s| s.change_input(|tensors| {
            let cut = tensors["grad_output"].narrow(1, 0, 6).unwrap();
            tensors.insert("grad_output".to_string(), cut);
        }), ["--backward"],
        ["input.safetensors: tensor grad_output has shape [3, 6, 20], expected [3, 7, 20]"];
}

/// Returns the error from `run` with flags whose paths depend on the folder.
#[test]
fn an_output_that_cannot_be_or_would_destroy_what_is_read_is_refused() {
    let scratch = Scratch::of("tiny-bert");
    let (input, weights) = (fs::read(scratch.input()), fs::read(scratch.weights()));
    for (output, word) in [
        (
            "nowhere/stages.safetensors",
            "a folder that does not exist; create it",
        ),
        ("out", "is a folder; give the name of a file in it"),
        (
            "input.safetensors",
            "is a file that the run reads; give another name",
        ),
        ("out/../input.safetensors", "is a file that the run reads"),
        ("model/model.safetensors", "is a file that the run reads"),
    ] {
        let path = scratch.path(output);
        let path = path.to_str().unwrap();
        let answer = scratch.run(&["--output", path]);
        answer.assert_refused(&[&format!("{path}: --output "), word]);
    }
    assert_eq!(scratch.written(), [""; 0]);
    assert!(!scratch.path("nowhere").exists());
    assert_eq!(fs::read(scratch.input()).unwrap(), input.unwrap());
    assert_eq!(fs::read(scratch.weights()).unwrap(), weights.unwrap());
}

#[test]
fn a_refused_run_leaves_an_older_output_as_it_was() {
    let scratch = Scratch::of("tiny-bert");
    fs::write(scratch.output(), "an older result").unwrap();
    scratch.change_weights(|tensors| convert(tensors, UP, DType::I64));
    scratch.run(&[]).assert_refused(&[UP]);
    assert_eq!(scratch.written(), ["stages.safetensors"]);
    assert_eq!(
        fs::read_to_string(scratch.output()).unwrap(),
        "an older result"
    );
}

#[test]
fn verify_and_inspect_refuse_as_run_does() {
    let scratch = Scratch::of("tiny-bert");
    scratch.hidden_states(&[2, 4, 24]);
    let words =
        ["input.safetensors: hidden_states: has shape [2, 4, 24], expected [batch, seq, 20]"];
    scratch.verify(&[]).assert_refused(&words);
    scratch.change_weights(|tensors| convert(tensors, UP, DType::I64));
    scratch.verify(&[]).assert_refused(&[UP, "stored as I64"]);
    scratch.set_config(json!({"num_attention_heads": 3}));
    for flags in [&[] as &[&str], &["--json"]] {
        scratch
            .inspect(flags)
            .assert_refused(&["config.json: 3 heads do not divide the width 20"]);
    }
}

#[test]
fn a_weight_that_is_not_finite_is_a_mismatch_that_names_it() {
    for (value, at) in [(f32::NAN, [7, 3]), (f32::INFINITY, [0, 19])] {
        let scratch = Scratch::of("tiny-bert");
        scratch.change_weights(|tensors| {
            let mut rows = tensors[UP].to_vec2::<f32>().unwrap();
            rows[at[0]][at[1]] = value;
            tensors.insert(UP.to_string(), Tensor::new(rows, &Device::Cpu).unwrap());
        });
        let answer = scratch.verify(&[]);
        answer.assert_status(1);
        assert!(
            answer
                .stdout
                .contains("the first is layers.1.feed_forward.output"),
            "{answer:#?}"
        );
        let note = format!("note: weight {UP} holds a value that is not finite, first at {at:?}\n");
        assert_eq!(answer.stderr, note);
    }
}

#[test]
fn wrong_flags_are_refused_with_what_is_right() {
    let scratch = Scratch::of("tiny-bert");
    for (flags, word) in [
        (&["--fast"] as &[&str], "--fast"),
        (&["--dtype", "f17"], "f32, bf16, f16, f64"),
        (&["--device", "tpu"], "cpu, cuda, metal"),
        (
            &["--precision", "int3"],
            "none, f32, f16, bf16, int8, int4, int4-32, int4-128, as-stored",
        ),
        (
            &["--hub", "owner/name"],
            "give either --model PATH or --hub OWNER/NAME",
        ),
        (&["--revision", "main"], "--hub"),
        (
            &["--config", "nowhere.json"],
            "nowhere.json: no config.json found",
        ),
    ] {
        let answer = scratch.run(flags);
        answer.assert_status(2);
        assert!(answer.stderr.starts_with("error: "), "{answer:#?}");
        assert!(answer.stderr.contains(word), "no {word:?} in {answer:#?}");
    }
    for arguments in [
        &[] as &[&str],
        &["fly"],
        &["run"],
        &["inspect"],
        &["verify"],
    ] {
        let answer = answer(program().args(arguments));
        answer.assert_status(2);
        assert!(!answer.stderr.is_empty());
        assert_eq!(answer.stdout, "");
    }
    assert_eq!(scratch.written(), [""; 0]);
}

#[test]
fn a_device_that_the_build_has_not_is_refused_with_the_cure() {
    let scratch = Scratch::of("tiny-bert");
    for (device, is_built) in [
        ("cuda", cfg!(feature = "cuda")),
        ("metal", cfg!(feature = "metal")),
    ] {
        if is_built {
            continue; // the result depends on the machine
        }
        let words = [
            &format!("--device {device} needs"),
            &format!("--features {device}"),
        ];
        for answer in [
            scratch.run(&["--device", device]),
            scratch.verify(&["--device", device]),
        ] {
            answer.assert_refused(&words.map(String::as_str));
        }
    }
    assert_eq!(scratch.written(), [""; 0]);
}

#[test]
fn values_that_leave_nothing_to_print_are_refused_with_their_option() {
    let tag = ["tag", "--model", "m", "--labels", "a"];
    for (command, option) in [
        (
            &["rank", "--model", "m", "--query", "a"][..],
            ["--top-k", "0"],
        ),
        (&["classify", "--model", "m"], ["--top-k", "0"]),
        (&tag, ["--threshold", "2"]),
        (&tag, ["--threshold", "nan"]),
        (&tag, ["--threshold", "half"]),
    ] {
        let answer = answer(program().args(command).args(option));
        answer.assert_status(2);
        let [name, value] = option;
        for word in [name, value] {
            assert!(answer.stderr.contains(word), "{}", answer.stderr);
        }
        assert_eq!(answer.stdout, "");
    }
}
