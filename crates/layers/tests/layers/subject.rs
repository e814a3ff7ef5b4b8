//! The stacks of the committed checkpoints, with the inputs for tests of properties.

use candle_blocks::{
    AttentionMask, Checkpoint, Dropout, DropoutSource, ForwardContext, Stack, Visibility, Weights,
    candle_core::{DType, Device, ModuleT, Tensor},
    verify::{Comparer, Expected},
};

use crate::{
    all::OTHERS, committed::present, device::device, numbers::bits, types::computable,
    weights::weights,
};

pub const BATCH: usize = 3;
pub const SEQ: usize = 9;

/// A checkpoint's stack in one type.
pub struct Subject {
    pub label: String,
    pub checkpoint: Checkpoint,
    pub stack: Stack,
    pub dtype: DType,
}

/// Every committed checkpoint in every type that the device computes in.
pub fn subjects() -> impl Iterator<Item = Subject> {
    let dtypes = computable([DType::F32, DType::F64], "what holds of any block in f64");
    let types = move |name| dtypes.clone().into_iter().map(move |dtype| (name, dtype));
    present(OTHERS, |&name| name)
        .into_iter()
        .flat_map(types)
        .map(|(name, dtype)| {
            let checkpoint = Checkpoint::open(weights(name)).unwrap();
            Subject {
                label: format!("{name} in {dtype:?}"),
                stack: checkpoint
                    .load(Weights::Dense(dtype, &device()))
                    .stack()
                    .unwrap(),
                checkpoint,
                dtype,
            }
        })
}

impl Subject {
    pub fn d_model(&self) -> usize {
        self.checkpoint.config().blocks[0].d_model()
    }

    pub fn is_causal(&self) -> bool {
        self.checkpoint.config().blocks[0]
            .attention()
            .unwrap()
            .visibility
            == Visibility::Causal
    }

    /// `[BATCH, SEQ, d_model]`.
    pub fn input(&self, seed: u64) -> Tensor {
        self.random(&[BATCH, SEQ, self.d_model()], seed)
    }

    /// Returns nearly normal values: sums of coin flips, made by the crate's own dropout, which can be seeded.
    pub fn random(&self, dims: &[usize], seed: u64) -> Tensor {
        const FLIPS: usize = 24;
        let ones = Tensor::ones((FLIPS, dims.iter().product()), DType::F64, &Device::Cpu).unwrap();
        let coin = Dropout::new(0.5, DropoutSource::seeded(seed)).unwrap();
        let flips = coin.forward_t(&ones, true).unwrap(); // each 0 or 2
        let sum = (flips.sum(0).unwrap() - FLIPS as f64).unwrap();
        let x = (sum / (FLIPS as f64).sqrt())
            .unwrap()
            .reshape(dims)
            .unwrap();
        x.to_dtype(self.dtype)
            .unwrap()
            .to_device(&device())
            .unwrap()
    }

    /// Both are the same in exact arithmetic.
    #[track_caller]
    pub fn assert_close(&self, what: &str, ours: &Tensor, theirs: &Tensor) {
        let depth = self.checkpoint.config().blocks.len();
        let expected = Expected::new(theirs.clone(), None).unwrap();
        let comparison = Comparer::new().compare(what, ours, &expected.with_depth(depth));
        assert!(comparison.passed(), "{}: {comparison:#?}", self.label);
    }

    #[track_caller]
    pub fn assert_bits(&self, what: &str, ours: &Tensor, theirs: &Tensor) {
        assert_eq!(ours.dims(), theirs.dims(), "{}: {what}", self.label);
        let n = n_different(ours, theirs);
        assert_eq!(
            n,
            0,
            "{}: {what}, of {} elements",
            self.label,
            ours.elem_count()
        );
    }
}

pub fn n_different(a: &Tensor, b: &Tensor) -> usize {
    bits(a)
        .iter()
        .zip(bits(b))
        .filter(|(a, b)| **a != *b)
        .count()
}

/// Returns a context for evaluation with the same mask for every sequence in the batch.
pub fn masked(mask: [u8; SEQ]) -> ForwardContext {
    masked_each([mask; BATCH])
}

pub fn masked_each(rows: [[u8; SEQ]; BATCH]) -> ForwardContext {
    let mask = Tensor::new(&rows, &device()).unwrap();
    ForwardContext::evaluation().with_mask(AttentionMask::padding(&mask).unwrap())
}

/// Returns `x` with positions `at .. at + n` from `other`.
pub fn replaced(x: &Tensor, other: &Tensor, at: usize, n: usize) -> Tensor {
    let (before, after) = (x.narrow(1, 0, at), x.narrow(1, at + n, SEQ - at - n));
    let parts = [before, other.narrow(1, at, n), after].map(|part| part.unwrap());
    Tensor::cat(&parts, 1).unwrap()
}

pub const RIGHT: [u8; SEQ] = [1, 1, 1, 1, 1, 0, 0, 0, 0];
pub const LEFT: [u8; SEQ] = [0, 0, 0, 0, 1, 1, 1, 1, 1];
