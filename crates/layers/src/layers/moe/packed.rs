//! A mixture of experts with packed weights.

use std::convert::Infallible;
use std::sync::Arc;

use candle_blocks_kernels::memory::lend;
use candle_blocks_kernels::rows::{ActivationFunction, Source, softmax};
use candle_blocks_kernels::{Cpu, scratch};
use candle_core::Result;

use super::branch::{Branch, PackedBranch};
use crate::config::{ExpertWeighting, RoutingConfig, RoutingScores, RoutingWeights};
use crate::layers::feed_forward::packed::PackedFeedForward;
use crate::layers::linear::packed::{PackedProduct, add_residual};
use crate::layers::packed::{Packing, check_evaluation, elements, packs};
use crate::layers::visit::{PackedTogether, Visit};
use crate::layers::{Linear, MixtureOfExperts, Routing, among_near, best, choose_experts};
use crate::ops::Value;

/// The packed weights of a [`MixtureOfExperts`]. The router stays in f32 in every precision, so that rounding does
/// not change which experts it selects.
#[derive(Clone, Debug)]
pub(crate) struct PackedMixture {
    router: PackedProduct,
    correction: Option<Vec<f32>>,
    branch: PackedBranch,
    output_bias: Option<Vec<f32>>,
    experts: Vec<Arc<PackedFeedForward>>,
    shared: Option<SharedExpert>,
    routing: RoutingConfig,
    weighted: ExpertWeighting,
    cpu: Cpu,
}

/// The expert that every position uses, times the sigmoid of a gate if it has one.
#[derive(Clone, Debug)]
struct SharedExpert {
    feed_forward: Arc<PackedFeedForward>,
    gate: Option<PackedProduct>,
}

scratch!(INPUT_ROWS);
scratch!(SUM_ROWS);
scratch!(EXPERT_ROWS);

packs!(MixtureOfExperts);

impl PackedTogether for PackedMixture {
    fn bytes(&self) -> usize {
        // The experts are layers themselves, and count separately.
        let gate = self.shared.as_ref().and_then(|shared| shared.gate.as_ref());
        let latent = match &self.branch {
            Branch::Latent {
                latent_down,
                latent_up,
            } => [Some(latent_down), Some(latent_up)],
            Branch::Plain | Branch::Normalized(_) => [None, None],
        };
        let own = gate.into_iter().chain(latent.into_iter().flatten());
        self.router.bytes() + own.map(PackedProduct::bytes).sum::<usize>()
    }
}

impl MixtureOfExperts {
    pub(in crate::layers) fn packed(&self, packing: &Packing) -> Result<Self> {
        let exact = packing.exact();
        let experts = self.experts.iter().enumerate();
        let experts = experts.map(|(e, of)| of.packed(&packing.at(format_args!("experts.{e}"))));
        let experts = experts.collect::<Result<Vec<_>>>()?;
        let shared = self.shared.as_ref();
        let shared = shared.map(|of| of.packed(&packing.at("shared")).map(Box::new));
        let shared = shared.transpose()?;
        let gate = self.shared_gate.as_ref();
        let gate = gate
            .map(|gate| PackedProduct::new(&exact, gate))
            .transpose()?;
        let packed = PackedMixture {
            router: PackedProduct::new(&exact, &self.router)?,
            correction: self.correction.as_ref().map(elements).transpose()?,
            branch: self.branch.packed(packing)?,
            output_bias: self.output_bias.as_ref().map(elements).transpose()?,
            experts: experts.iter().flat_map(|of| of.packed.clone()).collect(),
            shared: shared
                .as_ref()
                .and_then(|of| of.packed.clone())
                .map(|feed_forward| SharedExpert { feed_forward, gate }),
            routing: self.routing,
            weighted: self.weighted,
            cpu: packing.cpu,
        };
        let mut branch = self.branch.clone();
        branch.join_linears();
        Ok(Self {
            router: self.router.joined(),
            branch,
            experts,
            grouped: None,
            shared,
            shared_gate: self.shared_gate.as_ref().map(Linear::joined),
            packed: Some(Arc::new(packed)),
            ..self.clone()
        })
    }
}

