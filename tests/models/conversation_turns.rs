//! The next turn of a conversation takes the keys and values that it shares with the earlier one, and changes no bit.

use candle_blocks::candle_core::{DType, Result, Tensor};
use candle_blocks::generate::{
    CausalDecoder, Decoder, Generation, GenerationOptions, Generator, Sampler,
};
use candle_blocks::model::{Model, ModelInput};
use candle_blocks::{Checkpoint, Precision, Weights};

use crate::decoder_prompts::decoder_prompts;
use crate::device::device;
use crate::numbers::bits;
use crate::weights::{is_present, weights};
use crate::whole::wholes;

const N_NEW: usize = 4;

/// A decoder that counts the tokens that it computes.
struct Counting {
    decoder: CausalDecoder,
    computed: usize,
}

impl Decoder for Counting {
    fn next_logits(&mut self, new: &ModelInput) -> Result<Tensor> {
        self.computed += new.input_ids.as_ref().map_or(0, Tensor::elem_count);
        self.decoder.next_logits(new)
    }

    fn keep_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        self.decoder.keep_sequences(sequences)
    }

    fn forget(&mut self) {
        self.decoder.forget();
    }

    fn keep_prefix(&mut self, sequence: &[u32]) -> Result<usize> {
        self.decoder.keep_prefix(sequence)
    }

    fn max_positions(&self) -> Option<usize> {
        self.decoder.max_positions()
    }

    fn renewed_after(&self) -> usize {
        self.decoder.renewed_after()
    }
}

/// Continues a prompt; returns the decoder, the number of computed tokens, the new tokens and the bits of all logits.
fn continued(decoder: CausalDecoder, prompt: &[u32]) -> (CausalDecoder, usize, Vec<u32>, Vec<u64>) {
    let counting = Counting {
        decoder,
        computed: 0,
    };
    let mut seen = Vec::new();
    let choose = |logits: &Tensor| {
        seen.extend(bits(logits));
        logits.argmax(1)?.to_vec1::<u32>()
    };
    let options = GenerationOptions::default().with_max_new_tokens(N_NEW);
    let mut generation = Generation::new(counting, &[prompt.to_vec()], choose, options).unwrap();
    for step in &mut generation {
        step.unwrap();
    }
    let tokens = generation.tokens(0).to_vec();
    let Counting { decoder, computed } = generation.into_decoder();
    (decoder, computed, tokens, seen)
}

/// Returns whether logits differ by rounding alone: by the CPU's kernels, or by a GPU's, which sum in another order for
/// another number of rows.
fn near(ours: &[u64], theirs: &[u64]) -> bool {
    let most = if device().is_cpu() { 1e-6 } else { 1e-5 };
    let pairs = ours.iter().zip(theirs);
    let is_near = |(&a, &b): (&u64, &u64)| {
        let (a, b) = (f64::from_bits(a), f64::from_bits(b));
        (a - b).abs() <= most * b.abs().max(1.0)
    };
    ours.len() == theirs.len() && pairs.into_iter().all(is_near)
}

/// Compares the turns of a conversation with generations that start anew; returns whether a turn kept a prefix.
fn keeps(name: &str, model: &Model, first: &[u32]) -> bool {
    let new = || CausalDecoder::new(model);
    let (mut decoder, _, answer, _) = continued(new(), first);
    let mut turn = [first, &answer].concat();
    let known = turn.len() - 1;
    let mut has_kept = false;
    // A longer prompt, the same again, one that differs in its last tokens, and a beginning of it.
    turn.extend([1, 2]);
    let longer = turn.clone();
    let mut other = longer.clone();
    other.truncate(first.len());
    other.push(3);
    for (prompt, most) in [
        (&longer[..], longer.len() - known),
        (&longer, 1),
        (&other, 1),
        (&other[..first.len() - 1], 1),
    ] {
        let (_, anew, tokens, expected) = continued(new(), prompt);
        let computed;
        let (ours, seen);
        (decoder, computed, ours, seen) = continued(decoder, prompt);
        assert_eq!(ours, tokens, "{name}: {prompt:?}");
        // Position biases count from the last key. If their slopes are no powers of two, as MPT's and those of three heads,
        // rounding depends on the number of keys.
        let is_rounded = name.contains("mpt") || name.contains("alibi");
        match is_rounded || !device().is_cpu() {
            true => assert!(near(&seen, &expected), "{name}: {prompt:?}"),
            false => assert_eq!(seen, expected, "{name}: {prompt:?}"),
        }
        let is_kept = computed == most + N_NEW - 1;
        assert!(
            is_kept || computed == anew,
            "{name}: {computed} for {prompt:?}"
        );
        has_kept |= is_kept;
    }
    has_kept
}

