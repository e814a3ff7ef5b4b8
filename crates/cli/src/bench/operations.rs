//! Counts the floating-point operations in the matrix products.
//!
//! A multiply-add counts as two. Only necessary products are counted: in attention, queries with visible keys; in a mixture
//! of experts, the experts that a row uses. Norms and activations are not counted.

use candle_blocks::{
    AttentionConfig, BlockConfig, FeedForwardConfig, FeedForwardForm, StackConfig, Visibility,
};

/// Returns the operations in a stack on `batch` sequences with length `seq`; an encoder output for cross-attention has the same
/// length.
pub fn of_stack(config: &StackConfig, batch: usize, seq: usize) -> f64 {
    let block = |&i: &usize| of_block(&config.blocks[i], batch, seq);
    config.layers.iter().map(block).sum()
}

/// Returns the operations in one block.
fn of_block(config: &BlockConfig, batch: usize, seq: usize) -> f64 {
    let cross = config.cross_attention.as_ref();
    let attention = config.attention().ok();
    attention.map_or(0.0, |attention| of_attention(attention, batch, seq))
        + product(batch * seq, config.mixer.multiplied_weights(), 1)
        + cross.map_or(0.0, |cross| of_attention(cross, batch, seq))
        + of_feed_forward(&config.feed_forward, batch * seq)
}

/// Returns the operations in a feed-forward on `rows` rows.
pub fn of_feed_forward(config: &FeedForwardConfig, rows: usize) -> f64 {
    let matrices = match config.form {
        FeedForwardForm::Plain => 2,
        _ => 3,
    };
    let network = |d_ff: usize| matrices as f64 * product(rows, config.d_model, d_ff);
    let Some(experts) = &config.experts else {
        return network(config.d_ff);
    };
    let router = product(rows, config.d_model, experts.n_experts);
    let shared = experts.shared.map_or(0.0, |shared| {
        let gate = if shared.gate { 1 } else { 0 };
        network(shared.d_ff) + product(rows, config.d_model, gate)
    });
    router + shared + experts.routing.top_k as f64 * network(config.d_ff)
}

fn of_attention(config: &AttentionConfig, batch: usize, seq: usize) -> f64 {
    let rows = batch * seq;
    let (d_model, query) = (config.d_model, config.query_width());
    let inputs = match &config.latent {
        None => {
            let key_and_value = 2.0 * product(rows, config.d_encoder, config.key_width());
            product(rows, d_model, query) + key_and_value
        }
        Some(latent) => {
            let each = config.head_dim - latent.rotary_dim + latent.value_dim;
            let queries = match latent.query_rank {
                None => product(rows, d_model, query),
                Some(rank) => product(rows, rank, d_model + query),
            };
            let to_latent = product(rows, d_model, latent.kept_width());
            queries + to_latent + product(rows, latent.rank, config.n_heads * each)
        }
    };
    let output = product(rows, d_model, config.mixed_width());
    let seen: usize = (0..seq).map(|i| keys_seen(config, i, seq)).sum();
    let both = config.head_dim + config.value_dim();
    inputs + output + product(batch * seen, config.n_heads, both)
}

/// Returns the number of keys that are visible to the query at `i`, among `seq`.
fn keys_seen(config: &AttentionConfig, i: usize, seq: usize) -> usize {
    let window = config.window.unwrap_or(seq);
    match config.visibility {
        Visibility::Causal => (i + 1).min(window),
        _ => i.min(window) + 1 + (seq - 1 - i).min(window),
    }
}

/// Returns the operations in a product of matrices `[m, k]` and `[k, n]`.
fn product(m: usize, k: usize, n: usize) -> f64 {
    2.0 * m as f64 * k as f64 * n as f64
}

#[cfg(test)]
mod tests {
    use candle_blocks::config::{LatentConfig, RoutingConfig, SharedExpertConfig};
    use candle_blocks::{ExpertsConfig, NormConfig, NormPlacement};

    use super::*;

    #[test]
    fn a_feed_forward_has_two_products_and_a_gated_one_three() {
        let plain = FeedForwardConfig::new(768);
        assert_eq!(of_feed_forward(&plain, 128), 128.0 * 768.0 * 3072.0 * 4.0);
        let gated = plain
            .clone()
            .with_form(FeedForwardForm::Gated)
            .with_d_ff(10);
        assert_eq!(of_feed_forward(&gated, 3), 3.0 * 768.0 * 10.0 * 6.0);
        let shared = SharedExpertConfig::new(5, true);
        let experts = ExpertsConfig::new(8, RoutingConfig::new(2)).with_shared(Some(shared));
        let row = 2.0 * 8.0 + 6.0 * 2.0 * 10.0 + 6.0 * 5.0 + 2.0; // router, two experts, the shared one, its gate
        assert_eq!(
            of_feed_forward(&gated.with_experts(Some(experts)), 3),
            3.0 * 768.0 * row
        );
    }

    #[test]
    fn a_block_of_bert_has_four_square_products_and_two_of_each_pair_of_positions() {
        let attention = AttentionConfig::new(12, 3).unwrap();
        let feed_forward = FeedForwardConfig::new(12);
        let norm = NormConfig::layer_norm(12, 1e-12);
        let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Post);
        let (batch, seq) = (2.0, 5.0);
        let linear = 2.0 * batch * seq * (4.0 * 12.0 * 12.0 + 2.0 * 12.0 * 48.0);
        assert_eq!(
            of_block(&block, 2, 5),
            linear + 4.0 * batch * seq * seq * 12.0
        );
        let twice = StackConfig::new(vec![block.clone()], None).with_layers(vec![0, 0]);
        assert_eq!(of_stack(&twice, 2, 5), 2.0 * of_block(&block, 2, 5));
    }

    #[test]
    fn a_latent_is_projected_expanded_and_attended_to_by_its_own_widths() {
        let latent = LatentConfig::new(Some(5), 8, 2, 7, NormConfig::rms_norm(8, 1e-6));
        let attention = AttentionConfig::with_head_dim(12, 3, 6).with_latent(Some(latent));
        let queries = 12.0 * 5.0 + 5.0 * 18.0;
        let keys_and_values = 12.0 * 10.0 + 8.0 * 3.0 * (4.0 + 7.0);
        let linear = queries + keys_and_values + 21.0 * 12.0;
        let scores_and_values = 5.0 * 5.0 * 3.0 * (6.0 + 7.0);
        assert_eq!(
            of_attention(&attention, 2, 5),
            2.0 * 2.0 * (5.0 * linear + scores_and_values)
        );
    }

    #[test]
    fn keys_that_are_seen_are_those_of_the_mask_written_out() {
        for (visibility, window) in [
            (Visibility::Causal, None),
            (Visibility::Causal, Some(3)),
            (Visibility::Bidirectional, None),
            (Visibility::Bidirectional, Some(2)),
        ] {
            let config = AttentionConfig::new(8, 2).unwrap();
            let config = config.with_visibility(visibility).with_window(window);
            let w = window.unwrap_or(100) as i64;
            let sees = |i: i64, j: i64| match visibility {
                Visibility::Causal => j <= i && i - j < w,
                _ => (i - j).abs() <= w,
            };
            for i in 0..7 {
                let expected = (0..7).filter(|&j| sees(i, j)).count();
                assert_eq!(keys_seen(&config, i as usize, 7), expected);
            }
        }
    }
}
