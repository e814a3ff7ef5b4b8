//! A stack's input: hidden states, masks, positions and an encoder's output.

use candle_blocks::{
    AttentionMask, BlockConfig, ForwardContext, Position, StackConfig,
    candle_core::{DType, Device, Tensor},
    config::RotaryScaling,
};

use super::{Draws, has_alibi};

impl Draws {
    pub fn request(&mut self, config: &StackConfig) -> Request {
        let (batch, seq) = (1 + self.below(3), 1 + self.below(9));
        let d_model = config.blocks[0].d_model();
        let n_heads = config.blocks[0].attention().unwrap().n_heads;
        let cross = config
            .blocks
            .iter()
            .find_map(|block| block.cross_attention.as_ref());
        let positions = self.one_in(3).then(|| {
            let rows = self.of(&[1, batch]);
            (0..rows)
                .map(|_| (0..seq).map(|_| self.below(20) as u32).collect())
                .collect()
        });
        let additive = self.one_in(4).then(|| {
            let shape = [
                self.of(&[1, batch]),
                self.of(&[1, n_heads]),
                self.of(&[1, seq]),
                self.of(&[1, seq]),
            ];
            self.tensor(&shape)
        });
        let mut request = Request {
            batch,
            seq,
            x: self.tensor(&[batch, seq, d_model]),
            keep: self.one_in(2).then(|| self.marks(batch, seq)),
            additive,
            positions,
            memory: cross.map(|cross| {
                let keys = 1 + self.below(6);
                let states = self.tensor(&[batch, keys, cross.d_encoder]);
                let keep = self.one_in(2).then(|| self.marks(batch, keys));
                (states, keep)
            }),
            cuts: (0..seq).filter(|&at| at > 0 && self.one_in(2)).collect(),
            words: None,
        };
        if let Some(norm) = &config.layer_inputs
            && self.one_in(2)
        {
            let width = config.layers.len() * norm.d_model;
            request.words = Some(self.tensor(&[batch, seq, width]));
        }
        request
    }

    /// 1 = keep, `[batch, keys]`.
    fn marks(&mut self, batch: usize, keys: usize) -> Vec<u8> {
        let mut marks = Vec::new();
        for _ in 0..batch {
            let (first, n) = (self.below(keys), self.below(keys + 1));
            let gaps = self.one_in(3);
            for at in 0..keys {
                let inside = (first..first + n).contains(&at);
                marks.push(u8::from(inside && !(gaps && self.one_in(3))));
            }
        }
        marks
    }
}
/// Returns whether rotary angles depend on the sequence length.
fn depends_on_length(config: &StackConfig) -> bool {
    let by_length = |block: &BlockConfig| match &block.attention().unwrap().position {
        Position::Rotary(rotary) => matches!(
            rotary.scaling,
            RotaryScaling::DynamicNtk { .. } | RotaryScaling::LongRope { .. }
        ),
        _ => false,
    };
    config.blocks.iter().any(by_length)
}

/// A stack's input.
pub struct Request {
    batch: usize,
    seq: usize,
    x: Tensor,
    /// `[batch, seq]`, 1 = keep.
    pub keep: Option<Vec<u8>>,
    additive: Option<Tensor>,
    positions: Option<Vec<Vec<u32>>>,
    memory: Option<(Tensor, Option<Vec<u8>>)>,
    /// The positions at which later chunks begin in a cached run.
    cuts: Vec<usize>,
    /// The token embeddings for per-layer inputs.
    words: Option<Tensor>,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Request")
            .field("x", &self.x.dims())
            .field("keep", &self.keep)
            .field(
                "additive",
                &self.additive.as_ref().map(|t| t.dims().to_vec()),
            )
            .field("positions", &self.positions)
            .field(
                "memory",
                &self
                    .memory
                    .as_ref()
                    .map(|(t, keep)| (t.dims().to_vec(), keep)),
            )
            .field("cuts", &self.cuts)
            .finish()
    }
}

impl Request {
    /// Returns whether a role's parameter affects the output.
    pub fn reaches(&self, config: &StackConfig, name: &str) -> bool {
        // The router's correction has no gradient, nor have an xIELU's fixed constants and output scales.
        let without = [
            "router.correction",
            "xielu.slope",
            "xielu.knee",
            "output_scale",
        ];
        if without
            .iter()
            .any(|role| name.ends_with(&format!("{role}.weight")))
        {
            return false;
        }
        let runs = |block: usize| config.layers.contains(&block);
        let block = name
            .strip_prefix("blocks.")
            .and_then(|name| name.split('.').next());
        match block {
            Some(block) => runs(block.parse().unwrap()),
            None => !name.starts_with("relative_") || !config.layers.is_empty(),
        }
    }

