//! This crate as a peer among others: `run.py` starts it and asks.

mod protocol;

use std::env;

use anyhow::{Context, Result, bail};
use candle_blocks::{
    AttentionMask, Checkpoint, ForwardContext, KvCache, PackedCache, PackedStack, Precision, Stack,
    Sublayer,
};
use candle_core::{DType, Device, Module, ModuleT, Tensor};
use protocol::{Case, Run, Simply, serve};

/// What the worker's argument says.
#[derive(Clone, Copy)]
enum Form {
    /// Packed to the case's precision.
    Packed,
    /// The trainable layers, in f32.
    Plain,
}

fn main() -> Result<()> {
    let form = match env::args().nth(1).as_deref() {
        Some("packed") => Form::Packed,
        Some("plain") => Form::Plain,
        _ => {
            // `cargo bench` runs every bench there is.
            eprintln!("a worker of the comparison with other libraries; run benches/peers/run.py");
            return Ok(());
        }
    };
    let isa = candle_blocks::ops::isa()?;
    let (name, settings) = match form {
        Form::Packed => ("candle-blocks", format!("packed, {isa}")),
        Form::Plain => ("candle-blocks-plain", format!("not packed, {isa}")),
    };
    serve(name, env!("CARGO_PKG_VERSION"), &settings, |case| {
        load(form, case)
    })
}

fn load(form: Form, case: Case) -> Result<Box<dyn Run>> {
    let checkpoint = Checkpoint::open(&case.checkpoint)?;
    let precision = precision(form, &case.precision)?;
    let Case {
        op, x, mask, step, ..
    } = case;
    if op == "feed_forward" {
        return feed_forward(&checkpoint, precision, x);
    }
    let mask = mask.as_ref().map(AttentionMask::padding).transpose()?;
    let context = match mask {
        Some(mask) => ForwardContext::evaluation().with_mask(mask),
        None => ForwardContext::evaluation(),
    };
    match precision {
        Some(precision) => stack(&op, checkpoint.packed_stack(precision)?, x, step, context),
        None => stack(
            &op,
            checkpoint.stack(DType::F32, &Device::Cpu)?,
            x,
            step,
            context,
        ),
    }
}

/// What to pack to; nothing where the form is plain.
fn precision(form: Form, name: &str) -> Result<Option<Precision>> {
    match (form, name) {
        (Form::Plain, "f32") => Ok(None),
        (Form::Plain, _) => bail!("not packed, it is measured in f32 only"),
        (Form::Packed, "f32") => Ok(Some(Precision::F32)),
        (Form::Packed, other) => bail!("weights cannot be packed to {other} yet"),
    }
}

fn feed_forward(
    checkpoint: &Checkpoint,
    precision: Option<Precision>,
    x: Tensor,
) -> Result<Box<dyn Run>> {
    let block = checkpoint.block(0, DType::F32, &Device::Cpu)?;
    let sublayer = block.feed_forward();
    let inner = sublayer.inner().dense().context("the block has experts")?;
    let sublayer = Sublayer::from_parts(inner.clone(), sublayer.norm().clone());
    Ok(match precision {
        Some(precision) => {
            let packed = sublayer.pack(precision)?;
            Box::new(Simply(move || packed.forward(&x)))
        }
        None => Box::new(Simply(move || sublayer.forward_t(&x, false))),
    })
}

/// What a stack does, packed or not.
trait Layers {
    type Cache;
    fn forward(&self, x: &Tensor, context: &ForwardContext) -> candle_core::Result<Tensor>;
    fn new_cache(&self) -> Self::Cache;
    fn seen(cache: &Self::Cache) -> usize;
    fn forward_cached(
        &self,
        x: &Tensor,
        context: &ForwardContext,
        cache: &mut Self::Cache,
    ) -> candle_core::Result<Tensor>;
}

macro_rules! layers {
    ($stack:ty, $cache:ty) => {
        impl Layers for $stack {
            type Cache = $cache;

            fn forward(&self, x: &Tensor, context: &ForwardContext) -> candle_core::Result<Tensor> {
                self.forward_with(x, context)
            }

            fn new_cache(&self) -> $cache {
                self.new_cache()
            }

            fn seen(cache: &$cache) -> usize {
                cache.seen()
            }

            fn forward_cached(
                &self,
                x: &Tensor,
                context: &ForwardContext,
                cache: &mut $cache,
            ) -> candle_core::Result<Tensor> {
                self.forward_cached(x, context, cache)
            }
        }
    };
}

layers!(Stack, KvCache);
layers!(PackedStack, PackedCache);

fn stack<L: Layers + 'static>(
    op: &str,
    layers: L,
    x: Tensor,
    step: Option<Tensor>,
    context: ForwardContext,
) -> Result<Box<dyn Run>> {
    Ok(match op {
        "encoder" => Box::new(Simply(move || layers.forward(&x, &context))),
        "prefill" => Box::new(Simply(move || {
            layers.forward_cached(&x, &context, &mut layers.new_cache())
        })),
        "step" => {
            let mut cache = layers.new_cache();
            layers.forward_cached(&x, &context, &mut cache)?;
            let step = step.context("the input has no step")?;
            Box::new(Step {
                layers,
                context,
                cache,
                earlier: x,
                step,
            })
        }
        other => bail!("{other} is not measured"),
    })
}

/// One position more, behind the same ones or a few more.
struct Step<L: Layers> {
    layers: L,
    context: ForwardContext,
    cache: L::Cache,
    earlier: Tensor,
    step: Tensor,
}

impl<L: Layers> Run for Step<L> {
    /// A cache takes in every step. Now and then it starts over: to fill it each time would take far longer than
    /// the step.
    fn prepare(&mut self) -> Result<()> {
        const MORE: usize = 16;
        if L::seen(&self.cache) >= self.earlier.dim(1)? + MORE {
            self.cache = self.layers.new_cache();
            self.layers
                .forward_cached(&self.earlier, &self.context, &mut self.cache)?;
        }
        Ok(())
    }

    fn compute(&mut self) -> Result<Tensor> {
        Ok(self
            .layers
            .forward_cached(&self.step, &self.context, &mut self.cache)?)
    }
}
