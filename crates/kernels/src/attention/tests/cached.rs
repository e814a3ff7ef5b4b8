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

fn panel_shape(way: Way, (n_kv_heads, head_dim): (usize, usize)) -> PanelShape {
    PanelShape {
        isa: way.isa,
        stored: way.stored,
        n_kv_heads,
        head_dim,
    }
}

/// Computes the case in steps: each step appends positions up to its end, and attends with the new queries. Returns
/// the results in the whole case's order.
fn in_steps(way: Way, case: &Case, steps: &[usize], window: Option<usize>) -> Vec<f32> {
    let width = case.n_heads * case.head_dim;
    let shape = panel_shape(way, (case.n_kv_heads, case.head_dim));
    let mut panels = vec![KeyValuePanels::new(shape); case.batch];
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
        let rows = Sequences::Equal {
            batch: case.batch,
            seq: end - start,
        };
        KeyValuePanels::append_all(&mut panels, on(way.isa, 2), rows, keys, values);
        for panels in &mut panels {
            if let Some(window) = window {
                panels.drop_before((start + 1).saturating_sub(window));
            }
            assert_eq!(panels.positions().end, end);
        }
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
        let mut panels = KeyValuePanels::new(panel_shape(way, (1, 8)));
        for round in 0..3 {
            // NaN from earlier contents must not be visible.
            let mut spoiled = case.clone();
            spoiled.key_value.fill(f32::NAN);
            let (keys, values) = (spoiled.key_heads(), spoiled.value_heads());
            panels.append(on(way.isa, 2), 0..300, keys, values);
            panels.reset();
            assert_eq!(panels.positions(), 0..0);
            panels.append(on(way.isa, 1), 0..300, case.key_heads(), case.value_heads());
            panels.drop_before(140 + round);
            panels.drop_before(3);
            assert_eq!(panels.positions(), 140 + round..300);
            let expected = case
                .clone()
                .keeping(|_, key| key >= 140 + round)
                .compute(way, 1);
            let found = case.attend(way, KeyValue::Packed(&[panels.clone()]), 1);
            assert_same(&found, &expected, way);
            panels.reset();
        }
        let chunk = way.chunk();
        assert_eq!(panels.capacity(), 300usize.next_multiple_of(chunk));
    }
}

#[test]
fn panels_give_back_their_rows_in_any_shape_and_take_them_again() {
    for way in ways() {
        for (n_kv_heads, head_dim) in [(1, 8), (2, 5), (3, 64), (1, 33)] {
            let case = Case::new((1, LENGTH, LENGTH), (n_kv_heads, n_kv_heads, head_dim));
            let (keys, values) = (case.key_heads(), case.value_heads());
            let shape = panel_shape(way, (n_kv_heads, head_dim));
            let mut panels = KeyValuePanels::new(shape);
            for (from, to) in [(0, LENGTH / 3), (LENGTH / 3, LENGTH)] {
                panels.append(on(way.isa, 1), from..to, keys, values);
            }
            for first in [0, 1, LENGTH / 2] {
                panels.drop_before(first);
                let found = panels.to_rows();
                let stored = |x: f32| match way.stored {
                    OperandFormat::F32 => x,
                    OperandFormat::Bf16 => bf16::from_f32(x).to_f32(),
                };
                let width = n_kv_heads * head_dim;
                for (found, given) in found.iter().zip([keys, values]) {
                    let row = |row| &given.from(row, 0, head_dim)[..width];
                    let expected = (first..LENGTH).flat_map(row).map(|&x| stored(x));
                    assert_same(found, &expected.collect::<Vec<_>>(), way);
                }
                let mut again = KeyValuePanels::new(shape);
                again.begin_at(first);
                let [keys, values] = found.each_ref().map(|data| Heads {
                    data,
                    row_stride: width,
                    offset: 0,
                });
                again.append(on(way.isa, 1), 0..LENGTH - first, keys, values);
                assert_eq!(again.positions(), first..LENGTH);
                let [one, other] = [&panels, &again].map(|panels| {
                    case.attend(way, KeyValue::Packed(std::slice::from_ref(panels)), 1)
                });
                assert_same(&one, &other, way);
            }
        }
    }
}

#[test]
#[should_panic(expected = "the panels are packed for another instruction set or shape")]
fn panels_of_another_shape_are_refused() {
    let way = best();
    let case = Case::new((1, 2, 3), (2, 2, 8));
    let panels = KeyValuePanels::new(panel_shape(way, (1, 8)));
    case.attend(way, KeyValue::Packed(&[panels]), 1);
}

