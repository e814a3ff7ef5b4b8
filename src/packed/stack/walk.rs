//! All blocks of a packed stack, one after the other.

use candle_blocks_kernels::{memory::lend, scratch, threads};
use candle_core::{DType, Device, Result, Tensor};

use super::{Observer, PackedStack};
use crate::layers::{BlockStages, SublayerStages, unread_words};
use crate::packed::cache::PackedKvCache;
use crate::packed::pass::PackedPass;
use crate::packed::{block::Run, block::SeenBlock, sublayer::Seen};

scratch!(BETWEEN_LAYERS);
scratch!(STREAMS);

impl PackedStack {
    /// All blocks and the final norm: the first reads `x`, the last writes `y`, for the positions of the pass `asked`, and
    /// those between write by turns to two places.
    pub(super) fn apply_layers(
        &self,
        x: &[f32],
        (pass, asked): (&PackedPass, &PackedPass),
        cache: Option<&mut PackedKvCache>,
        observer: Option<&mut Observer>,
        form: (&[usize], DType),
        y: &mut [f32],
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
            return self.apply_each(x, (pass, asked), None, cache, observer, form, y);
        };
        inputs.with_rows(x, pass, |inputs| {
            self.apply_each(x, (pass, asked), Some(inputs), cache, observer, form, y)
        })
    }

    #[allow(clippy::too_many_arguments)] // what each layer reads, and where it writes
    fn apply_each(
        &self,
        x: &[f32],
        passes: (&PackedPass, &PackedPass),
        inputs: Option<&[f32]>,
        cache: Option<&mut PackedKvCache>,
        observer: Option<&mut Observer>,
        form: (&[usize], DType),
        y: &mut [f32],
    ) -> Result<()> {
        let (Some(streams), Some(block)) = (&self.streams, self.blocks.first()) else {
            self.apply_blocks(x, passes, inputs, cache, observer, form, y)?;
            return self.normalize(y);
        };
        let n_streams = streams.n_streams();
        lend(
            STREAMS,
            n_streams * (x.len() + y.len()),
            |memory: &mut [f32]| {
                let (from, to) = memory.split_at_mut(n_streams * x.len());
                streams.open(x, block.d_model(), from);
                self.apply_blocks(from, passes, inputs, cache, observer, form, to)?;
                streams.merge(to, block.d_model(), y);
                self.normalize(y)
            },
        )
    }

    fn normalize(&self, y: &mut [f32]) -> Result<()> {
        if let Some(norm) = &self.final_norm {
            norm.rows_in_place(self.cpu, y);
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // as for apply_each
    fn apply_blocks(
        &self,
        x: &[f32],
        (pass, asked): (&PackedPass, &PackedPass),
        inputs: Option<&[f32]>,
        mut cache: Option<&mut PackedKvCache>,
        mut observer: Option<&mut Observer>,
        (shape, dtype): (&[usize], DType),
        y: &mut [f32],
    ) -> Result<()> {
        let n_between = self.layers.len().saturating_sub(1).min(2);
        lend(
            BETWEEN_LAYERS,
            n_between * x.len(),
            |between: &mut [f32]| {
                let (mut to, mut from) = between.split_at_mut(n_between.min(1) * x.len());
                for (i, &block) in self.layers.iter().enumerate() {
                    for pass in [pass, asked] {
                        pass.enter(self.relative_biases.own(block))?;
                    }
                    let input = if i == 0 { x } else { &*from };
                    let shared = self.blocks[block].attention().inner().config().shared_keys;
                    let cache = cache.as_deref_mut();
                    let cache = cache.map(|cache| cache.of_layer(i, shared));
                    let mut seen = observer.is_some().then(SeenBlock::default);
                    let is_last = i + 1 == self.layers.len();
                    let (asked, output) = match is_last {
                        true => (asked, &mut *y),
                        false => (pass, &mut *to),
                    };
                    let run = Run {
                        pass,
                        asked,
                        input: (self.layer_inputs.as_ref().zip(inputs))
                            .map(|(of, all)| of.of_layer(all, i)),
                    };
                    threads::with_team(self.cpu.threads, || {
                        self.blocks[block].apply(input, run, cache, seen.as_mut(), output)
                    })?;
                    if let (Some(observer), Some(seen)) = (observer.as_deref_mut(), seen) {
                        let stages = stages(seen, output, shape, dtype)?;
                        observer(i, &self.blocks[block].of_streams(stages)?)?;
                    }
                    (from, to) = (to, from);
                }
                Ok(())
            },
        )
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
