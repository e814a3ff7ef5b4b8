//! A mixture of experts with packed weights.

use std::cell::Cell;

use candle_core::{Module, Result, Tensor};

use super::{
    PackedFeedForward, Packing,
    linear::{Finishing, PackedLinear},
    map_rows,
};
use crate::{
    config::{Precision, RoutingWeights},
    cpu::{
        activation::{Computed, Sigmoid},
        isa::Isa,
        parallel,
        scratch::{Aligned, Scratch, lend},
        softmax::{self, Seen},
        source::Source,
        weight::WeightFormat,
    },
    layers::MixtureOfExperts,
};

/// A [`MixtureOfExperts`] packed for inference on the CPU, created by [`MixtureOfExperts::pack`]. The router stays in f32
/// in every precision, so that rounding does not change the choice of experts.
#[derive(Clone, Debug)]
pub struct PackedMixture {
    router: PackedLinear,
    experts: Vec<PackedFeedForward>,
    shared: Option<SharedExpert>,
    top_k: usize,
    weights: RoutingWeights,
    isa: Isa,
    threads: usize,
}

/// The expert that every position uses, times the sigmoid of a gate.
#[derive(Clone, Debug)]
struct SharedExpert {
    feed_forward: PackedFeedForward,
    gate: PackedLinear,
}

/// A row that chose an expert, and the expert's weight in it.
#[derive(Clone, Copy)]
struct Choice {
    row: usize,
    weight: f32,
}

thread_local!(static INPUT: Cell<Aligned<f32>> = const { Cell::new(Aligned::empty()) });
static INPUT_ROWS: &Scratch<f32> = &INPUT;
thread_local!(static SUM: Cell<Aligned<f32>> = const { Cell::new(Aligned::empty()) });
static SUM_ROWS: &Scratch<f32> = &SUM;
thread_local!(static EXPERT: Cell<Aligned<f32>> = const { Cell::new(Aligned::empty()) });
static EXPERT_ROWS: &Scratch<f32> = &EXPERT;

impl MixtureOfExperts {
    /// Packs the weights for inference on the CPU.
    ///
    /// # Errors
    /// If the layer is not on the CPU or is f64.
    pub fn pack(&self, precision: Precision) -> Result<PackedMixture> {
        PackedMixture::new(&Packing::new(precision)?, self)
    }
}

impl PackedMixture {
    pub(super) fn new(packing: &Packing, mixture: &MixtureOfExperts) -> Result<Self> {
        mixture.check_shapes()?;
        let exact = Packing {
            format: WeightFormat::F32,
            ..packing.clone()
        };
        let experts = mixture.experts().iter();
        let shared = mixture.shared().map(|(feed_forward, gate)| {
            Ok::<_, candle_core::Error>(SharedExpert {
                feed_forward: PackedFeedForward::new(packing, feed_forward)?,
                gate: PackedLinear::new(&exact, gate)?,
            })
        });
        Ok(Self {
            router: PackedLinear::new(&exact, mixture.router())?,
            experts: experts
                .map(|expert| PackedFeedForward::new(packing, expert))
                .collect::<Result<_>>()?,
            shared: shared.transpose()?,
            top_k: mixture.top_k(),
            weights: mixture.weights(),
            isa: packing.isa,
            threads: packing.threads,
        })
    }

    /// The width of the input and the output.
    pub fn d_model(&self) -> usize {
        self.router.d_in()
    }

    /// The size of the packed weights in bytes.
    pub fn bytes(&self) -> usize {
        let shared = self.shared.iter();
        let shared: usize = shared
            .map(|shared| shared.feed_forward.bytes() + shared.gate.bytes())
            .sum();
        let experts: usize = self.experts.iter().map(PackedFeedForward::bytes).sum();
        self.router.bytes() + experts + shared
    }

