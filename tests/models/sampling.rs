//! Tokens are drawn with the probabilities that transformers' processors give them.

use std::fs;

use candle_blocks::candle_core::{self, Device, Tensor, safetensors};
use candle_blocks::generate::{
    Choose, Decoder, Generation, GenerationOptions, Sampler, Sampling, Sequence,
};
use candle_blocks::model::ModelInput;
use serde_json::Value;

use crate::cpu_only::cpu_only;
use crate::device::device;
use crate::weights::weights;

const DRAWS: usize = 20_000;

/// Returns the settings for a case, with the names in transformers' `GenerationConfig`.
fn settings(name: &str) -> (Sampling, GenerationOptions) {
    let bytes = fs::read(weights("reference/generation.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let said = header["__metadata__"][name].as_str().unwrap();
    let said: Value = serde_json::from_str(said).unwrap();
    let number = |key: &str| said[key].as_f64();
    let sampling = Sampling {
        top_h: number("top_h"),
        top_k: said["top_k"].as_u64().map(|k| k as usize),
        top_p: number("top_p"),
        min_p: number("min_p"),
        typical_p: number("typical_p"),
        epsilon_cutoff: number("epsilon_cutoff"),
        eta_cutoff: number("eta_cutoff"),
        ..Sampling::at(number("temperature").unwrap_or(1.0))
    };
    let penalty = number("repetition_penalty").unwrap_or(1.0);
    let options = GenerationOptions::default().with_repetition_penalty(penalty);
    (sampling, options)
}

/// A decoder with the same logits for all sequences.
struct Fixed(Tensor);

impl Decoder for Fixed {
    fn next_logits(&mut self, new: &ModelInput) -> candle_core::Result<Tensor> {
        let batch = new.input_ids.as_ref().unwrap().dim(0)?;
        self.0.broadcast_as((batch, self.0.elem_count()))
    }

    fn keep_sequences(&mut self, _: &[usize]) -> candle_core::Result<()> {
        Ok(())
    }

    fn forget(&mut self) {}
}

/// Returns a token for each of many sequences with the same logits.
fn drawn(sampling: Sampling, logits: &[f32], tokens: &[u32]) -> Vec<u32> {
    let sequences = (0..DRAWS).map(|index| Sequence { index, tokens });
    let sequences: Vec<Sequence> = sequences.collect();
    let logits = Tensor::new(logits, &device()).unwrap();
    let logits = logits.unsqueeze(0).unwrap();
    let logits = logits.broadcast_as((DRAWS, logits.dims()[1])).unwrap();
    let mut sampler = Sampler::new(sampling).unwrap();
    sampler.choose(&logits, &sequences).unwrap()
}

#[test]
fn tokens_are_sampled_with_the_probabilities_of_transformers() {
    let path = weights("reference/generation.safetensors");
    let tensors = safetensors::load(path, &Device::Cpu).unwrap();
    let vector = |name: &str| tensors[name].to_vec1::<f32>().unwrap();
    let logits = vector("sampling.logits");
    let occurring = tensors["sampling.occurring"].to_vec1::<u8>().unwrap();
    let occurring: Vec<u32> = occurring.into_iter().map(u32::from).collect();
    let mut n_cases = 0;
    for name in tensors.keys().filter(|name| name.starts_with("sampling.")) {
        if ["sampling.logits", "sampling.occurring"].contains(&name.as_str()) {
            continue;
        }
        n_cases += 1;
        let probabilities = vector(name);
        let mut counts = vec![0usize; logits.len()];
        let (sampling, options) = settings(name);
        let generation = Generation::new(
            Fixed(Tensor::new(&logits[..], &device()).unwrap()),
            &vec![occurring.clone(); DRAWS],
            Sampler::new(sampling.with_seed(3)).unwrap(),
            options,
        );
        for token in generation.unwrap().next().unwrap().unwrap() {
            counts[token.unwrap() as usize] += 1;
        }
        let (mut squares, mut bins) = (0.0, 0usize);
        let (mut rare_expected, mut rare) = (0.0, 0.0);
        for (&count, &p) in counts.iter().zip(&probabilities) {
            assert!(
                p > 0.0 || count == 0,
                "{name}: a token that must not be drawn"
            );
            let expected = f64::from(p) * DRAWS as f64;
            if expected < 5.0 {
                rare_expected += expected;
                rare += count as f64;
            } else {
                squares += (count as f64 - expected).powi(2) / expected;
                bins += 1;
            }
        }
        if rare_expected > 5.0 {
            squares += (rare - rare_expected).powi(2) / rare_expected;
            bins += 1;
        }
        // Four standard deviations of chi-square: one seed in 30,000.
        let freedom = bins.saturating_sub(1) as f64;
        let limit = freedom + 4.0 * (2.0 * freedom).sqrt() + 8.0;
        assert!(
            bins > 2 && squares < limit,
            "{name}: chi-square {squares} of {bins} bins"
        );
    }
    assert_eq!(n_cases, 12);
}

#[test]
fn a_seed_repeats_and_another_does_not() {
    let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.7).sin()).collect();
    let with = |seed| drawn(Sampling::at(1.0).with_seed(seed), &logits, &[1, 2]);
    assert_eq!(with(1), with(1));
    assert_ne!(with(1), with(2));
    // Nor the same at the next place.
    let next = drawn(Sampling::at(1.0).with_seed(1), &logits, &[1, 2, 3]);
    assert_ne!(with(1), next);
}

