//! All sizes and masks, compared with f64.

use super::{
    case::{Case, Reach, random},
    *,
};
use crate::{products::CHUNK, reference::assert_share};

/// An element's exact value, and the rounding errors in computing it: the root of their squares' sum, in units of
/// rounding.
struct Exact {
    value: f64,
    /// Rounding errors in f32 arithmetic.
    roundings: f64,
    /// Rounding errors from operands stored with fewer digits.
    of_operands: f64,
}

/// Returns the exact sum, and its rounding errors' squares, in the products' summation order.
fn sum(terms: impl Iterator<Item = (usize, f64)>) -> (f64, f64) {
    let (mut total, mut sum, mut squares, mut chunk) = (0.0, 0.0, 0.0, 0);
    for (i, term) in terms {
        if i / CHUNK != chunk {
            total += sum;
            squares += total * total;
            (sum, chunk) = (0.0, i / CHUNK);
        }
        sum += term;
        // Only the portable instruction set rounds the product, where it matters little.
        squares += sum * sum + term * term;
    }
    (total + sum, squares + (total + sum).powi(2))
}

/// Returns all results: every head, query and sequence.
fn exact(case: &Case) -> Vec<Exact> {
    let rows = 0..case.batch * case.queries;
    rows.flat_map(|row| exact_row(case, row / case.queries, row % case.queries))
        .collect()
}

/// Returns one query's results in all heads.
fn exact_row(case: &Case, sequence: usize, query: usize) -> Vec<Exact> {
    let (n_heads, n_kv_heads, head_dim) = (case.n_heads, case.n_kv_heads, case.head_dim);
    let mut results = Vec::new();
    for head in 0..n_heads {
        let kv_head = head / (n_heads / n_kv_heads);
        let row = sequence * case.queries + query;
        let q = case.query_heads().from(row, head, head_dim);
        let row = |heads: Heads, key: usize| {
            let at = case.at(heads, sequence, key, kv_head * head_dim);
            case.key_value[at..at + head_dim]
                .iter()
                .map(|&x| f64::from(x))
        };
        let seen: Vec<usize> = (0..case.keys)
            .filter(|&key| case.sees(sequence, query, key))
            .collect();
        // Scores, and their errors' squares.
        let mut scores = Vec::new();
        for &key in &seen {
            let scaled = q.iter().map(|&q| f64::from(q) * f64::from(case.scale));
            let terms = scaled.zip(row(case.key_heads(), key)).map(|(q, k)| q * k);
            let terms: Vec<f64> = terms.collect();
            let (mut score, mut squares) = sum(terms.iter().copied().enumerate());
            // The scaled query is rounded too.
            let of_terms: f64 = terms.iter().map(|term| term * term).sum();
            squares += of_terms;
            if let Some(cap) = case.soft_cap.map(f64::from) {
                // Two roundings in the quotient, at most 1.34 in its tanh at twice the size, and one in the product.
                squares += 2.0 * score * score;
                score = cap * (score / cap).tanh();
                squares += 9.0 * score * score;
            }
            for (bias, layout) in &case.biases {
                let at = [sequence, head, query, key].into_iter().zip(layout.strides);
                let offset: isize = at.map(|(i, stride)| i as isize * stride).sum();
                score += f64::from(bias[(layout.first as isize + offset) as usize]);
                squares += score * score;
            }
            // No step between operands and product amplifies the errors in query and key.
            scores.push((score, squares, 2.0 * of_terms));
        }
        let sink = case.sinks.as_ref().map(|sinks| f64::from(sinks[head]));
        let first = sink.unwrap_or(f64::NEG_INFINITY);
        let largest = scores.iter().fold(first, |a, b| a.max(b.0));
        let weights: Vec<f64> = scores.iter().map(|(s, ..)| (s - largest).exp()).collect();
        let of_sink = sink.map_or(0.0, |sink| (sink - largest).exp());
        let total: f64 = weights.iter().sum::<f64>() + of_sink;
        for d in 0..head_dim {
            let values: Vec<f64> = seen
                .iter()
                .map(|&key| {
                    let at = case.at(case.value_heads(), sequence, key, kv_head * head_dim + d);
                    f64::from(case.key_value[at])
                })
                .collect();
            let terms = weights.iter().zip(&values).map(|(w, v)| w * v / total);
            let (value, mut squares) = sum(seen.iter().copied().zip(terms));
            let mut of_operands = 0.0;
            let weighed = scores.iter().zip(&weights).zip(&values);
            for ((&(score, of_score, of_query_and_key), weight), v) in weighed {
                // The difference to the largest score, and exp with at most one unit in the last place: two
                // roundings.
                let of_weight = of_score + (score - largest).powi(2) + 4.0;
                let share = weight / total;
                squares += (share * (v - value)).powi(2) * of_weight;
                // Weight and value are rounded to the format after the weights are summed.
                of_operands += (share * (v - value)).powi(2) * of_query_and_key;
                of_operands += 2.0 * (share * v).powi(2);
            }
            if let Some(sink) = sink {
                // Like a weight whose value is 0.
                squares += (of_sink / total * value).powi(2) * ((sink - largest).powi(2) + 4.0);
            }
            // The sum over 8 lanes or more, and the quotient.
            squares += value * value * (1.0 + seen.len() as f64 / 64.0 + 2.0);
            results.push(Exact {
                value: if seen.is_empty() { 0.0 } else { value },
                roundings: squares.sqrt(),
                of_operands: of_operands.sqrt(),
            });
        }
    }
    results
}

