//! All blocks of a packed stack, one after the other.

use candle_blocks_kernels::{memory::lend, scratch, threads};
use candle_core::{DType, Device, Result, Tensor};

use super::{Observer, PackedStack};
use crate::layers::{BlockStages, SublayerStages, unread_words};
use crate::packed::cache::PackedKvCache;
use crate::packed::pass::PackedPass;
use crate::packed::{block::Run, block::SeenBlock, sublayer::Seen};

scratch!(STREAMS);

impl PackedStack {
    /// All blocks and the final norm, in the place of their rows: those of the positions of the pass `asked` come first, and
    /// those behind are worth nothing.
    pub(super) fn apply_layers(
        &self,
        rows: &mut [f32],
        (pass, asked): (&PackedPass, &PackedPass),
        cache: Option<&mut PackedKvCache>,
        observer: Option<&mut Observer>,
        form: (&[usize], DType),
    ) -> Result<()> {
        // Without a cache, keys that layers share stay in one of this pass.
        let mut own = match cache {
            None if self.shares_keys() => Some(self.new_cache()),
            _ => None,
        };
        let cache = cache.or(own.as_mut());
        let Some(inputs) = &self.layer_inputs else {
            if pass.words().is_some() {
                return unread_words();
            }
            return self.apply_each(rows, (pass, asked), None, cache, observer, form);
        };
        inputs.with_rows(rows, pass, |rows, inputs| {
            self.apply_each(rows, (pass, asked), Some(inputs), cache, observer, form)
        })
    }

    fn apply_each(
        &self,
        rows: &mut [f32],
        passes: (&PackedPass, &PackedPass),
        inputs: Option<&[f32]>,
        cache: Option<&mut PackedKvCache>,
        observer: Option<&mut Observer>,
        form: (&[usize], DType),
    ) -> Result<()> {
        let width = self.blocks.first().map_or(1, |block| block.d_model());
        let n_asked = passes.0.n_asked(passes.1, rows.len() / width) * width;
        match &self.streams {
            None => self.apply_blocks(rows, passes, inputs, cache, observer, form)?,
            Some(streams) => {
                let n_streams = streams.n_streams();
                lend(STREAMS, n_streams * rows.len(), |memory: &mut [f32]| {
                    streams.open(rows, width, memory);
                    self.apply_blocks(memory, passes, inputs, cache, observer, form)?;
                    streams.merge(&memory[..n_streams * n_asked], width, &mut rows[..n_asked]);
                    candle_core::Result::Ok(())
                })?;
            }
        }
        if let Some(norm) = &self.final_norm {
            norm.rows_in_place(self.cpu, &mut rows[..n_asked]);
        }
        Ok(())
    }

    fn apply_blocks(
        &self,
        rows: &mut [f32],
        (pass, asked): (&PackedPass, &PackedPass),
        inputs: Option<&[f32]>,
        mut cache: Option<&mut PackedKvCache>,
        mut observer: Option<&mut Observer>,
        (shape, dtype): (&[usize], DType),
    ) -> Result<()> {
        for (i, &block) in self.layers.iter().enumerate() {
            for pass in [pass, asked] {
                pass.enter(self.relative_biases.own(block))?;
            }
            let shared = self.blocks[block].attention().inner().config().shared_keys;
            let cache = cache.as_deref_mut();
            let cache = cache.map(|cache| cache.of_layer(i, shared));
            let mut seen = observer.is_some().then(SeenBlock::default);
            let run = Run {
                pass,
                asked: match i + 1 == self.layers.len() {
                    true => asked,
                    false => pass,
                },
                input: (self.layer_inputs.as_ref().zip(inputs))
                    .map(|(of, all)| of.of_layer(all, i)),
            };
            threads::with_team(self.cpu.threads, || {
                self.blocks[block].apply(rows, run, cache, seen.as_mut())
            })?;
            if let (Some(observer), Some(seen)) = (observer.as_deref_mut(), seen) {
                let stages = stages(seen, rows, shape, dtype)?;
                observer(i, &self.blocks[block].of_streams(stages)?)?;
            }
        }
        Ok(())
    }
}

/// What a block's sublayers kept, as tensors of the input's shape and type.
fn stages(seen: SeenBlock, output: &[f32], shape: &[usize], dtype: DType) -> Result<BlockStages> {
    let tensor = |rows: Vec<f32>| Tensor::from_vec(rows, shape, &Device::Cpu)?.to_dtype(dtype);
    let mut of_output = shape.to_vec();
    if let Some(last) = of_output.last_mut() {
        // Streams lie side by side.
        *last *= output.len() / shape.iter().product::<usize>().max(1);
    }
    let sublayer = |seen: Seen| -> Result<SublayerStages> {
        Ok(SublayerStages {
            input: tensor(seen.input)?,
            inner_output: tensor(seen.inner_output)?,
            output: tensor(seen.output)?,
        })
    };
    Ok(BlockStages::new(
        sublayer(seen.attention)?,
        seen.cross_attention.map(sublayer).transpose()?,
        sublayer(seen.feed_forward)?,
        seen.layer_input.map(sublayer).transpose()?,
        Tensor::from_vec(output.to_vec(), of_output, &Device::Cpu)?.to_dtype(dtype)?,
    ))
}
