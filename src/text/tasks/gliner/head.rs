//! The layers after a GLiNER model's encoder.
//!
//! <https://github.com/urchade/GLiNER/blob/v0.2.29/gliner/modeling/base.py>

use std::ops::Range;

use candle_blocks_tokenizers::{LabeledWords, TokenizedWords};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::ops::sigmoid;

use super::config::GlinerConfig;
use crate::Weights;
use crate::checkpoint::files::TensorFiles;
use crate::config::Activation;
use crate::error::Result;
use crate::layers::packed::Packing;
use crate::layers::{Linear, Mlp};
use crate::text::sentence_files::parameter;

/// The layers that score labels, for words and spans.
#[derive(Clone, Debug)]
pub(super) struct Head {
    /// From the encoder's width to this model's, if they differ.
    projection: Option<Linear>,
    /// Each layer's two directions, with a matrix for the input and one for the hidden state.
    lstm: Vec<[[Linear; 2]; 2]>,
    scorer: Scorer,
}

/// Scores each label.
#[derive(Clone, Debug)]
enum Scorer {
    /// For each span: the product of its vector with the label's.
    Spans {
        /// For the first and the last word; each has half the matrix that reads both vectors.
        ends: [(Mlp, Linear); 2],
        out: Linear,
        label: Mlp,
        max_width: usize,
    },
    /// For each word: three scores by a perceptron, which reads the word's vector, the label's and their product.
    Words([Linear; 2], Mlp),
}

/// The head's parameters in a model's files.
pub(super) struct HeadFiles<'f> {
    pub files: &'f TensorFiles,
    pub weights: Weights<'f>,
    /// The tensors that were read, by name.
    pub names: Vec<String>,
}

impl HeadFiles<'_> {
    fn tensor(&mut self, name: String, shape: &[usize]) -> Result<Tensor> {
        let tensor = parameter(self.files, &name, shape)?;
        self.names.push(name);
        let (dtype, device) = match self.weights {
            Weights::Dense(dtype, device) | Weights::AsStored(dtype, device) => (dtype, device),
            Weights::Packed(_) => (DType::F32, &Device::Cpu),
        };
        Ok(tensor.to_dtype(dtype)?.to_device(device)?)
    }

    fn made(&self, weight: Tensor, bias: Option<Tensor>) -> Result<Linear> {
        let linear = Linear::from_parts(weight, bias)?;
        match self.weights {
            Weights::Packed(precision) => Ok(linear.packed(&Packing::new(precision)?)?),
            _ => Ok(linear),
        }
    }

    /// Reads a linear layer's weight and bias. Their names have these words where `name` has `{}`.
    fn parts(&mut self, name: &str, [d_in, d_out]: [usize; 2]) -> Result<(Tensor, Tensor)> {
        let weight = self.tensor(name.replace("{}", "weight"), &[d_out, d_in])?;
        let bias = self.tensor(name.replace("{}", "bias"), &[d_out])?;
        Ok((weight, bias))
    }

    fn linear(&mut self, name: &str, widths: [usize; 2]) -> Result<Linear> {
        let (weight, bias) = self.parts(name, widths)?;
        self.made(weight, Some(bias))
    }

    /// Reads two linear layers around an activation: gliner's `create_projection_layer`.
    fn mlp(&mut self, name: &str, [d_in, inner, d_out]: [usize; 3]) -> Result<Mlp> {
        let first = self.linear(&format!("{name}.0.{{}}"), [d_in, inner])?;
        let last = self.linear(&format!("{name}.3.{{}}"), [inner, d_out])?;
        Ok(Mlp::from_parts(vec![first, last], Activation::Relu)?)
    }

    fn lstm(&mut self, end: &str, d: usize) -> Result<[Linear; 2]> {
        let input = self.linear(&format!("rnn.lstm.{{}}_ih_{end}"), [d, 2 * d])?;
        let hidden = self.linear(&format!("rnn.lstm.{{}}_hh_{end}"), [d / 2, 2 * d])?;
        Ok([input, hidden])
    }
}

impl Head {
    /// Reads the layers after an encoder whose vectors have `d_encoder` features.
    ///
    /// # Errors
    /// If a tensor is missing, or has another shape.
    pub fn new(files: &mut HeadFiles, config: &GlinerConfig, d_encoder: usize) -> Result<Self> {
        let d = config.hidden_size;
        let projection = match d_encoder == d {
            true => None,
            false => Some(files.linear("token_rep_layer.projection.{}", [d_encoder, d])?),
        };
        let mut lstm = Vec::new();
        for i in 0..config.n_lstm_layers {
            let forward = files.lstm(&format!("l{i}"), d)?;
            lstm.push([forward, files.lstm(&format!("l{i}_reverse"), d)?]);
        }
        let scorer = match config.is_token_level {
            true => {
                let word = files.linear("scorer.proj_token.{}", [d, 2 * d])?;
                let label = files.linear("scorer.proj_label.{}", [d, 2 * d])?;
                let out = files.mlp("scorer.out_mlp", [3 * d, 4 * d, 3])?;
                Scorer::Words([word, label], out)
            }
            false => {
                let of = |name: &str| format!("span_rep_layer.span_rep_layer.{name}");
                let start = files.mlp(&of("project_start"), [d, 4 * d, d])?;
                let end = files.mlp(&of("project_end"), [d, 4 * d, d])?;
                let (weight, bias) = files.parts(&of("out_project.0.{}"), [2 * d, 4 * d])?;
                let half = |start| weight.narrow(1, start, d)?.contiguous();
                let of_start = files.made(half(0)?, Some(bias))?;
                let of_end = files.made(half(d)?, None)?;
                Scorer::Spans {
                    ends: [(start, of_start), (end, of_end)],
                    out: files.linear(&of("out_project.3.{}"), [4 * d, d])?,
                    label: files.mlp("prompt_rep_layer", [d, 4 * d, d])?,
                    max_width: config.max_width,
                }
            }
        };
        Ok(Self {
            projection,
            lstm,
            scorer,
        })
    }

