//! Measures the speed of the gated delta rule. Run on an idle machine:
//! `cargo test --release -p candle-blocks-kernels recurrence::speed -- --ignored --nocapture`

use std::hint::black_box;

use super::*;
use crate::products::{WeightFormat, peak};
use crate::threads::with_team;
use crate::{reference::on, reference::random, timing::least, vectors::Isa};

/// Draws queries, keys, values, decay and write for some rows.
fn drawn(heads: StateHeads, n_rows: usize) -> [Vec<f32>; 5] {
    let rows = |width, seed| random::<f32>(n_rows * width, 0.0, 0.09, seed);
    let negative = |seed| {
        rows(heads.n_values, seed)
            .iter()
            .map(|x| -x.abs())
            .collect()
    };
    let keys = heads.n_keys * heads.key_dim;
    let values = heads.n_values * heads.value_dim;
    [
        rows(keys, 1),
        rows(keys, 2),
        rows(values, 3),
        negative(4),
        negative(5),
    ]
}

fn recurrence<'a>(
    rule: Rule,
    heads: StateHeads,
    inputs: &'a [Vec<f32>; 5],
    sequences: &'a [Vec<u32>],
) -> Recurrence<'a> {
    let [query, key, value, decay, write] = inputs.each_ref().map(|of| of[..].into());
    Recurrence {
        rule,
        heads,
        query,
        key,
        value,
        decay,
        write,
        sequences,
    }
}

/// Heads of 128 dimensions, as in Qwen 3.5, with 512 positions in the cache's reach.
#[test]
#[ignore = "a measurement: needs an idle machine"]
fn a_prompt_of_512_positions() {
    const ROWS: usize = 512;
    let heads = StateHeads {
        n_keys: 4,
        n_values: 4,
        key_dim: 128,
        value_dim: 128,
    };
    let inputs = drawn(heads, ROWS);
    let sequences = [(0..ROWS as u32).collect::<Vec<u32>>()];
    let rule = recurrence(Rule::Delta, heads, &inputs, &sequences);
    for isa in Isa::levels() {
        let cpu = on(isa, 1);
        let mut y = vec![0f32; ROWS * 4 * 128];
        let mut state = vec![0f32; heads.state_len()];
        let mut snapshots = vec![0f32; n_snapshots(&sequences) * heads.state_len()];
        let forward = least(5, || {
            let states = States {
                before: None,
                after: (&mut state[..]).into(),
                snapshots: Some((&mut snapshots[..]).into()),
            };
            rule.forward(cpu, states, (&mut y[..]).into());
        });
        let mut all = inputs.each_ref().map(|of| vec![0f32; of.len()]);
        let backward = least(3, || {
            let gradients = all.each_mut().map(|of| (&mut of[..]).into());
            rule.backward(cpu, snapshots[..].into(), y[..].into(), gradients);
        });
        black_box(&all);
        // Four operations for an element of the state, of which three are multiply-adds.
        let operations = (7 * ROWS * heads.state_len()) as f64;
        let share = operations / forward / peak(cpu, WeightFormat::F32);
        let each = 1e6 / (ROWS * 4) as f64;
        println!(
            "{isa:12} forward {:6.2} µs for a head's position, {:.0} % of the peak; backward {:6.2} µs",
            each * forward,
            100.0 * share,
            each * backward
        );
    }
}

/// One position in each of 36 layers with 48 heads of 64 dimensions and states of 128, as in Granite 4 H 1B: more than a cache
/// holds.
#[test]
#[ignore = "a measurement: needs an idle machine"]
fn a_token_in_many_layers() {
    let heads = StateHeads {
        n_keys: 1,
        n_values: 48,
        key_dim: 128,
        value_dim: 64,
    };
    let inputs = drawn(heads, 1);
    let sequences = [vec![0]];
    let mut states = vec![[1, 2].map(|_| vec![0f32; heads.state_len()]); 36];
    for (rule, isa) in [Rule::Sum, Rule::Delta]
        .into_iter()
        .flat_map(|rule| Isa::levels().into_iter().map(move |isa| (rule, isa)))
    {
        let kernel = recurrence(rule, heads, &inputs, &sequences);
        let mut y = vec![0f32; inputs[2].len()];
        let token = with_team(2, || {
            least(30, || {
                for [before, after] in &mut states {
                    let states = States {
                        before: Some(before[..].into()),
                        after: (&mut after[..]).into(),
                        snapshots: None,
                    };
                    kernel.forward(on(isa, 2), states, (&mut y[..]).into());
                    std::mem::swap(before, after);
                }
            })
        });
        black_box(&y);
        let bytes = (2 * 36 * 4 * heads.state_len()) as f64;
        println!(
            "{isa:12} {rule:?} {:6.2} ms, {:.0} GB/s",
            1e3 * token,
            bytes / token / 1e9
        );
    }
}
