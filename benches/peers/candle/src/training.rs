//! A training step with candle alone.
//!
//! candle-transformers' BERT cannot be trained: its norms and softmax are candle-nn's fused operations, which return
//! no gradient. These are the same layers with candle-nn's differentiable functions.

use anyhow::{Context, Result, bail};
use candle_core::{D, DType, Device, Module, Tensor};
use candle_nn::{
    AdamW, Dropout, Linear, Optimizer, ParamsAdamW, VarBuilder, VarMap, linear, loss::mse, ops,
};
use candle_transformers::models::bert::Config;
use serde_json::Value;

use crate::protocol::{Case, Run, Steps};

pub fn load(case: Case, config: Value) -> Result<Box<dyn Run>> {
    let Case { x, training, .. } = case;
    let training = training.context("the driver gives no training")?;
    if training.adapters.is_some() || config["model_type"] != "bert" {
        bail!("candle is measured in the training of whole BERT blocks");
    }
    let attention_dropout = config["attention_probs_dropout_prob"].as_f64();
    let attention_dropout = Dropout::new(attention_dropout.context("attention's dropout")? as f32);
    let config: Config = serde_json::from_value(config)?;
    let mut variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let layers = (0..config.num_hidden_layers)
        .map(|i| {
            let vb = vb.pp(format!("encoder.layer.{i}"));
            Block::new(&config, attention_dropout.clone(), vb)
        })
        .collect::<Result<Vec<_>>>()?;
    variables.load(case.checkpoint.join("model.safetensors"))?;
    let mut optimizer = AdamW::new(
        variables.all_vars(),
        ParamsAdamW {
            lr: training.learning_rate,
            weight_decay: training.weight_decay,
            ..Default::default()
        },
    )?;
    Ok(Box::new(Steps {
        plain_steps: training.plain_steps,
        dropout_steps: training.dropout_steps,
        step: move |dropout| {
            let mut y = x.clone();
            for layer in &layers {
                y = layer.forward(&y, dropout)?;
            }
            let loss = mse(&y, &training.target)?;
            optimizer.backward_step(&loss)?;
            Ok(loss.detach())
        },
    }))
}

/// candle-nn's norm. Only its slow form returns a gradient.
struct Norm {
    weight: Tensor,
    bias: Tensor,
    eps: f32,
}

impl Norm {
    fn new(config: &Config, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            weight: vb.get(config.hidden_size, "weight")?,
            bias: vb.get(config.hidden_size, "bias")?,
            eps: config.layer_norm_eps as f32,
        })
    }

    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        ops::layer_norm_slow(x, &self.weight, &self.bias, self.eps)
    }
}

/// BERT's layer.
struct Block {
    projections: [Linear; 3],
    output: Linear,
    attention_norm: Norm,
    up: Linear,
    down: Linear,
    norm: Norm,
    attention_dropout: Dropout,
    dropout: Dropout,
    n_heads: usize,
}

impl Block {
    fn new(config: &Config, attention_dropout: Dropout, vb: VarBuilder) -> Result<Self> {
        let (d_model, d_ff) = (config.hidden_size, config.intermediate_size);
        let attention = vb.pp("attention");
        let projection = |name| linear(d_model, d_model, attention.pp("self").pp(name));
        Ok(Self {
            projections: [
                projection("query")?,
                projection("key")?,
                projection("value")?,
            ],
            output: linear(d_model, d_model, attention.pp("output.dense"))?,
            attention_norm: Norm::new(config, attention.pp("output.LayerNorm"))?,
            up: linear(d_model, d_ff, vb.pp("intermediate.dense"))?,
            down: linear(d_ff, d_model, vb.pp("output.dense"))?,
            norm: Norm::new(config, vb.pp("output.LayerNorm"))?,
            attention_dropout,
            dropout: Dropout::new(config.hidden_dropout_prob as f32),
            n_heads: config.num_attention_heads,
        })
    }

    fn forward(&self, x: &Tensor, train: bool) -> candle_core::Result<Tensor> {
        let (batch, seq, d_model) = x.dims3()?;
        let head_dim = d_model / self.n_heads;
        let heads = |linear: &Linear| {
            let y = linear
                .forward(x)?
                .reshape((batch, seq, self.n_heads, head_dim))?;
            y.transpose(1, 2)?.contiguous()
        };
        let [query, key, value] = &self.projections;
        let scores = heads(query)?.matmul(&heads(key)?.t()?)?;
        let weights = ops::softmax(&(scores / (head_dim as f64).sqrt())?, D::Minus1)?;
        let weights = self.attention_dropout.forward(&weights, train)?;
        let mixed = weights.matmul(&heads(value)?)?.transpose(1, 2)?;
        let mixed = self
            .output
            .forward(&mixed.reshape((batch, seq, d_model))?)?;
        let mixed = self.dropout.forward(&mixed, train)?;
        let x = self.attention_norm.forward(&(x + mixed)?)?;
        let hidden = self.up.forward(&x)?.gelu_erf()?;
        let fed = self.dropout.forward(&self.down.forward(&hidden)?, train)?;
        self.norm.forward(&(&x + fed)?)
    }
}