    /// Returns the ranges whose score exceeds the threshold, from the encoder's vectors `[seq, d_encoder]` for a text.
    ///
    /// # Errors
    /// If a tensor operation fails.
    pub fn labeled(
        &self,
        hidden: &Tensor,
        text: &TokenizedWords,
        threshold: f64,
    ) -> candle_core::Result<Vec<LabeledWords>> {
        let mut hidden = hidden.clone();
        if let Some(projection) = &self.projection {
            hidden = projection.forward(&hidden)?;
        }
        let none = hidden.dim(0)? as u32;
        let hidden = hidden.pad_with_zeros(0, 0, 1)?; // for words without a token
        let rows = |rows: Vec<u32>| hidden.index_select(&Tensor::new(rows, hidden.device())?, 0);
        let tokens = text.first_tokens.iter();
        let mut words = rows(tokens.map(|token| token.unwrap_or(none)).collect())?;
        for [forward, backward] in &self.lstm {
            let both = [lstm(forward, &words, false)?, lstm(backward, &words, true)?];
            words = Tensor::cat(&both, 1)?;
        }
        let labels = rows(text.labels.clone())?;
        let (n, n_labels) = (text.words.len(), text.labels.len());
        let mut spans = Vec::new();
        if let Scorer::Spans { max_width, .. } = &self.scorer {
            let of =
                |start: usize| (start + 1..=(start + max_width).min(n)).map(move |end| start..end);
            spans.extend((0..n).flat_map(of));
        }
        let logits = self.scorer.logits(&words, &labels, &spans)?;
        let logits = logits.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
        let logits: Vec<f32> = logits.flatten_all()?.to_vec1()?;
        Ok(match self.scorer {
            Scorer::Spans { .. } => LabeledWords::of_spans(&spans, &logits, threshold),
            Scorer::Words(..) => LabeledWords::of_words(&logits, n_labels, threshold),
        })
    }
}

/// Computes `torch.nn.LSTM` in one direction: `[n, d / 2]` for `[n, d]`.
fn lstm(
    [input, hidden_weight]: &[Linear; 2],
    x: &Tensor,
    is_reversed: bool,
) -> candle_core::Result<Tensor> {
    let inputs = input.forward(x)?;
    let (n, width) = (x.dim(0)?, inputs.dim(1)? / 4);
    let mut hidden = Tensor::zeros((1, width), x.dtype(), x.device())?;
    let mut cell = hidden.clone();
    let mut all = vec![hidden.clone(); n];
    for i in 0..n {
        let at = if is_reversed { n - 1 - i } else { i };
        let gates = (inputs.narrow(0, at, 1)? + hidden_weight.forward(&hidden)?)?;
        let gate = |i| gates.narrow(1, i * width, width)?.contiguous();
        let new = (sigmoid(&gate(0)?)? * gate(2)?.tanh()?)?;
        cell = ((sigmoid(&gate(1)?)? * cell)? + new)?;
        hidden = (sigmoid(&gate(3)?)? * cell.tanh()?)?;
        all[at] = hidden.clone();
    }
    Tensor::cat(&all, 0)
}

impl Scorer {
    /// Returns the logits for words `[n, d]` and labels `[n_labels, d]`: `[n_spans, n_labels]`, or `[n, n_labels, 3]`.
    fn logits(
        &self,
        words: &Tensor,
        labels: &Tensor,
        spans: &[Range<usize>],
    ) -> candle_core::Result<Tensor> {
        match self {
            Self::Spans {
                ends, out, label, ..
            } => {
                let end = |(mlp, half): &(Mlp, Linear), word: fn(&Range<usize>) -> usize| {
                    let words = half.forward(&mlp.forward(words)?.relu()?)?;
                    let rows: Vec<u32> = spans.iter().map(|span| word(span) as u32).collect();
                    words.index_select(&Tensor::new(rows, words.device())?, 0)
                };
                let sums =
                    (end(&ends[0], |span| span.start)? + end(&ends[1], |span| span.end - 1)?)?;
                let vectors = out.forward(&sums.relu()?)?; // [n_spans, d]
                vectors.matmul(&label.forward(labels)?.t()?)
            }
            Self::Words([word, label], out) => {
                let (n_labels, d) = labels.dims2()?;
                let words = word.forward(words)?.unsqueeze(1)?;
                let labels = label.forward(labels)?.unsqueeze(0)?;
                let shape = (words.dim(0)?, n_labels, d);
                let half = |x: &Tensor, i| x.narrow(2, i * d, d)?.broadcast_as(shape)?.contiguous();
                let product = (half(&words, 1)? * half(&labels, 1)?)?;
                let all = [half(&words, 0)?, half(&labels, 0)?, product];
                out.forward(&Tensor::cat(&all, 2)?)
            }
        }
    }
}