impl PackedMixture {
    /// Computes the output and adds it to `residual`.
    pub fn apply(&self, x: &Value, residual: Option<&Value>, train: bool) -> Result<Value> {
        check_evaluation(train)?;
        let (op, d_in) = ("mixture of experts", self.router.d_in());
        x.packed_step(
            op,
            d_in,
            x.dims().to_vec(),
            residual,
            |_, x, residual, y| {
                self.apply_rows(x, residual, y);
                Ok(())
            },
        )
    }

    /// Computes `y = residual + Σ weightₑ · expertₑ(x)`.
    fn apply_rows(&self, x: &Source, residual: Option<&[f32]>, y: &mut [f32]) {
        let width = x.width();
        let n = x.rows() * width;
        let inner = self.experts[0].d_model();
        // The rows that the chosen experts read, and their sum, if these are not those of the mixture.
        let (changed, latent) = match self.branch {
            Branch::Plain => (0, 0),
            Branch::Normalized(_) => (n, 0),
            Branch::Latent { .. } => (x.rows() * inner, x.rows() * inner),
        };
        lend(INPUT_ROWS, n + changed, |copies: &mut [f32]| {
            let (raw, changed) = copies.split_at_mut(n);
            x.copy_to(self.cpu, raw);
            let raw = Source::new(raw, width);
            lend(SUM_ROWS, n + latent, |sums: &mut [f32]| {
                let (sum, latent_sum) = sums.split_at_mut(n);
                match &self.branch {
                    Branch::Plain => self.sum_chosen(&raw, raw.stored(), sum),
                    Branch::Latent {
                        latent_down,
                        latent_up,
                    } => {
                        latent_down.apply(&raw, None, changed);
                        self.sum_chosen(&raw, changed, latent_sum);
                        latent_up.apply(&Source::new(latent_sum, inner), None, sum);
                    }
                    Branch::Normalized(norms) => {
                        let input = raw.with_norm(Some(&norms.input));
                        input.copy_to(self.cpu, changed);
                        self.sum_chosen(&raw, changed, sum);
                        norms.output.rows_in_place(self.cpu, sum);
                    }
                }
                if let Some(shared) = &self.shared {
                    self.add_shared(shared, &raw, sum);
                }
                add_residual(self.cpu, residual, sum, width, y);
            });
        });
    }

    /// Computes the weighted sums of the outputs of the experts that the router selects for the rows `raw`.
    fn sum_chosen(&self, raw: &Source, input: &[f32], sum: &mut [f32]) {
        match &self.output_bias {
            Some(bias) => sum
                .chunks_exact_mut(bias.len())
                .for_each(|row| row.copy_from_slice(bias)),
            None => sum.fill(0.0),
        }
        let norms = self.branch.norms();
        let routed = raw.with_norm(norms.map(|norms| &norms.router));
        for (expert, weighted) in self.experts.iter().zip(self.route(&routed)) {
            if !weighted.is_empty() {
                add_expert(expert, &weighted, self.weighted, input, sum);
            }
        }
    }

    /// Returns, for each expert, the rows that selected it and its weight in each.
    fn route(&self, input: &Source) -> Vec<Vec<(usize, f32)>> {
        let n_experts = self.router.d_out();
        let mut logits = vec![0.0; input.rows() * n_experts];
        self.router.apply(input, None, &mut logits);
        let norms = self.branch.norms();
        if let Some(norms) = norms {
            let scale = norms.logit_scale as f32;
            logits.iter_mut().for_each(|logit| *logit *= scale);
        }
        let RoutingConfig {
            top_k,
            scale,
            epsilon,
            ..
        } = self.routing;
        if let RoutingWeights::AmongNear { tolerance } = self.routing.weights {
            return one_after_another(&logits, n_experts, top_k, tolerance, scale);
        }
        let mut scores = vec![0.0; logits.len()];
        let (logits, to) = (logits[..].into(), (&mut scores[..]).into());
        match self.routing.scores {
            RoutingScores::Softmax => softmax::softmax(self.cpu, logits, to, n_experts),
            RoutingScores::Sigmoid => ActivationFunction::Sigmoid.forward(self.cpu, logits, to),
            RoutingScores::Logits => ActivationFunction::Identity.forward(self.cpu, logits, to),
        }
        let correction = self.correction.as_deref();
        let Routing { chosen, places } =
            choose_experts(&scores, n_experts, correction, &self.routing);
        let score = |row: usize, expert: u32| scores[row * n_experts + expert as usize];
        let weight = |&place: &usize| {
            let row = place / top_k;
            let divisor = match self.routing.weights {
                RoutingWeights::Scores | RoutingWeights::AmongNear { .. } => 1.0,
                RoutingWeights::Renormalized => {
                    let row_experts = &chosen[row * top_k..][..top_k];
                    let scores = row_experts.iter().map(|&expert| score(row, expert));
                    scores.sum::<f32>() + epsilon as f32
                }
            };
            let factor = norms.map_or(1.0, |norms| norms.expert_scale[chosen[place] as usize]);
            let weight = score(row, chosen[place]) / divisor * scale as f32;
            (row, weight * factor)
        };
        let weighted = |places: &Vec<usize>| places.iter().map(weight).collect();
        places.iter().map(weighted).collect()
    }