#[test]
fn without_a_seed_a_sampler_draws_one_that_repeats_its_tokens() {
    let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.7).sin()).collect();
    let drawn_seeds = |sampling| -> Vec<Option<u64>> {
        let sampler = || Sampler::new(sampling).unwrap();
        (0..8).map(|_| sampler().sampling().seed).collect()
    };
    let mut seeds = drawn_seeds(Sampling::at(1.0));
    let first = seeds[0].unwrap();
    seeds.sort();
    seeds.dedup();
    assert_eq!(seeds.len(), 8, "{seeds:?}");
    assert!(first <= u64::from(u32::MAX));
    let sampler = Sampler::new(Sampling::at(1.0)).unwrap();
    let again = Sampling::at(1.0).with_seed(sampler.sampling().seed.unwrap());
    assert_eq!(
        drawn(*sampler.sampling(), &logits, &[1, 2]),
        drawn(again, &logits, &[1, 2])
    );
    assert_eq!(drawn_seeds(Sampling::greedy()), [None; 8]);
    assert_eq!(drawn_seeds(Sampling::at(1.0).with_seed(3)), [Some(3); 8]);
}

/// Draws by the whole distribution, sorted at once.
#[test]
fn top_p_of_many_tokens_keeps_the_fewest_that_suffice() {
    let n = 3000;
    let logits: Vec<f32> = (0..n).map(|i| ((i * 7919) % n) as f32 * 0.002).collect();
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    let (mut sum, mut kept) = (0.0, 0);
    while sum < 0.8 {
        sum += f64::from(logits[order[kept]]).exp() / total;
        kept += 1;
    }
    let mut seen = vec![false; n];
    for token in drawn(Sampling::at(1.0).with_top_p(0.8), &logits, &[]) {
        seen[token as usize] = true;
    }
    assert!(order[kept..].iter().all(|&token| !seen[token]));
    let n_seen = order[..kept].iter().filter(|&&token| seen[token]).count();
    assert!(n_seen as f64 > 0.99 * kept as f64, "{n_seen} of {kept}");
}

#[test]
fn a_temperature_near_0_draws_the_likeliest() {
    let mut logits = vec![-3.0, 90.0, 89.9, 0.0];
    for (largest, logit) in [(1, 90.0), (2, f32::NEG_INFINITY)] {
        logits[1] = logit;
        for temperature in [1e-6, 1e-40, 1e-300] {
            let cold = Sampling::at(temperature).with_top_p(0.9).with_min_p(0.1);
            let drawn = drawn(cold, &logits, &[]);
            assert!(drawn.iter().all(|&token| token == largest));
        }
    }
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    cpu_only("settings are checked without a tensor");
    let refused = |sampling| Sampler::new(sampling).unwrap_err().to_string();
    let one = Sampling::at(1.0);
    assert!(refused(Sampling::at(-1.0)).contains("temperature"));
    assert!(refused(Sampling::at(f64::NAN)).contains("temperature"));
    assert!(refused(one.with_top_k(0)).contains("top_k"));
    assert!(refused(one.with_top_p(1.1)).contains("top_p"));
    assert!(refused(one.with_min_p(-0.1)).contains("min_p"));
    let mut typical = one;
    typical.typical_p = Some(0.0);
    assert!(refused(typical).contains("typical_p"));
}

#[test]
fn nan_logits_select_no_token() {
    for bad in [f32::NAN, f32::NEG_INFINITY] {
        for sampling in [Sampling::greedy(), Sampling::at(1.0)] {
            let logits = Tensor::new(&[[bad, bad]], &device()).unwrap();
            let sequence = Sequence {
                index: 0,
                tokens: &[1],
            };
            let mut sampler = Sampler::new(sampling).unwrap();
            let chosen = sampler.choose(&logits, &[sequence]);
            assert!(chosen.is_err(), "{bad} {sampling:?}");
        }
    }
}