/// Clones share blocks, of which the last is begun. What one of them appends or removes does not change the others.
#[test]
fn clones_go_on_independently() {
    for way in ways() {
        let n = LENGTH;
        let whole = |seed: f32| {
            let mut case = Case::new((1, n, n), (2, 1, 20)).reaching(Reach::Causal);
            let later = case.key_value.len() / n * (n / 2);
            case.key_value[later..].iter_mut().for_each(|x| *x += seed);
            case
        };
        let (ours, theirs) = (whole(0.0), whole(0.25));
        let append = |panels: &mut KeyValuePanels, case: &Case, rows: Range<usize>| {
            panels.append(on(way.isa, 1), rows, case.key_heads(), case.value_heads());
        };
        let mut first = KeyValuePanels::new(panel_shape(way, (1, 20)));
        append(&mut first, &ours, 0..n / 2);
        let mut second = first.clone();
        let mut third = second.clone();
        append(&mut second, &theirs, n / 2..n);
        append(&mut first, &ours, n / 2..n);
        third.truncate(n / 3);
        append(&mut third, &ours, n / 3..n);
        for (panels, case) in [(first, &ours), (second, &theirs), (third, &ours)] {
            let found = case.attend(way, KeyValue::Packed(&[panels]), 1);
            assert_same(&found, &case.compute(way, 1), way);
        }
    }
}

/// The mask and the bias count the padding before each sequence, of which neither queries nor keys are given.
#[test]
fn sequences_of_different_lengths_give_the_bits_of_each_alone() {
    let (n, n_heads, padding) = (LENGTH, 2, [0, LENGTH / 8, LENGTH - 1]);
    let data: Vec<f32> = random(padding.len() * n_heads * n * n, 0.0, 1.0, 3);
    let strides = [(n_heads * n * n) as isize, (n * n) as isize, n as isize, 1];
    for way in ways() {
        let of_sequence = |b: usize| {
            let length = n - padding[b];
            let first = b * n_heads * n * n + padding[b] * (n + 1);
            let mut case = Case::new((1, length, length), (n_heads, 1, 20))
                .reseeded(b as u64)
                .reaching(Reach::CausalWindow(n / 2))
                .keeping(|_, key| key != 2);
            let layout = BiasLayout { first, strides };
            case.biases.push((data.clone(), layout));
            case
        };
        let alone: Vec<Case> = (0..padding.len()).map(of_sequence).collect();
        let shape = panel_shape(way, (1, 20));
        let mut panels = vec![KeyValuePanels::new(shape); alone.len()];
        let key_value: Vec<f32> = alone
            .iter()
            .flat_map(|case| case.key_value.clone())
            .collect();
        let query: Vec<f32> = alone.iter().flat_map(|case| case.query.clone()).collect();
        let starts: Vec<usize> = (0..=alone.len())
            .map(|b| alone[..b].iter().map(|case| case.keys).sum())
            .collect();
        let rows = Sequences::Ragged { starts: &starts };
        let (key, value) = (alone[0].key_heads(), alone[0].value_heads());
        let joined = |of: &Heads| Heads {
            data: &key_value,
            row_stride: of.row_stride,
            offset: of.offset,
        };
        KeyValuePanels::append_all(
            &mut panels,
            on(way.isa, 2),
            rows,
            joined(&key),
            joined(&value),
        );
        let marks = padding.map(|padding| (0..n).map(move |key| u8::from(key != padding + 2)));
        let marks: Vec<u8> = marks.into_iter().flatten().collect();
        let origins = padding.map(|padding| Origin {
            query: padding,
            key: padding,
        });
        let scoring = Scoring {
            scale: alone[0].scale,
            soft_cap: None,
            relative: None,
            biases: &[Bias {
                data: &data,
                layout: BiasLayout { first: 0, strides },
            }],
            sinks: None,
            keep: Some(&marks),
            reach: &|sequence, query| alone[sequence].reach.range(query, alone[sequence].keys),
            origins: Some(&origins),
        };
        let shape = Shape {
            queries: rows,
            n_heads,
            n_kv_heads: 1,
            head_dim: 20,
        };
        let width = n_heads * 20;
        let mut found = vec![0.0; rows.n_rows() * width];
        let heads = alone[0].query_heads();
        let heads = Heads {
            data: &query,
            row_stride: heads.row_stride,
            offset: heads.offset,
        };
        let key_value = KeyValue::Packed(&panels);
        attend(
            on(way.isa, 2),
            way.stored,
            &shape,
            &scoring,
            heads,
            key_value,
            &mut found,
        );
        for (b, case) in alone.iter().enumerate() {
            let found = &found[starts[b] * width..starts[b + 1] * width];
            assert_same(found, &case.compute(way, 1), format!("{way}, sequence {b}"));
        }
    }
}
