//! Encoders with their decoders.

use std::collections::HashMap;

use candle_blocks::candle_core::{D, DType, Tensor};
use candle_blocks::checkpoint::scheme::StackPart;
use candle_blocks::model::{ModelInput, Seq2Seq};
use candle_blocks::trace::{self, TraceInput};
use candle_blocks::{Checkpoint, CheckpointOptions, Precision, Weights};

use crate::device::device;
use crate::double::has_f64;
use crate::message::message;
use crate::same::assert_same;
use crate::weights::{is_present, weights};
use crate::whole::{Whole, wholes};

fn whole(name: &str) -> Checkpoint {
    let options = CheckpointOptions::default().whole();
    options.open(weights(name)).unwrap()
}

/// Returns models with tokens that transformers generated, and its input.
fn generators() -> Vec<(Whole, TraceInput, Tensor)> {
    let generator = |whole: Whole| {
        let fixture = whole.fixture();
        let tokens = fixture.tensor("tokens")?.to_dtype(DType::U32).unwrap();
        fixture.tensor("decoder_input_ids")?;
        let input = TraceInput::new(|name| fixture.tensor(name).cloned()).unwrap();
        Some((whole, input, tokens))
    };
    let found: Vec<_> = wholes().into_iter().filter_map(generator).collect();
    assert!(!is_present("heads") || found.len() >= 5);
    found
}

/// Returns an input whose audio features are in a model's type and on its device.
fn of_model(input: &ModelInput, model: &Seq2Seq, dtype: DType) -> ModelInput {
    let moved = |features: &Tensor| {
        let features = features.to_dtype(dtype).unwrap();
        features.to_device(model.encoder().device()).unwrap()
    };
    ModelInput {
        input_features: input.input_features.as_ref().map(moved),
        ..input.clone()
    }
}

/// Returns the tokens from greedy search after the prompts, one at a time with a cache.
fn cached(model: &Seq2Seq, input: &ModelInput, n_new: usize) -> Vec<Vec<u32>> {
    let encoded = model.encode(input).unwrap();
    let mut cache = model.new_cache();
    let mut next = input.decoder_input_ids.clone().unwrap();
    let mut tokens = Vec::new();
    for _ in 0..n_new {
        let logits = model.next_logits(&next, &encoded, &mut cache).unwrap();
        next = logits.argmax_keepdim(D::Minus1).unwrap();
        tokens.push(next.clone());
    }
    Tensor::cat(&tokens, 1).unwrap().to_vec2().unwrap()
}

/// The same from all tokens anew.
fn anew(model: &Seq2Seq, input: &ModelInput, n_new: usize) -> Vec<Vec<u32>> {
    let start = input.decoder_input_ids.clone().unwrap();
    let start = start.to_dtype(DType::U32).unwrap();
    let mut ids = start.clone();
    for _ in 0..n_new {
        let output = model.forward(&input.clone().with_decoder(&ids)).unwrap();
        let logits = output.decoder.logits.unwrap();
        let (_, seq, _) = logits.dims3().unwrap();
        let last = logits.narrow(1, seq - 1, 1).unwrap().squeeze(1).unwrap();
        let next = last.argmax_keepdim(D::Minus1).unwrap();
        let next = next.to_device(ids.device()).unwrap();
        ids = Tensor::cat(&[&ids, &next], 1).unwrap();
    }
    let prompt = start.dims()[1];
    ids.narrow(1, prompt, n_new).unwrap().to_vec2().unwrap()
}

#[test]
fn greedy_tokens_are_transformers_with_a_cache_and_without() {
    for (whole, input, tokens) in generators() {
        let expected: Vec<Vec<u32>> = tokens.to_vec2().unwrap();
        let (input, n_new) = (input.model, expected[0].len());
        let checkpoint = whole.open();
        let plain = checkpoint
            .load(Weights::Dense(DType::F32, &device()))
            .seq2seq()
            .unwrap();
        let packed = checkpoint
            .load(Weights::Packed(Precision::F32))
            .seq2seq()
            .unwrap();
        for (how, model) in [("plain", plain), ("packed", packed)] {
            let label = format!("{} {how}", whole.name);
            let input = of_model(&input, &model, DType::F32);
            assert_eq!(cached(&model, &input, n_new), expected, "{label}, cached");
            assert_eq!(anew(&model, &input, n_new), expected, "{label}, anew");
        }
    }
}