/// Returns the largest error relative to the tolerance: four times the root of the squared roundings' sum, as in the
/// product tests.
fn share_of_error(way: Way, case: &Case, exact: &[Exact]) -> f64 {
    let found = case.compute(way, 2);
    assert_eq!(found.len(), exact.len());
    let unit = f64::from(f32::EPSILON) / 2.0;
    let unit_of_operands = match way.stored {
        OperandFormat::F32 => 0.0,
        OperandFormat::Bf16 => bf16::EPSILON.to_f64() / 2.0,
    };
    let mut worst: f64 = 0.0;
    for (i, (&found, exact)) in found.iter().zip(exact).enumerate() {
        assert!(!found.is_nan(), "{i}: NaN, expected {}", exact.value);
        let allowed = unit * exact.roundings + unit_of_operands * exact.of_operands;
        let allowed = 4.0 * allowed + f64::from(f32::MIN_POSITIVE);
        worst = worst.max((f64::from(found) - exact.value).abs() / allowed);
    }
    worst
}

const HEAD_DIMS: &[usize] = if cfg!(miri) {
    &[1, 9, 17]
} else {
    &[1, 4, 8, 15, 16, 17, 32, 64, 80, 96, 128, 256]
};
/// Query and key counts.
const LENGTHS: &[(usize, usize)] = if cfg!(miri) {
    &[(0, 3), (2, 0), (1, 1), (5, 9), (1, 130)]
} else {
    &[
        (0, 5),
        (5, 0),
        (1, 1),
        (13, 14),
        (14, 13),
        (15, 16),
        (16, 17),
        (17, 31),
        (33, 32),
        (1, 129),
        (127, 33),
        (29, 128),
        (13, 127),
        (31, 300),
    ]
};

/// Returns every mask alone, and combinations.
fn masked(case: Case) -> Vec<(&'static str, Case)> {
    let (batch, queries, keys, n_heads) = (case.batch, case.queries, case.keys, case.n_heads);
    let reach = |reach| case.clone().reaching(reach);
    let capped = |case: Case| Case {
        soft_cap: Some(3.0),
        ..case
    };
    // Above all scores, among them, and with nearly no weight.
    let with_sinks = |mut case: Case| {
        case.sinks = Some(
            (0..n_heads)
                .map(|head| [1.0, 9.0, -7.0][head % 3])
                .collect(),
        );
        case
    };
    let biased = |mut case: Case, what: usize| {
        // ALiBi slopes; then biases with stride 0 in some dimensions.
        if what != 1 {
            let slope = |head: usize, key: usize| {
                -0.5f32.powi(head as i32 + 1) * (keys as f32 - 1.0 - key as f32)
            };
            let slopes = (0..n_heads * keys).map(|i| slope(i / keys, i % keys));
            case.biases
                .push((slopes.collect(), BiasLayout::strided([0, keys, 0, 1])));
        }
        if what != 0 {
            // The second cancels in the softmax, and the third's keys are not contiguous.
            for (n, strides, seed) in [
                (batch * queries * keys, [queries * keys, 0, keys, 1], 5),
                (queries, [0, 0, 1, 0], 6),
                (2 * keys, [0, 0, 0, 2], 7),
            ] {
                let layout = BiasLayout::strided(strides);
                case.biases.push((random(n, 1.0, seed), layout));
            }
            let distances = random(n_heads * (queries + keys), 1.0, 8);
            case.biases
                .push((distances, BiasLayout::by_distance(queries, keys)));
        }
        case
    };
    let holes = |case: Case| case.keeping(|b, key| (key + b) % 3 != 1 && key + b >= 2);
    let padded = |case: Case| case.keeping(|b, key| key + 3 * b < 11 * keys / 12);
    vec![
        ("everything", case.clone()),
        ("causal", reach(Reach::Causal)),
        ("causal window", reach(Reach::CausalWindow(5))),
        ("long causal window", reach(Reach::CausalWindow(100))),
        ("window", reach(Reach::Window(7))),
        ("padding", padded(case.clone())),
        ("holes", holes(case.clone())),
        ("cap", capped(case.clone())),
        ("sinks", with_sinks(case.clone())),
        (
            "sinks and holes",
            with_sinks(holes(reach(Reach::CausalWindow(9)))),
        ),
        ("slopes", biased(case.clone(), 0)),
        ("biases", biased(case.clone(), 1)),
        ("padded causal", padded(reach(Reach::Causal))),
        (
            "all together",
            with_sinks(holes(capped(biased(reach(Reach::Window(40)), 2)))),
        ),
    ]
}

#[test]
fn every_size_and_mask_is_within_its_roundings_of_the_reference() {
    let ways = ways();
    let mut worst = vec![0.0f64; ways.len()];
    for &head_dim in HEAD_DIMS {
        for (i, &(queries, keys)) in LENGTHS.iter().enumerate() {
            let heads = [(1, 1), (2, 2), (4, 2), (3, 1)][i % 4];
            let case = Case::new((1 + i % 2, queries, keys), (heads.0, heads.1, head_dim));
            for (name, case) in masked(case) {
                let exact = exact(&case);
                for (way, worst) in ways.iter().zip(&mut worst) {
                    let share = share_of_error(*way, &case, &exact);
                    let what = format!("{way} {head_dim}, {queries} x {keys} {name}");
                    assert!(share <= 1.0, "{what}: {share} of the tolerance");
                    *worst = worst.max(share);
                }
            }
        }
    }
    for (way, worst) in ways.iter().zip(worst) {
        assert_share(worst, 0.2, way);
    }
}

#[test]
fn large_scores_neither_overflow_nor_lose_their_order() {
    for way in ways() {
        let case = Case {
            scale: 40.0,
            ..Case::new((1, 20, 50), (2, 2, 16))
        };
        let share = share_of_error(way, &case, &exact(&case));
        assert!(share <= 1.0, "{}: {share}", way);
    }
}
