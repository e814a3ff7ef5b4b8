//! Saves a copy of a checkpoint with a changed parameter, as after training: `save DIR OUT [PART] [ROLE=FACTOR]`.
//!
//! ```sh
//! cargo run --example save -- weights/tiny-gpt2 OUT blocks.0.attention.key.weight=2
//! python weights/check_saved.py weights/tiny-gpt2 OUT --changed h.0.attn.c_attn.weight
//! ```

use anyhow::{Context, Result, ensure};
use candle_blocks::{
    CheckpointOptions,
    candle_core::{DType, Device},
    checkpoint::scheme::StackPart,
};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: save DIR OUT [PART] [ROLE=FACTOR]";
    let directory = arguments.next().context(usage)?;
    let out = arguments.next().context(usage)?;
    let mut options = CheckpointOptions::default();
    let mut change = None;
    for argument in arguments {
        match argument.split_once('=') {
            Some((role, factor)) => change = Some((role.to_string(), factor.parse::<f64>()?)),
            None => {
                let part: StackPart = serde_json::from_value(argument.into())?;
                options = options.part(part);
            }
        }
    }
    let checkpoint = options.open(directory)?;
    let loader = checkpoint.trainable(DType::F32, &Device::Cpu)?;
    loader.stack()?;
    let parameters = loader.parameters();
    if let Some((role, factor)) = change {
        // What an optimiser does: the variable's new value.
        let chosen = parameters.iter().filter(|(name, _)| *name == role);
        let chosen: Vec<_> = chosen.collect();
        ensure!(
            !chosen.is_empty(),
            "{role} is not a parameter of the checkpoint"
        );
        for (_, variable) in chosen {
            variable.set(&(variable.as_tensor() * factor)?)?;
        }
    }
    checkpoint.save(&out, parameters)?;
    println!("{out}: {} tensors", checkpoint.files().names().count());
    Ok(())
}