#[test]
fn logits_with_a_cache_are_those_of_the_whole_sequence() {
    if !has_f64("decoding in f64") {
        return;
    }
    for (whole, input, _) in generators() {
        let model = whole
            .open()
            .load(Weights::Dense(DType::F64, &device()))
            .seq2seq()
            .unwrap();
        let input = of_model(&input.model, &model, DType::F64);
        let ids = input.decoder_input_ids.clone().unwrap();
        let full = model.forward(&input).unwrap().decoder.logits.unwrap();
        let encoded = model.encode(&input).unwrap();
        let mut cache = model.new_cache();
        let mut seen = 0;
        for n in [1, 3, 2] {
            let chunk = ids.narrow(1, seen, n).unwrap();
            let logits = model.next_logits(&chunk, &encoded, &mut cache).unwrap();
            seen += n;
            let of_full = full.narrow(1, seen - 1, 1).unwrap().squeeze(1).unwrap();
            let difference = (logits - of_full)
                .unwrap()
                .abs()
                .unwrap()
                .max_all()
                .unwrap();
            let difference: f64 = difference.to_scalar().unwrap();
            assert!(difference < 1e-10, "{} {seen}: {difference:e}", whole.name);
        }
    }
}

#[test]
fn a_stack_alone_gives_what_it_gives_in_the_whole() {
    for (whole, input, _) in generators() {
        let (checkpoint, device) = (whole.open(), device());
        let stages = trace::run(&checkpoint, &input, DType::F32, &device).unwrap();
        let stages: HashMap<String, Tensor> = stages.into_iter().collect();
        let alone = |part, input: &TraceInput| -> HashMap<String, Tensor> {
            let options = CheckpointOptions::default().part(part);
            let checkpoint = options.open(weights(&whole.name)).unwrap();
            let stages = trace::run(&checkpoint, input, DType::F32, &device).unwrap();
            stages.into_iter().collect()
        };
        let same = |ours: &Tensor, name: &str| {
            assert_same(ours, &stages[name], (&whole.name, name));
        };

        let encoder = alone(StackPart::Encoder, &of_encoder(&input));
        same(&encoder["last_hidden_state"], "encoder_last_hidden_state");
        same(&encoder["embeddings"], "encoder.embeddings");
        same(&encoder["layers.0.output"], "encoder.layers.0.output");

        let mut of_decoder = input.clone();
        of_decoder.model.input_ids = None;
        of_decoder.model.attention_mask = None;
        of_decoder.model.encoder_hidden_states = Some(stages["encoder_last_hidden_state"].clone());
        of_decoder.model.encoder_attention_mask = input.model.attention_mask.clone();
        let decoder = alone(StackPart::Decoder, &of_decoder);
        same(&decoder["logits"], "logits");
        same(&decoder["layers.0.output"], "layers.0.output");
    }
}

fn of_encoder(input: &TraceInput) -> TraceInput {
    let mut input = input.clone();
    input.model.decoder_input_ids = None;
    input
}