    /// Returns the first sequence alone, and the batch with padding after every sequence.
    pub fn alone_and_padded(&self, config: &StackConfig) -> Option<(Self, Self)> {
        const PADDING: usize = 3;
        if self.additive.is_some() || self.positions.is_some() || depends_on_length(config) {
            return None;
        }
        let (batch, seq) = (self.batch, self.seq);
        let marks = self.keep.clone().unwrap_or_else(|| vec![1; batch * seq]);
        let padded = marks
            .chunks(seq)
            .flat_map(|row| [row, &[0; PADDING]].concat());
        let longer = |rows: &Tensor| {
            let padding = rows
                .narrow(1, 0, 1)
                .unwrap()
                .repeat((1, PADDING, 1))
                .unwrap();
            Tensor::cat(&[rows, &padding], 1).unwrap()
        };
        let first_of = |rows: &Tensor| rows.narrow(0, 0, 1).unwrap();
        let words = self.words.as_ref();
        let memory = |n: usize| {
            let (states, keep) = self.memory.as_ref()?;
            let keep = keep
                .as_ref()
                .map(|keep| keep[..n * states.dims()[1]].to_vec());
            Some((states.narrow(0, 0, n).unwrap(), keep))
        };
        let with = |batch, seq, x, words, keep| Self {
            batch,
            seq,
            x,
            words,
            keep,
            additive: None,
            positions: None,
            memory: memory(batch),
            cuts: Vec::new(),
        };
        let first = self.keep.as_ref().map(|keep| keep[..seq].to_vec());
        Some((
            with(1, seq, first_of(&self.x), words.map(first_of), first),
            with(
                batch,
                seq + PADDING,
                longer(&self.x),
                words.map(longer),
                Some(padded.collect()),
            ),
        ))
    }

    /// Returns whether padding is at one end only and the packed stack does not compute it.
    pub fn padding_is_left_out(&self, config: &StackConfig) -> bool {
        let Some(keep) = &self.keep else {
            return false;
        };
        let has_gap = |row: &[u8]| {
            let kept: Vec<usize> = (0..row.len()).filter(|&at| row[at] == 1).collect();
            kept.windows(2).any(|pair| pair[1] > pair[0] + 1)
        };
        let mut attentions = config.blocks.iter().map(|block| block.attention().unwrap());
        let shares_keys = attentions.any(|attention| attention.shared_keys.is_some());
        let computed = self.additive.is_some() || shares_keys;
        !computed && !has_alibi(config) && !keep.chunks(self.seq).any(has_gap)
    }

    pub fn x(&self) -> Tensor {
        self.x.clone()
    }

    /// Returns the same input on a device.
    pub fn on(&self, device: &Device) -> Self {
        let on = |tensor: &Tensor| tensor.to_device(device).unwrap();
        let memory = self.memory.as_ref();
        Self {
            batch: self.batch,
            seq: self.seq,
            x: on(&self.x),
            keep: self.keep.clone(),
            additive: self.additive.as_ref().map(on),
            positions: self.positions.clone(),
            memory: memory.map(|(states, keep)| (on(states), keep.clone())),
            cuts: self.cuts.clone(),
            words: self.words.as_ref().map(on),
        }
    }

    pub fn device(&self) -> &Device {
        self.x.device()
    }

    pub fn context(&self, dtype: DType) -> ForwardContext {
        self.part(0, self.seq, dtype)
    }

    /// Returns the context for `n` positions from `at` on.
    fn part(&self, at: usize, n: usize, dtype: DType) -> ForwardContext {
        let marks = |keep: &Option<Vec<u8>>, keys: usize, at: usize, n: usize| match keep {
            None => AttentionMask::none(),
            Some(keep) => {
                let keep = Tensor::from_vec(keep.clone(), (self.batch, keys), &Device::Cpu);
                let keep = keep.unwrap().narrow(1, at, n).unwrap();
                let least = keep.flatten_all().unwrap().min(0).unwrap();
                match least.to_scalar::<u8>().unwrap() {
                    0 => AttentionMask::padding(&keep.to_device(self.device()).unwrap()).unwrap(),
                    _ => AttentionMask::none(), // the cache supplies the mask for such chunks
                }
            }
        };
        let mut mask = marks(&self.keep, self.seq, at, n);
        if let Some(additive) = &self.additive {
            mask = mask.with_additive(additive.to_dtype(dtype).unwrap());
        }
        let mut context = ForwardContext::evaluation().with_mask(mask);
        if let Some(positions) = &self.positions {
            let rows: Vec<Vec<u32>> = positions
                .iter()
                .map(|row| row[at..at + n].to_vec())
                .collect();
            let ids = Tensor::new(rows, &Device::Cpu).unwrap();
            context = context.with_position_ids(&ids).unwrap();
        }
        if let Some((states, keep)) = &self.memory {
            let keys = states.dims()[1];
            let mask = marks(keep, keys, 0, keys);
            context = context.with_encoder_output(states.to_dtype(dtype).unwrap(), mask);
        }
        if let Some(words) = &self.words {
            let words = words.narrow(1, at, n).unwrap();
            context = context.with_layer_inputs(words.to_dtype(dtype).unwrap());
        }
        context
    }

    /// Returns whether a cached run gives the same result as a whole one.
    pub fn can_be_cached(&self, config: &StackConfig) -> bool {
        let causal = |block: &BlockConfig| block.facts().is_causal;
        config.blocks.iter().all(causal) && !depends_on_length(config) && self.additive.is_none()
    }

    /// Returns the concatenated results of `step` for each chunk in turn.
    pub fn chunks(
        &self,
        x: &Tensor,
        dtype: DType,
        mut step: impl FnMut(&Tensor, &ForwardContext) -> Result<Tensor, String>,
    ) -> Result<Tensor, String> {
        let ends = self.cuts.iter().copied().chain([self.seq]);
        let mut at = 0;
        let mut outputs = Vec::new();
        for end in ends {
            let chunk = x.narrow(1, at, end - at).unwrap();
            outputs.push(step(&chunk, &self.part(at, end - at, dtype))?);
            at = end;
        }
        Ok(Tensor::cat(&outputs, 1).unwrap())
    }
}
