//! Each instruction set's vector operations, lane by lane, compared with plain Rust. The kernels that use them have
//! their own tests.

use half::f16;

use super::{element::Real, isa::Isa, level::*};

/// Pseudo-random words, which include bits of every kind.
fn bits(n: usize) -> impl Iterator<Item = u32> {
    let next = |x: &u64| Some(x.wrapping_mul(6364136223846793005).wrapping_add(1));
    let states = std::iter::successors(Some(1), next);
    states.map(|x| (x >> 32) as u32).skip(1).take(n)
}

/// Integers so small that products and sums of three are exact, fused or not.
fn integers<T: Real>(n: usize) -> Vec<T> {
    bits(n)
        .map(|x| T::of(f64::from(x >> 21) - 1024.0))
        .collect()
}

/// Returns a vector's elements.
fn lanes<T: Real, V: Vectors<T>>(v: V, vector: V::Vector) -> Vec<T> {
    let mut lanes = vec![T::ZERO; MAX_LANES];
    // SAFETY: no vector has more than MAX_LANES lanes.
    unsafe { v.store(vector, lanes.as_mut_ptr()) };
    lanes.truncate(V::LANES);
    lanes
}

struct ThreeVectors;

impl LevelTask for ThreeVectors {
    fn compute<L: Level>(self, level: L) {
        Self::check::<f32, L>(level);
        Self::check::<f64, L>(level);
    }
}

impl ThreeVectors {
    fn check<T: Real, V: Vectors<T>>(v: V) {
        let numbers = integers::<T>(3 * V::LANES + 1);
        let [a, b, c] = [0, 1, 2].map(|i| &numbers[i * V::LANES..][..V::LANES]);
        let x = numbers[3 * V::LANES];
        // SAFETY: each slice holds a vector.
        let load = |numbers: &[T]| unsafe { v.load(numbers.as_ptr()) };
        let expect = |found: V::Vector, expected: &dyn Fn(usize) -> T| {
            let expected: Vec<T> = (0..V::LANES).map(expected).collect();
            assert!(lanes(v, found) == expected);
        };
        expect(v.splat(x), &|_| x);
        expect(v.add(load(a), load(b)), &|i| a[i] + b[i]);
        expect(v.multiply(load(a), load(b)), &|i| a[i] * b[i]);
        let sum = v.multiply_add(load(a), load(b), load(c));
        expect(sum, &|i| a[i] * b[i] + c[i]);
    }
}

#[test]
fn every_level_computes_lane_by_lane() {
    for isa in Isa::levels() {
        println!("{isa}");
        isa.enter(ThreeVectors);
    }
}

struct Singles;

impl LevelTask for Singles {
    fn compute<L: Level>(self, level: L) {
        Self::check(level);
    }
}

impl Singles {
    fn check<V: Widening>(v: V) {
        // Ties to the even neighbor below and above, and the neighbors of a tie.
        let wide = [1.0, 3.0, 1.0 + 1e-7, -3.0 - 1e-7, 0.5]
            .map(|x| 1.0 + x * f64::from(f32::EPSILON) / 2.0);
        for first in 0..wide.len() {
            let wide: Vec<f64> = (0..V::LANES).map(|i| wide[(first + i) % 5]).collect();
            let mut single = vec![0.0; V::LANES];
            // SAFETY: each slice holds a vector.
            let widened = unsafe {
                v.store_single(v.load(wide.as_ptr()), single.as_mut_ptr());
                v.load_single(single.as_ptr())
            };
            let nearest: Vec<f32> = wide.iter().map(|&x| x as f32).collect();
            assert_eq!(single, nearest);
            assert!(
                lanes(v, widened)
                    .into_iter()
                    .eq(nearest.into_iter().map(f64::from))
            );
        }
    }
}

#[test]
fn every_level_widens_and_rounds_to_the_nearest() {
    for isa in Isa::levels() {
        println!("{isa}");
        isa.enter(Singles);
    }
}

struct Places;

impl LevelTask for Places {
    fn compute<L: Level>(self, level: L) {
        Self::check(level);
    }
}

impl Places {
    fn check<V: Lookup>(v: V) {
        let numbers = std::array::from_fn(|i| (i as f32).exp2() - 7.0);
        let table = v.table(&numbers);
        let places: Vec<f32> = bits(64 * V::LANES).map(f32::from_bits).collect();
        let same = |found: V::Vector, expected: &dyn Fn(usize) -> f32| {
            for (i, found) in lanes(v, found).into_iter().enumerate() {
                assert_eq!(found.to_bits(), expected(i).to_bits());
            }
        };
        for places in places.chunks_exact(V::LANES) {
            // SAFETY: `places` holds a vector.
            let x = unsafe { v.load(places.as_ptr()) };
            same(v.look_up(table, x), &|i| {
                numbers[places[i].to_bits() as usize % TABLE_LEN]
            });
            same(v.absolute(x), &|i| places[i].abs());
            for y in [1.0, -1e30, f32::INFINITY, f32::NAN] {
                same(v.least(x, v.splat(y)), &|i| {
                    if places[i] < y { places[i] } else { y }
                });
                same(v.with_sign_of(v.splat(y), x), &|i| {
                    f32::from_bits(y.to_bits() ^ (places[i].to_bits() & 1 << 31))
                });
            }
        }
        // The NaN operand comes first.
        same(v.least(v.splat(f32::NAN), v.splat(2.0)), &|_| 2.0);
    }
}

#[test]
fn every_level_looks_up_by_the_lowest_four_bits_and_flips_signs() {
    for isa in Isa::levels() {
        println!("{isa}");
        isa.enter(Places);
    }
}

struct Halves;

impl LevelTask for Halves {
    fn compute<L: Level>(self, level: L) {
        Self::check(level);
    }
}

impl Halves {
    fn check<V: Words>(v: V) {
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        for halves in all.chunks_exact(V::LANES) {
            // SAFETY: `halves` holds a vector.
            let found = lanes(v, unsafe { v.load_half(halves.as_ptr()) });
            for (found, half) in found.into_iter().zip(halves) {
                assert_eq!(found.to_bits(), half.to_f32().to_bits(), "{half:?}");
            }
        }
    }
}

#[test]
fn every_level_widens_every_f16_to_its_exact_f32() {
    for isa in Isa::levels() {
        println!("{isa}");
        isa.enter(Halves);
    }
}
