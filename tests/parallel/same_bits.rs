//! If the order of sums is the same, the bits are the same.

use candle_blocks::{
    Checkpoint, ForwardContext, Precision, Stack, Weights,
    candle_core::{DType, Device, Module, Tensor},
    checkpoint::TensorParallel,
    layers::QueryKeyValue,
};

use crate::{numbers::bits, ranks::of_ranks, weights::weights};

fn open(name: &str) -> (Checkpoint, Tensor) {
    let checkpoint = Checkpoint::open(weights(name)).unwrap();
    let d_model = checkpoint.config().blocks[0].d_model();
    let x = Tensor::arange(0f32, (5 * d_model) as f32, &Device::Cpu).unwrap();
    let x = x.sin().unwrap().reshape((1, 5, d_model)).unwrap();
    (checkpoint, x)
}

#[test]
fn one_rank_has_the_bits_of_no_ranks() {
    let (checkpoint, x) = open("tiny-gpt2");
    let loader = || checkpoint.load(Weights::Dense(DType::F32, &Device::Cpu));
    let found = of_ranks(1, |rank| {
        let parallel = TensorParallel::new(loader(), rank.clone()).unwrap();
        let packed = checkpoint.load(Weights::Packed(Precision::Int8));
        let packed = TensorParallel::new(packed, rank.clone()).unwrap();
        let packed = packed.stack().unwrap();
        let plain = parallel.stack().unwrap();
        [plain.forward(&x), packed.forward(&x)].map(|y| bits(&y.unwrap()))
    });
    let plain = loader().stack().unwrap().forward(&x);
    let packed = checkpoint
        .load(Weights::Packed(Precision::Int8))
        .stack()
        .unwrap();
    assert_eq!(
        found,
        [[plain, packed.forward(&x)].map(|y| bits(&y.unwrap()))]
    );
}

#[test]
fn a_rank_has_the_bits_of_its_heads_in_one_process() {
    let (checkpoint, x) = open("tiny-gpt2");
    let of_query = |stack: &Stack| {
        let attention = stack.blocks()[0].mixer().inner().attention().unwrap();
        let QueryKeyValue::Separate { query, .. } = attention.projections() else {
            panic!("expected separate projections")
        };
        query.forward(&x).unwrap()
    };
    let loader = || checkpoint.load(Weights::Dense(DType::F32, &Device::Cpu));
    let whole = of_query(&loader().stack().unwrap());
    let parts = of_ranks(2, |rank| {
        let parallel = TensorParallel::new(loader(), rank.clone()).unwrap();
        of_query(&parallel.stack().unwrap())
    });
    assert_eq!(bits(&Tensor::cat(&parts, 2).unwrap()), bits(&whole));
}

#[test]
fn tokens_fed_one_by_one_have_the_bits_of_all_at_once() {
    let (checkpoint, x) = open("tiny-gpt2");
    of_ranks(2, |rank| {
        let loader = checkpoint.load(Weights::Packed(Precision::F32));
        let packed = TensorParallel::new(loader, rank).unwrap().stack().unwrap();
        let context = ForwardContext::evaluation();
        let mut cache = packed.new_cache();
        let rows = (0..5).map(|at| {
            let token = x.narrow(1, at, 1).unwrap();
            packed.forward_cached(&token, &context, &mut cache).unwrap()
        });
        let rows = Tensor::cat(&rows.collect::<Vec<_>>(), 1).unwrap();
        assert_eq!(bits(&rows), bits(&packed.forward(&x).unwrap()));
    });
}

#[test]
fn parts_that_are_packed_later_have_the_bits_of_those_packed_as_they_are_read() {
    let (checkpoint, x) = open("tiny-gpt2");
    of_ranks(2, |rank| {
        let loader = checkpoint.load(Weights::Dense(DType::F32, &Device::Cpu));
        let parallel = TensorParallel::new(loader, rank.clone()).unwrap();
        let later = parallel.stack().unwrap().pack(Precision::Bf16).unwrap();
        let read = checkpoint.load(Weights::Packed(Precision::Bf16));
        let read = TensorParallel::new(read, rank).unwrap().stack().unwrap();
        let [later, read] = [later, read].map(|packed| bits(&packed.forward(&x).unwrap()));
        assert_eq!(later, read);
    });
}

/// Threads add in the order of ranks, independent of scheduling.
#[test]
fn sums_of_threads_are_those_of_ranks_in_their_order() {
    let of_rank = |rank: usize| [0.1f32, 1e8, -3.7].map(|value| value / (rank + 3) as f32);
    let expected = [0, 1, 2].map(|i| of_rank(0)[i] + of_rank(1)[i] + of_rank(2)[i]);
    for _ in 0..50 {
        let found = of_ranks(3, |rank| {
            let mut values = of_rank(rank.rank());
            rank.all_reduce_sum(&mut values).unwrap();
            let mut all = [0.0; 3];
            rank.all_gather(&[rank.rank() as f32], &mut all).unwrap();
            assert_eq!(all, [0.0, 1.0, 2.0]);
            values
        });
        assert_eq!(found, [expected; 3]);
    }
}