#[test]
fn a_continued_conversation_has_the_bits_of_one_that_starts_anew() {
    let (mut kept, mut renewed) = (0, Vec::new());
    for whole in wholes() {
        let Some(prompts) = decoder_prompts(&whole.name) else {
            continue;
        };
        let checkpoint = Checkpoint::open(weights(&whole.name)).unwrap();
        let plain = checkpoint
            .load(Weights::Dense(DType::F32, &device()))
            .model()
            .unwrap();
        let packed = checkpoint
            .load(Weights::Packed(Precision::F32))
            .model()
            .unwrap();
        let prompt = prompts.iter().max_by_key(|prompt| prompt.len()).unwrap();
        let has_kept = keeps(&whole.name, &plain, prompt);
        assert_eq!(
            keeps(&whole.name, &packed, prompt),
            has_kept,
            "{}",
            whole.name
        );
        match has_kept {
            true => kept += 1,
            false => renewed.push(whole.name),
        }
    }
    println!("{kept} kept a prefix, {renewed:?} start anew");
    if is_present("families/llama") {
        assert!(kept > 8 * renewed.len(), "{kept}, {renewed:?}");
    }
}

#[test]
fn a_cache_from_a_file_goes_on_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt.safetensors");
    let mut n_models = 0;
    for whole in wholes() {
        let Some(prompts) = decoder_prompts(&whole.name) else {
            continue;
        };
        let checkpoint = Checkpoint::open(weights(&whole.name)).unwrap();
        for kind in [
            Weights::Dense(DType::F32, &device()),
            Weights::Packed(Precision::F32),
            Weights::Packed(Precision::Int8),
        ] {
            let model = checkpoint.load(kind).model().unwrap();
            let prompt = prompts.iter().max_by_key(|prompt| prompt.len()).unwrap();
            let ids = Tensor::new(&prompt[..], &device()).unwrap();
            let input = ModelInput::tokens(&ids.unsqueeze(0).unwrap());
            let mut cache = model.new_cache();
            model.next_logits(&input, &mut cache).unwrap();
            cache.save(&file).unwrap();
            let stored = model.load_cache(&file, &device()).unwrap();
            let longer = [&prompt[..], &[1, 2]].concat();
            let after = |cache| {
                let decoder = CausalDecoder::new(model.clone());
                let decoder = decoder.with_cache(cache, prompt.clone()).unwrap();
                let (_, computed, tokens, logits) = continued(decoder, &longer);
                (computed, tokens, logits)
            };
            assert_eq!(after(stored), after(cache), "{}", whole.name);
        }
        n_models += 1;
    }
    assert!(n_models > 0 || !is_present("families/llama"));
    println!("{n_models} models");
}

#[test]
fn a_file_that_is_no_cache_of_the_model_is_refused_by_its_name() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let checkpoint = Checkpoint::open(weights("tiny-gpt-text")).unwrap();
    let device = crate::device::device();
    let load = |kind: Weights| checkpoint.load(kind).model().unwrap();
    let plain = load(Weights::Dense(DType::F32, &device));
    let packed = load(Weights::Packed(Precision::F32));
    let ids = Tensor::new(&[[3u32, 1, 4]], &device).unwrap();
    let mut cache = plain.new_cache();
    let input = ModelInput::tokens(&ids);
    plain.next_logits(&input, &mut cache).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cache.safetensors");
    cache.save(&file).unwrap();
    let refused = |model: &Model, file: &std::path::Path| {
        let error = model.load_cache(file, &device).unwrap_err().to_string();
        let name = file.file_name().unwrap().to_str().unwrap();
        assert!(error.contains(name), "{error}");
        error
    };
    assert!(refused(&packed, &file).contains("packed or not"));
    let other = weights("tiny-gpt-text/model.safetensors");
    assert!(refused(&plain, &other).contains("ModelCache::save"));
    refused(&plain, &folder.path().join("absent.safetensors"));
    std::fs::write(&file, b"no safetensors file").unwrap();
    refused(&plain, &file);
    let decoder = || CausalDecoder::new(plain.clone());
    let error = decoder().with_cache(cache, vec![3, 1]).unwrap_err();
    assert!(error.to_string().contains("3 positions"), "{error}");
}

#[test]
fn a_generator_continues_its_own_generations_only() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let checkpoint = Checkpoint::open(weights("tiny-gpt-text")).unwrap();
    let model = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .model()
        .unwrap();
    let options = || GenerationOptions::default().with_max_new_tokens(3);
    let generator = Generator::new(&model, options()).unwrap();
    let prompt = vec![3u32, 1, 4, 1, 5];
    let run = |mut generation: Generation<CausalDecoder, Sampler>| {
        for step in &mut generation {
            step.unwrap();
        }
        generation
    };
    let first = run(generator
        .start(std::slice::from_ref(&prompt), Sampler::greedy())
        .unwrap());
    let mut longer = [&prompt[..], first.tokens(0)].concat();
    longer.push(7);
    let anew = run(generator
        .start(&[longer.clone()], Sampler::greedy())
        .unwrap());
    let after = generator.start_after(Some(first), &[longer.clone()], Sampler::greedy());
    let after = run(after.unwrap());
    assert_eq!(after.tokens(0), anew.tokens(0));
    // Of another model's, nothing is taken; nor for several prompts.
    let other = Generator::new(model.clone(), options()).unwrap();
    let two = [longer.clone(), prompt];
    let expected = run(other.start(&two, Sampler::greedy()).unwrap());
    let ours = run(other
        .start_after(Some(after), &two, Sampler::greedy())
        .unwrap());
    let again = run(other
        .start_after(Some(ours), &two, Sampler::greedy())
        .unwrap());
    for i in 0..2 {
        assert_eq!(again.tokens(i), expected.tokens(i));
    }
}
