//! Positions packed earlier give the same bits as positions packed for the call.

use super::{
    case::{Case, Reach},
    *,
};

/// Returns the rows `some` in each sequence, where sequences have `seq` rows.
fn rows(heads: Heads, seq: usize, some: Range<usize>) -> Vec<f32> {
    let stride = heads.row_stride;
    let sequences = heads.data.chunks_exact(seq * stride);
    let part = |rows: &[f32]| rows[some.start * stride..some.end * stride].to_vec();
    sequences.flat_map(part).collect()
}

fn panel_shape(way: Way, (batch, n_kv_heads, head_dim): (usize, usize, usize)) -> PanelShape {
    PanelShape {
        isa: way.isa,
        stored: way.stored,
        batch,
        n_kv_heads,
        head_dim,
    }
}

/// Computes the case in steps: each step appends positions up to its end, and attends with the new queries. Returns
/// the results in the whole case's order.
fn in_steps(way: Way, case: &Case, steps: &[usize], window: Option<usize>) -> Vec<f32> {
    let width = case.n_heads * case.head_dim;
    let shape = (case.batch, case.n_kv_heads, case.head_dim);
    let mut panels = KeyValuePanels::new(panel_shape(way, shape));
    let mut out = vec![0.0; case.batch * case.keys * width];
    let mut start = 0;
    for &end in steps {
        let step = Case {
            queries: end - start,
            keys: end,
            first_query: start,
            keep: case.keep.as_ref().map(|keep| {
                let sequences = keep.chunks_exact(case.keys);
                sequences.flat_map(|keep| keep[..end].to_vec()).collect()
            }),
            query: rows(case.query_heads(), case.keys, start..end),
            key_value: rows(case.key_heads(), case.keys, start..end),
            ..case.clone()
        };
        let (keys, values) = (step.key_heads(), step.value_heads());
        panels.append(on(way.isa, 2), end - start, keys, values);
        if let Some(window) = window {
            panels.drop_before((start + 1).saturating_sub(window));
        }
        assert_eq!(panels.positions().end, end);
        let found = step.attend(way, KeyValue::Packed(&panels), 2);
        for (sequence, found) in found.chunks_exact((end - start) * width).enumerate() {
            let at = (sequence * case.keys + start) * width;
            out[at..at + found.len()].copy_from_slice(found);
        }
        start = end;
    }
    out
}

const LENGTH: usize = if cfg!(miri) { 20 } else { 290 };

fn steps() -> Vec<Vec<usize>> {
    vec![
        vec![LENGTH],
        (1..=LENGTH).collect(),
        vec![1, LENGTH / 3, LENGTH / 3 + 1, LENGTH],
        (1..=LENGTH)
            .filter(|end| end % 19 == 0)
            .chain([LENGTH])
            .collect(),
    ]
}

#[test]
fn steps_with_a_cache_give_the_bits_of_the_whole() {
    for way in ways() {
        for (n_heads, n_kv_heads, head_dim) in [(4, 2, 20), (3, 3, 64)] {
            let case = Case::new((2, LENGTH, LENGTH), (n_heads, n_kv_heads, head_dim))
                .reaching(Reach::Causal);
            let left_padded = case.clone().keeping(|b, key| key >= 7 * b);
            let mut sloped = case.clone();
            let slope = |i: usize| (i / LENGTH + 1) as f32 * -0.01 * (i % LENGTH) as f32;
            let slopes = (0..n_heads * LENGTH).map(slope).collect();
            let layout = BiasLayout::strided([0, LENGTH, 0, 1]);
            sloped.biases.push((slopes, layout));
            for case in [case, left_padded, sloped] {
                let expected = case.compute(way, 1);
                for steps in steps() {
                    let what = format!("{way} in {} steps", steps.len());
                    assert_same(&in_steps(way, &case, &steps, None), &expected, &what);
                }
            }
        }
    }
}

#[test]
fn positions_dropped_outside_a_window_change_no_bit() {
    for way in ways() {
        for window in [1, 5, 130] {
            let case =
                Case::new((2, LENGTH, LENGTH), (2, 1, 36)).reaching(Reach::CausalWindow(window));
            let expected = case.compute(way, 1);
            for steps in steps() {
                let what = format!("{way} window {window}, {} steps", steps.len());
                let found = in_steps(way, &case, &steps, Some(window));
                assert_same(&found, &expected, what);
            }
        }
    }
}

#[test]
fn a_dropped_position_is_hidden_and_its_memory_reused() {
    for way in ways() {
        let case = Case::new((1, 4, 300), (1, 1, 8));
        let mut panels = KeyValuePanels::new(panel_shape(way, (1, 1, 8)));
        for round in 0..3 {
            // NaN from earlier contents must not be visible.
            let mut spoiled = case.clone();
            spoiled.key_value.fill(f32::NAN);
            let (keys, values) = (spoiled.key_heads(), spoiled.value_heads());
            panels.append(on(way.isa, 2), 300, keys, values);
            panels.reset();
            assert_eq!(panels.positions(), 0..0);
            panels.append(on(way.isa, 1), 300, case.key_heads(), case.value_heads());
            panels.drop_before(140 + round);
            panels.drop_before(3);
            assert_eq!(panels.positions(), 140 + round..300);
            let expected = case
                .clone()
                .keeping(|_, key| key >= 140 + round)
                .compute(way, 1);
            let found = case.attend(way, KeyValue::Packed(&panels), 1);
            assert_same(&found, &expected, way);
            panels.reset();
        }
        let chunk = way.chunk();
        assert_eq!(panels.capacity(), 300usize.next_multiple_of(chunk));
    }
}

#[test]
#[should_panic(expected = "the panels are packed for another instruction set or shape")]
fn panels_of_another_shape_are_refused() {
    let way = best();
    let case = Case::new((1, 2, 3), (2, 2, 8));
    let panels = KeyValuePanels::new(panel_shape(way, (1, 1, 8)));
    case.attend(way, KeyValue::Packed(&panels), 1);
}