#[test]
fn a_table_that_both_stacks_share_is_one_parameter_and_is_saved() {
    if !is_present("families/bart") {
        return;
    }
    for (name, on_disk) in [("bart", "model.shared.weight"), ("t5", "shared.weight")] {
        let checkpoint = whole(&format!("families/{name}"));
        let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
        let model = loader.seq2seq().unwrap();
        let parameters = loader.parameters();
        let of_words = |(role, _): &&(String, _)| role.ends_with("embeddings.word.weight");
        assert_eq!(parameters.iter().filter(of_words).count(), 1, "{name}");

        // Another value reaches both stacks.
        let words = parameters.find("embeddings.word.weight").unwrap();
        words.set(&(words.as_tensor() * 0.5).unwrap()).unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let saved = scratch.path().join(name);
        checkpoint.save(&saved, parameters).unwrap();
        let reopened = CheckpointOptions::default().whole().open(&saved).unwrap();
        let files = [&checkpoint, &reopened].map(|c| c.files().read(on_disk).unwrap());
        let [old, new] = files.map(|t| t.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        let half: Vec<f32> = old.iter().map(|value| value * 0.5).collect();
        assert_eq!(new, half, "{name}");

        let ids = Tensor::new(&[[4u32, 9, 3]], &device()).unwrap();
        let input = ModelInput::tokens(&ids).with_decoder(&ids);
        let reopened = reopened
            .load(Weights::Dense(DType::F32, &device()))
            .seq2seq()
            .unwrap();
        let logits =
            [&model, &reopened].map(|model| model.forward(&input).unwrap().decoder.logits.unwrap());
        assert_same(&logits[0], &logits[1], name);
    }
}

#[test]
fn a_missing_part_of_a_model_with_two_stacks_is_reported_with_the_cure() {
    if !is_present("families/bart") {
        return;
    }
    let device = device();
    let bart = whole("families/bart")
        .load(Weights::Dense(DType::F32, &device))
        .seq2seq()
        .unwrap();
    let ids = Tensor::new(&[[4u32, 9, 3]], &device).unwrap();
    let said = message(bart.forward(&ModelInput::tokens(&ids)));
    assert!(said.contains("decoder_input_ids"), "{said}");
    let said = message(bart.forward(&ModelInput::default().with_decoder(&ids)));
    assert!(said.contains("input_ids"), "{said}");

    let one = CheckpointOptions::default().part(StackPart::Decoder);
    let one = one.open(weights("families/bart")).unwrap();
    let said = message(one.load(Weights::Dense(DType::F32, &device)).seq2seq());
    assert!(said.contains("CheckpointOptions::whole"), "{said}");
    let said = message(
        whole("families/bart")
            .load(Weights::Dense(DType::F32, &device))
            .two_towers(),
    );
    assert!(said.contains("a text and a vision tower"), "{said}");

    // Blocks alone are of one stack.
    let hidden_states = Tensor::zeros((1, 3, 12), DType::F32, &device).unwrap();
    let input = TraceInput::new(|name| (name == "hidden_states").then(|| hidden_states.clone()));
    let said = message(trace::run(
        &whole("families/bart"),
        &input.unwrap(),
        DType::F32,
        &device,
    ));
    assert!(said.contains("select encoder or decoder"), "{said}");

    // A classifier reads the end of the encoder's text among the decoder's positions.
    let bart = whole("heads/bart-sequence_classification")
        .load(Weights::Dense(DType::F32, &device))
        .seq2seq()
        .unwrap();
    let text = Tensor::new(&[[4u32, 9, 2]], &device).unwrap();
    bart.forward(&ModelInput::tokens(&text)).unwrap();
    let short =
        ModelInput::tokens(&text).with_decoder(&Tensor::new(&[[1u32, 4]], &device).unwrap());
    let said = message(bart.forward(&short));
    assert!(said.contains("[1, 3]") && said.contains("[1, 2]"), "{said}");
    let said = message(bart.forward(&ModelInput::tokens(&ids)));
    assert!(said.contains("must hold the token 2"), "{said}");

    let whisper = whole("families/whisper")
        .load(Weights::Dense(DType::F32, &device))
        .seq2seq()
        .unwrap();
    let short = Tensor::zeros((1, 5, 13), DType::F32, &device).unwrap();
    let said = message(whisper.encode(&ModelInput::spectrum(&short)));
    assert!(
        said.contains("[batch, 5, 14]") && said.contains("pad or cut"),
        "{said}"
    );
}
