//! Elementwise arithmetic. Each result is rounded once, to the elements' type.

use crate::cpu::{Cpu, PIECE};
use crate::threads::parallel;
use crate::vectors::{Element, Isa, Loop, Real, Slice, SliceMut, Stored, with_type};

/// Computes `y = y + x`.
///
/// # Panics
/// If lengths or types do not match, like all functions in this module.
pub fn add(cpu: Cpu, y: SliceMut, x: Slice) {
    with_type!(x, T => pairs::<T>(cpu, T::of_slice_mut(y), T::of_slice(x), |y, x| y + x));
}

/// Computes `y = y · x`.
pub fn multiply(cpu: Cpu, y: SliceMut, x: Slice) {
    with_type!(x, T => pairs::<T>(cpu, T::of_slice_mut(y), T::of_slice(x), |y, x| y * x));
}

/// Computes `y = factor · y`.
pub fn scale(cpu: Cpu, y: SliceMut, factor: f64) {
    with_type!(y.shared(), T => {
        let factor = <T as Element>::Acc::of(factor);
        each::<T>(cpu, T::of_slice_mut(y), |y| y * factor);
    });
}

/// Computes `y = y + offset`.
pub fn shift(cpu: Cpu, y: SliceMut, offset: f64) {
    with_type!(y.shared(), T => {
        let offset = <T as Element>::Acc::of(offset);
        each::<T>(cpu, T::of_slice_mut(y), |y| y + offset);
    });
}

/// Computes `y = min(max(y, low), high)`. NaN is preserved.
pub fn clamp(cpu: Cpu, y: SliceMut, [low, high]: [f64; 2]) {
    with_type!(y.shared(), T => {
        let [low, high] = [low, high].map(<T as Element>::Acc::of);
        each::<T>(cpu, T::of_slice_mut(y), |y| y.at_most(high).at_least(low));
    });
}

/// Converts `clamp(x)`'s gradient to `x`'s gradient: 0 where `x` is beyond a limit.
pub fn clamp_gradient(cpu: Cpu, dy: SliceMut, x: Slice, [low, high]: [f64; 2]) {
    with_type!(x, T => {
        let [low, high] = [low, high].map(<T as Element>::Acc::of);
        let zero = <T as Element>::Acc::ZERO;
        pairs::<T>(cpu, T::of_slice_mut(dy), T::of_slice(x), |dy, x| {
            if x > high || x < low { zero } else { dy }
        });
    });
}

/// Adds a vector to each row in `y`. Rows are as long as the vector.
pub fn add_to_rows(cpu: Cpu, y: SliceMut, vector: Slice) {
    with_type!(vector, T => rows::<T>(cpu, T::of_slice_mut(y), T::of_slice(vector), |y, v| y + v));
}

/// Multiplies each row in `y` by a vector, elementwise.
pub fn multiply_rows(cpu: Cpu, y: SliceMut, vector: Slice) {
    with_type!(vector, T => rows::<T>(cpu, T::of_slice_mut(y), T::of_slice(vector), |y, v| y * v));
}

/// Converts between f32 and a half type, rounding to nearest, ties to even.
///
/// # Panics
/// If lengths do not match, or for other types.
pub fn convert(cpu: Cpu, x: Slice, y: SliceMut) {
    match (x, y) {
        (Slice::F16(x), SliceMut::F32(y)) => converted(cpu, x, y),
        (Slice::Bf16(x), SliceMut::F32(y)) => converted(cpu, x, y),
        (Slice::F32(x), SliceMut::F16(y)) => converted(cpu, x, y),
        (Slice::F32(x), SliceMut::Bf16(y)) => converted(cpu, x, y),
        (x, y) => panic!("conversion from {x:?} to {y:?} is not supported"),
    }
}

fn converted<A: Element<Acc = f32>, B: Element<Acc = f32>>(cpu: Cpu, x: &[A], y: &mut [B]) {
    assert_eq!(x.len(), y.len());
    over(cpu, y, PIECE, |isa, start, y| {
        let x = &x[start..][..y.len()];
        isa.enter(Loop(|| {
            for (y, x) in y.iter_mut().zip(x) {
                *y = B::narrow(x.widen());
            }
        }));
    });
}

fn each<T: Element>(cpu: Cpu, y: &mut [T], f: impl Fn(T::Acc) -> T::Acc + Sync + Send) {
    over(cpu, y, PIECE, |isa, _, y| {
        isa.enter(Loop(|| {
            for y in y.iter_mut() {
                *y = T::narrow(f(y.widen()));
            }
        }));
    });
}