    /// `y = finishing(Σ weightₑ · expertₑ(x))`.
    pub(super) fn run(&self, x: &Source, finishing: &Finishing, y: &mut [f32]) {
        let (rows, width) = (x.rows(), x.width());
        lend(INPUT_ROWS, rows * width, |input| {
            x.copy_to(self.isa, input, self.threads);
            let input = &*input;
            lend(SUM_ROWS, rows * width, |sum| {
                sum.fill(0.0);
                for (expert, choices) in self.experts.iter().zip(self.route(input, width)) {
                    if !choices.is_empty() {
                        add_expert(expert, &choices, input, sum);
                    }
                }
                if let Some(shared) = &self.shared {
                    self.add_shared(shared, input, sum);
                }
                finishing.apply(sum, width, y);
            });
        });
    }

    /// For each expert the rows that chose it.
    fn route(&self, input: &[f32], width: usize) -> Vec<Vec<Choice>> {
        let n_experts = self.router.d_out();
        let mut logits = vec![0.0; input.len() / width * n_experts];
        self.router
            .run(&Source::new(input, width), &Finishing::NONE, &mut logits);
        let mut probabilities = vec![0.0; logits.len()];
        softmax::forward(self.isa, &logits, &mut probabilities, n_experts, |_| Seen {
            range: 0..n_experts,
            keep: None,
        });
        let mut of_experts = vec![Vec::new(); n_experts];
        let mut order: Vec<usize> = Vec::new();
        for (row, probabilities) in probabilities.chunks_exact(n_experts).enumerate() {
            order.clear();
            order.extend(0..n_experts);
            // Stable: of equals the first, as transformers' topk on the CPU.
            order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
            let chosen = &order[..self.top_k];
            let divisor = match self.weights {
                RoutingWeights::Softmax => 1.0,
                RoutingWeights::Renormalised => chosen.iter().map(|&e| probabilities[e]).sum(),
            };
            for &expert in chosen {
                of_experts[expert].push(Choice {
                    row,
                    weight: probabilities[expert] / divisor,
                });
            }
        }
        of_experts
    }

    /// Adds the shared expert times its gate.
    fn add_shared(&self, shared: &SharedExpert, input: &[f32], sum: &mut [f32]) {
        let width = self.d_model();
        let source = Source::new(input, width);
        let mut gates = vec![0.0; source.rows()];
        shared.gate.run(&source, &Finishing::NONE, &mut gates);
        f32::apply::<Sigmoid>(self.isa, &mut gates);
        lend(EXPERT_ROWS, input.len(), |output| {
            shared.feed_forward.run(&source, &Finishing::NONE, output);
            let rows = sum.chunks_exact_mut(width).zip(output.chunks_exact(width));
            for ((sum, output), &gate) in rows.zip(&gates) {
                add_scaled(sum, output, gate);
            }
        });
    }
}

impl Module for PackedMixture {
    /// The output of the original layer in evaluation mode.
    ///
    /// # Shapes
    /// `[.., d_model]` of rank 1 or more, to the same shape.
    ///
    /// # Errors
    /// If the last dimension is not `d_model`, or the input tracks gradients, is f64, or is not on the CPU.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let width = self.d_model();
        map_rows("mixture of experts", x, (width, width), |x, y| {
            parallel::with_team(self.threads, || {
                self.run(&Source::new(x, width), &Finishing::NONE, y);
                Ok(())
            })
        })
    }
}

/// Adds an expert's output to the rows that chose it.
fn add_expert(expert: &PackedFeedForward, choices: &[Choice], input: &[f32], sum: &mut [f32]) {
    let width = expert.d_model();
    lend(EXPERT_ROWS, 2 * choices.len() * width, |memory| {
        let (chosen, output) = memory.split_at_mut(choices.len() * width);
        for (row, choice) in chosen.chunks_exact_mut(width).zip(choices) {
            row.copy_from_slice(&input[choice.row * width..][..width]);
        }
        expert.run(&Source::new(chosen, width), &Finishing::NONE, output);
        for (output, choice) in output.chunks_exact(width).zip(choices) {
            add_scaled(
                &mut sum[choice.row * width..][..width],
                output,
                choice.weight,
            );
        }
    });
}

fn add_scaled(sum: &mut [f32], values: &[f32], factor: f32) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += value * factor;
    }
}
