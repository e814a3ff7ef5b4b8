//! This crate's worker for the comparison with other libraries, started and controlled by `run.py`.

mod protocol;
mod whole;

use std::env;

use anyhow::{Context, Result, bail};
use candle_blocks::{
    AttentionMask, Checkpoint, DropoutSource, ForwardContext, KvCache, Precision, Stack, Weights,
    config::GroupSize,
    ops::mse,
    train::{AdamW, AdamWConfig, Lora, ParameterGroup},
};
use candle_core::{DType, Device, ModuleT, Tensor};
use protocol::{Case, HeadTask, Run, Simply, Steps, serve};

/// The worker's command-line argument.
#[derive(Clone, Copy)]
enum Form {
    /// Layers packed to the case's precision.
    Packed,
    /// Trainable layers, in f32.
    Plain,
}

fn main() -> Result<()> {
    let form = match env::args().nth(1).as_deref() {
        Some("packed") => Form::Packed,
        Some("plain") => Form::Plain,
        _ => {
            // `cargo bench` runs every bench.
            eprintln!("a worker of the comparison with other libraries; run benches/peers/run.py");
            return Ok(());
        }
    };
    let isa = candle_blocks::ops::isa()?;
    let (name, settings) = match form {
        Form::Packed => ("candle-blocks", format!("packed, {isa}")),
        Form::Plain => ("candle-blocks-plain", format!("not packed, {isa}")),
    };
    serve(name, env!("CARGO_PKG_VERSION"), &settings, |task| {
        match (task, form) {
            (HeadTask::Layers(case), _) => load(form, case),
            (HeadTask::Texts(task), Form::Packed) => whole::texts(task),
            (HeadTask::Generation(task), Form::Packed) => whole::generation(task),
            (_, Form::Plain) => bail!("whole models are measured packed only"),
        }
    })
}

fn precision(name: &str) -> Result<Precision> {
    Ok(match name {
        "f32" => Precision::F32,
        "f16" => Precision::F16,
        "bf16" => Precision::Bf16,
        "int8" => Precision::Int8,
        // The same group size as the other libraries.
        "int4" => Precision::Int4 {
            group: GroupSize::Of128,
        },
        other => bail!("no precision is called {other}"),
    })
}

fn load(form: Form, case: Case) -> Result<Box<dyn Run>> {
    let checkpoint = Checkpoint::open(&case.checkpoint)?;
    let mask = case.mask.as_ref().map(AttentionMask::padding).transpose()?;
    let context = match mask {
        Some(mask) => ForwardContext::evaluation().with_mask(mask),
        None => ForwardContext::evaluation(),
    };
    if case.op == "train_step" {
        return match form {
            Form::Plain => training(&checkpoint, case),
            Form::Packed => bail!("a packed layer does not train"),
        };
    }
    match (form, case.precision.as_str()) {
        (Form::Plain, "f32") => {
            let stack = checkpoint
                .load(Weights::Dense(DType::F32, &Device::Cpu))
                .stack()?;
            inference(stack, case, context)
        }
        (Form::Plain, _) => bail!("not packed, it is measured in f32 only"),
        (Form::Packed, name) => {
            let stack = checkpoint.load(Weights::Packed(precision(name)?)).stack()?;
            inference(stack, case, context)
        }
    }
}

fn inference(stack: Stack, case: Case, context: ForwardContext) -> Result<Box<dyn Run>> {
    let Case { x, step, op, .. } = case;
    Ok(match op.as_str() {
        "feed_forward" => {
            let sublayer = stack.blocks()[0].feed_forward().clone();
            Box::new(Simply(move || sublayer.forward_t(&x, false)))
        }
        "encoder" => Box::new(Simply(move || stack.forward_with(&x, &context))),
        "prefill" => {
            let mut cache = stack.new_cache();
            Box::new(Simply(move || {
                cache.reset();
                stack.forward_cached(&x, &context, &mut cache)
            }))
        }
        "step" => {
            let mut cache = stack.new_cache();
            stack.forward_cached(&x, &context, &mut cache)?;
            Box::new(Step {
                seen: cache.seen(),
                cache,
                x: step.context("the input has no step")?,
                context,
                stack,
            })
        }
        other => bail!("{other} is not measured"),
    })
}

fn training(checkpoint: &Checkpoint, case: Case) -> Result<Box<dyn Run>> {
    let Case {
        x,
        training,
        precision,
        ..
    } = case;
    let precision = match precision.as_str() {
        "f32" => Precision::F32,
        "bf16" => Precision::Bf16,
        other => bail!("no training is in {other}"),
    };
    let training = training.context("the driver gives no training")?;
    let (mut stack, parameters) = match &training.adapters {
        Some(file) => {
            let mut stack = checkpoint
                .load(Weights::Dense(DType::F32, &Device::Cpu))
                .stack()?; // frozen
            let parameters = Lora::load(&mut stack, file)?.parameters();
            (stack, parameters)
        }
        None => {
            let loader = checkpoint.trainable(DType::F32, &Device::Cpu)?;
            (loader.stack()?, loader.parameters())
        }
    };
    stack.set_dropout_source(&DropoutSource::seeded(42));
    let config = AdamWConfig {
        learning_rate: training.learning_rate,
        ..Default::default()
    };
    let group = ParameterGroup::new(parameters, training.weight_decay);
    let mut optimizer = AdamW::new([group], config)?;
    Ok(Box::new(Steps {
        plain_steps: training.plain_steps,
        dropout_steps: training.dropout_steps,
        step: move |dropout| {
            let context = ForwardContext::evaluation()
                .with_train(dropout)
                .with_precision(precision)?;
            let loss = mse(&stack.forward_with(&x, &context)?, &training.target)?;
            let gradients = optimizer.backward(&loss)?;
            optimizer.update(&gradients, 1.0)?;
            Ok(loss.detach())
        },
    }))
}

/// The next position, with the same cache in each run.
struct Step {
    stack: Stack,
    context: ForwardContext,
    cache: KvCache,
    seen: usize,
    x: Tensor,
}

impl Run for Step {
    fn prepare(&mut self) -> Result<()> {
        match self.cache.rewind(self.seen) == self.seen {
            true => Ok(()),
            false => bail!("the cache does not go back to {} positions", self.seen),
        }
    }

    fn compute(&mut self) -> Result<Tensor> {
        let Self {
            stack,
            context,
            cache,
            x,
            ..
        } = self;
        Ok(stack.forward_cached(x, context, cache)?)
    }
}