fn pairs<T: Element>(
    cpu: Cpu,
    y: &mut [T],
    x: &[T],
    f: impl Fn(T::Acc, T::Acc) -> T::Acc + Sync + Send,
) {
    assert_eq!(x.len(), y.len());
    over(cpu, y, PIECE, |isa, start, y| {
        let x = &x[start..][..y.len()];
        isa.enter(Loop(|| {
            for (y, x) in y.iter_mut().zip(x) {
                *y = T::narrow(f(y.widen(), x.widen()));
            }
        }));
    });
}

fn rows<T: Element>(
    cpu: Cpu,
    y: &mut [T],
    vector: &[T],
    f: impl Fn(T::Acc, T::Acc) -> T::Acc + Sync + Send,
) {
    if vector.is_empty() {
        return;
    }
    assert!(y.len().is_multiple_of(vector.len()));
    let chunk = (PIECE / vector.len()).max(1) * vector.len();
    over(cpu, y, chunk, |isa, _, y| {
        isa.enter(Loop(|| {
            for row in y.chunks_exact_mut(vector.len()) {
                for (y, v) in row.iter_mut().zip(vector) {
                    *y = T::narrow(f(y.widen(), v.widen()));
                }
            }
        }));
    });
}

fn over<T: Send>(
    cpu: Cpu,
    y: &mut [T],
    chunk: usize,
    work: impl Fn(Isa, usize, &mut [T]) + Sync + Send,
) {
    // As cheap as a copy: an eighth of a norm's cost per element.
    let threads = cpu.for_elements(y.len() / 8).threads;
    parallel::for_chunks(threads, y, chunk, |start, y| work(cpu.isa, start, y));
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::reference::{alone, on};

    #[test]
    fn each_operation_is_exact_at_every_length_and_on_every_level() {
        for n in [0, 1, 15, 17, PIECE + 3, 9 * PIECE] {
            let x: Vec<f32> = (0..n).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
            let y: Vec<f32> = (0..n).map(|i| (i as f32 * 0.3).cos()).collect();
            for isa in Isa::levels() {
                let check = |f: &dyn Fn(SliceMut), expected: &dyn Fn(usize) -> f32| {
                    let mut y = y.clone();
                    f(f32::slice_mut(&mut y));
                    assert!((0..n).all(|i| y[i] == expected(i)), "{isa}");
                };
                let (cpu, s) = (on(isa, 2), f32::slice(&x));
                check(&|y| add(cpu, y, s), &|i| y[i] + x[i]);
                check(&|y| multiply(cpu, y, s), &|i| y[i] * x[i]);
                check(&|y| scale(cpu, y, 0.1), &|i| y[i] * 0.1);
                check(&|y| shift(cpu, y, 0.1), &|i| y[i] + 0.1);
                let [low, high] = [-0.25, 0.5];
                check(&|y| clamp(cpu, y, [low, high]), &|i| {
                    y[i].clamp(low as f32, high as f32)
                });
                let within = |x: f32| (low..=high).contains(&f64::from(x));
                check(&|y| clamp_gradient(cpu, y, s, [low, high]), &|i| {
                    if within(x[i]) { y[i] } else { 0.0 }
                });
                let above = [f64::NEG_INFINITY, high];
                check(&|y| clamp(cpu, y, above), &|i| y[i].min(high as f32));
            }
        }
    }

    #[test]
    fn vectors_are_applied_to_each_row() {
        let vector = [1.0f64, 2.0, 0.5];
        let mut y = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        add_to_rows(alone(), f64::slice_mut(&mut y), f64::slice(&vector));
        assert_eq!(y, [2.0, 4.0, 3.5, 5.0, 7.0, 6.5]);
        multiply_rows(alone(), f64::slice_mut(&mut y), f64::slice(&vector));
        assert_eq!(y, [2.0, 8.0, 1.75, 5.0, 14.0, 3.25]);
    }

    #[test]
    fn conversions_round_to_nearest() {
        let x: Vec<f32> = (0..5000).map(|i| (i as f32 * 0.37).sin() * 100.0).collect();
        let (mut half, mut brain) = (vec![f16::ZERO; 5000], vec![bf16::ZERO; 5000]);
        convert(alone(), f32::slice(&x), f16::slice_mut(&mut half));
        convert(alone(), f32::slice(&x), bf16::slice_mut(&mut brain));
        for i in 0..x.len() {
            assert_eq!(half[i], f16::from_f32(x[i]));
            assert_eq!(brain[i], bf16::from_f32(x[i]));
        }
        let mut wide = vec![0.0; 5000];
        convert(alone(), bf16::slice(&brain), f32::slice_mut(&mut wide));
        assert!(wide.iter().zip(&brain).all(|(w, b)| *w == b.to_f32()));
    }
}
