//! candle without this crate: candle-nn's layers, and candle-transformers' BERT and Llamas.

mod generation;
#[path = "../../protocol.rs"]
mod protocol;
mod texts;
mod training;

use anyhow::{Context, Result, bail};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{Activation, LayerNorm, Linear, VarBuilder, layer_norm, linear};
use candle_transformers::models::{
    bert::{BertEncoder, Config as BertConfig},
    llama::{Cache, Llama, LlamaConfig},
};
use protocol::{Case, HeadTask, Run, Simply, serve};
use serde_json::Value;

fn main() -> Result<()> {
    let settings = "candle-nn's layers, candle-transformers' BertEncoder, BertModel and Llama, also of quantized files, its defaults";
    serve("candle", "0.11.1", settings, |task| match task {
        HeadTask::Layers(case) => load(case),
        HeadTask::Texts(task) => texts::load(task),
        HeadTask::Generation(task) => generation::load(task),
    })
}

fn load(case: Case) -> Result<Box<dyn Run>> {
    let dtype = match case.precision.as_str() {
        "f32" => DType::F32,
        "bf16" => DType::BF16,
        other => bail!("candle is not measured in {other}"),
    };
    let weights = std::fs::read(case.checkpoint.join("model.safetensors"))?;
    let vb = VarBuilder::from_buffered_safetensors(weights, dtype, &Device::Cpu)?;
    let config: Value =
        serde_json::from_slice(&std::fs::read(case.checkpoint.join("config.json"))?)?;
    let family = config["model_type"]
        .as_str()
        .unwrap_or_default()
        .to_string();
    if case.op == "train_step" {
        if dtype != DType::F32 {
            bail!("candle has no training of f32 with products in bf16");
        }
        return training::load(case, config);
    }
    let x = case.x.to_dtype(dtype)?;
    Ok(match (case.op.as_str(), family.as_str()) {
        ("feed_forward", "bert") => {
            let config: BertConfig = serde_json::from_value(config)?;
            let layer = FeedForward::new(&config, vb.pp("encoder.layer.0"))?;
            Box::new(Simply(move || layer.forward(&x)))
        }
        ("encoder", "bert") => {
            let config: BertConfig = serde_json::from_value(config)?;
            let encoder = BertEncoder::load(vb.pp("encoder"), &config)?;
            let mask = additive(&case, dtype)?;
            Box::new(Simply(move || encoder.forward(&x, &mask)))
        }
        (op @ ("prefill" | "step"), "llama") => {
            let config: LlamaConfig = serde_json::from_value(config)?;
            let config = config.into_config(false);
            let llama = Llama::load(vb, &config)?;
            let empty = Cache::new(true, dtype, &config, &Device::Cpu)?;
            let mut decoder = Decoder {
                cache: empty.clone(),
                start: empty,
                llama,
                x,
                position: 0,
            };
            if op == "step" {
                decoder.compute()?;
                decoder.start = decoder.cache.clone();
                decoder.position = decoder.x.dim(1)?;
                decoder.x = case
                    .step
                    .context("the input has no step")?
                    .to_dtype(dtype)?;
            }
            Box::new(decoder)
        }
        (_, family) => bail!("candle-transformers has no {family}"),
    })
}

/// Returns `[batch, 1, 1, seq]`, 0 for a visible key, like candle-transformers' BertModel.
fn additive(case: &Case, dtype: DType) -> Result<Tensor> {
    let (batch, seq, _) = case.x.dims3()?;
    let keep = match &case.mask {
        Some(mask) => mask.clone(),
        None => Tensor::ones((batch, seq), DType::I64, &Device::Cpu)?,
    };
    let keep = keep.to_dtype(DType::F32)?.reshape((batch, 1, 1, seq))?;
    let dropped = keep.affine(-1.0, 1.0)?;
    Ok((dropped * f64::from(f32::MIN))?.to_dtype(dtype)?)
}

/// BERT's feed-forward sublayer.
struct FeedForward {
    up: Linear,
    down: Linear,
    norm: LayerNorm,
}

impl FeedForward {
    fn new(config: &BertConfig, vb: VarBuilder) -> Result<Self> {
        let (d_model, d_ff) = (config.hidden_size, config.intermediate_size);
        Ok(Self {
            up: linear(d_model, d_ff, vb.pp("intermediate.dense"))?,
            down: linear(d_ff, d_model, vb.pp("output.dense"))?,
            norm: layer_norm(d_model, config.layer_norm_eps, vb.pp("output.LayerNorm"))?,
        })
    }

    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let hidden = Activation::Gelu.forward(&self.up.forward(x)?)?;
        self.norm.forward(&(x + self.down.forward(&hidden)?)?)
    }
}

/// Positions after a cache with the same content in each run.
struct Decoder {
    llama: Llama,
    start: Cache,
    cache: Cache,
    x: Tensor,
    position: usize,
}

impl Run for Decoder {
    fn prepare(&mut self) -> Result<()> {
        self.cache = self.start.clone();
        Ok(())
    }

    fn compute(&mut self) -> Result<Tensor> {
        Ok(self
            .llama
            .forward_input_embed(&self.x, self.position, &mut self.cache)?)
    }

    fn result(&self) -> &'static str {
        "last_logits"
    }
}