    /// Adds the shared expert's output, times its gate if it has one.
    fn add_shared(&self, shared: &SharedExpert, input: &Source, sum: &mut [f32]) {
        let width = self.router.d_in();
        let norms = self.branch.norms();
        let source = input.with_norm(norms.map(|norms| &norms.shared_input));
        let mut gates = vec![1.0; source.rows()];
        if let Some(gate) = &shared.gate {
            let mut logits = vec![0.0; source.rows()];
            gate.apply(input, None, &mut logits);
            let (from, to) = (logits[..].into(), (&mut gates[..]).into());
            ActivationFunction::Sigmoid.forward(self.cpu, from, to);
        }
        lend(EXPERT_ROWS, input.rows() * width, |output: &mut [f32]| {
            shared.feed_forward.apply_rows(&source, None, output);
            if let Some(norms) = norms {
                norms.shared_output.rows_in_place(self.cpu, output);
            }
            let rows = sum.chunks_exact_mut(width).zip(output.chunks_exact(width));
            for ((sum, output), &gate) in rows.zip(&gates) {
                add_scaled(sum, output, gate);
            }
        });
    }
}

/// Returns, for each expert, the rows that selected it and its weight in each, by [`RoutingWeights::AmongNear`].
fn one_after_another(
    logits: &[f32],
    n_experts: usize,
    top_k: usize,
    tolerance: f64,
    scale: f64,
) -> Vec<Vec<(usize, f32)>> {
    let mut weighted = vec![Vec::new(); n_experts];
    for (row, logits) in logits.chunks_exact(n_experts).enumerate() {
        let scores: Vec<f64> = logits.iter().map(|&s| s.into()).collect();
        let best = |_, near: &[f64]| Ok::<_, Infallible>(best(near));
        let Ok(chosen) = among_near(&scores, top_k, tolerance, best);
        for (expert, near) in chosen {
            let shares = near.iter().map(|s| (s - near[expert]).exp());
            let share = scale / shares.sum::<f64>();
            weighted[expert].push((row, share as f32));
        }
    }
    weighted
}

/// Adds an expert's output to the rows that selected it, with its weight in each.
fn add_expert(
    expert: &PackedFeedForward,
    chosen: &[(usize, f32)],
    weighted: ExpertWeighting,
    input: &[f32],
    sum: &mut [f32],
) {
    let width = expert.d_model();
    let n = chosen.len() * width;
    lend(EXPERT_ROWS, 2 * n, |memory: &mut [f32]| {
        let (rows, output) = memory.split_at_mut(n);
        for (to, &(row, weight)) in rows.chunks_exact_mut(width).zip(chosen) {
            to.copy_from_slice(&input[row * width..][..width]);
            if weighted == ExpertWeighting::Inputs {
                to.iter_mut().for_each(|x| *x *= weight);
            }
        }
        expert.apply_rows(&Source::new(rows, width), None, output);
        for (output, &(row, weight)) in output.chunks_exact(width).zip(chosen) {
            let factor = match weighted {
                ExpertWeighting::Inputs => 1.0,
                ExpertWeighting::Outputs => weight,
            };
            add_scaled(&mut sum[row * width..][..width], output, factor);
        }
    });
}

fn add_scaled(sum: &mut [f32], values: &[f32], factor: f32) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += value * factor;
    }
}
