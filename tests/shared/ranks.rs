//! Ranks as threads, each with its part of a stack.

use std::sync::Arc;

use candle_blocks::{
    AttentionMask, ForwardContext,
    ops::parallel::{Communicator, Threads},
    trace::TraceInput,
};

/// Returns the result on each of `size` ranks, in order.
pub fn of_ranks<R: Send>(size: usize, work: impl Fn(Arc<dyn Communicator>) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let start = |rank| {
            let work = &work;
            scope.spawn(move || work(Arc::new(rank)))
        };
        let ranks: Vec<_> = Threads::ranks(size).into_iter().map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Returns a fixture's context for the hidden states.
pub fn context(input: &TraceInput) -> ForwardContext {
    let padding = |mask| match mask {
        Some(mask) => AttentionMask::padding(mask).unwrap(),
        None => AttentionMask::none(),
    };
    let model = &input.model;
    let mut context =
        ForwardContext::evaluation().with_mask(padding(model.attention_mask.as_ref()));
    if let Some(positions) = &model.position_ids {
        context = context.with_position_ids(positions).unwrap();
    }
    if let Some(memory) = &model.encoder_hidden_states {
        let mask = padding(model.encoder_attention_mask.as_ref());
        context = context.with_encoder_output(memory.clone(), mask);
    }
    context
}
