//! One row's norm, forward: of f32 in vectors of f64, of other types as the compiler makes it.

use half::{bf16, f16};

use super::{
    super::{
        Element, Real, Routine,
        arch::{MOST_LANES, Widening, WideningTask},
        isa::Isa,
    },
    Affine, Norm, Statistic,
};

/// A row of f32 that becomes its norm, perhaps where it lies.
///
/// Two passes: one for both moments about a number of the row, and one for the results. A number of the row is at most
/// `√n` deviations from the mean, so that the difference of the moments loses at most `log2(n)` of the 29 bits that f64
/// has more than f32.
pub struct SingleRow<'a> {
    norm: &'a Norm,
    affine: &'a Affine<f64>,
    /// As many numbers as the norm is wide; perhaps the same as `y`.
    x: *const f32,
    /// As many, which nobody else has.
    y: *mut f32,
}

/// Vectors of sums: enough not to wait for each other, and few enough for 16 registers.
const VECTORS: usize = 4;

impl<'a> SingleRow<'a> {
    /// # Panics
    /// If lengths differ.
    pub fn new(norm: &'a Norm, affine: &'a Affine<f64>, x: &'a [f32], y: &'a mut [f32]) -> Self {
        assert_eq!((x.len(), y.len()), (affine.width(), affine.width()));
        Self {
            norm,
            affine,
            x: x.as_ptr(),
            y: y.as_mut_ptr(),
        }
    }

    /// # Panics
    /// If lengths differ.
    pub fn in_place(norm: &'a Norm, affine: &'a Affine<f64>, row: &'a mut [f32]) -> Self {
        assert_eq!(row.len(), affine.width());
        let y = row.as_mut_ptr();
        let x = y;
        Self { norm, affine, x, y }
    }

    /// What is taken off the row, and what it is multiplied with then.
    #[inline(always)]
    fn moments<V: Widening>(&self, v: V) -> (f64, f64) {
        let width = self.affine.width();
        let origin = match self.norm.statistic {
            // SAFETY: `new` and `in_place` saw `width` numbers.
            Statistic::Variance if width > 0 => unsafe { *self.x },
            Statistic::Variance | Statistic::MeanSquare => 0.0,
        };
        let less_origin = v.splat(-f64::from(origin));
        let mut sums = [v.splat(0.0); VECTORS];
        let mut squares = sums;
        let at_once = VECTORS * V::LANES;
        let whole = width - width % at_once;
        for i in (0..whole).step_by(at_once) {
            // SAFETY: i + VECTORS * LANES <= width.
            unsafe { add(v, self.x.add(i), less_origin, &mut sums, &mut squares) };
        }
        if whole < width {
            // Its distance to itself adds nothing.
            let mut rest = [origin; VECTORS * MOST_LANES];
            for (i, rest) in rest[..width - whole].iter_mut().enumerate() {
                // SAFETY: whole + i < width.
                *rest = unsafe { *self.x.add(whole + i) };
            }
            // SAFETY: no vector has more than MOST_LANES.
            unsafe { add(v, rest.as_ptr(), less_origin, &mut sums, &mut squares) };
        }
        // Ready before the sums are.
        let share = 1.0 / width as f64;
        let (distance, square) = (total(v, sums) * share, total(v, squares) * share);
        match self.norm.statistic {
            Statistic::MeanSquare => (0.0, self.norm.scale(square)),
            Statistic::Variance => {
                let variance = (square - distance * distance).at_least(0.0);
                (f64::from(origin) + distance, self.norm.scale(variance))
            }
        }
    }
}

impl WideningTask for SingleRow<'_> {
    #[inline(always)]
    fn run<V: Widening>(self, v: V) {
        // As slices: of a vector, where its numbers are might have changed with each number that is written.
        let (gain, bias) = (&self.affine.gain[..], &self.affine.bias[..]);
        let width = gain.len();
        assert_eq!(bias.len(), width);
        let (mean, scale) = self.moments(v);
        // x̂ = x · scale - mean · scale: rounded for a mean of at most 2²⁴ deviations, as f32 leaves none beyond.
        let less = -mean * scale;
        let (scales, lesses) = (v.splat(scale), v.splat(less));
        let whole = width - width % V::LANES;
        for i in (0..whole).step_by(V::LANES) {
            // SAFETY: i + LANES <= width, and `new` and `in_place` saw as many numbers in rows and `affine`.
            unsafe {
                let x = v.load_single(self.x.add(i));
                let normal = v.multiply_add(x, scales, lesses);
                let (gain, bias) = (v.load(gain.as_ptr().add(i)), v.load(bias.as_ptr().add(i)));
                v.store_single(v.multiply_add(normal, gain, bias), self.y.add(i));
            }
        }
        for i in whole..width {
            // SAFETY: i < width.
            let x = f64::from(unsafe { *self.x.add(i) });
            let y = (x * scale + less) * gain[i] + bias[i];
            // SAFETY: i < width.
            unsafe { *self.y.add(i) = y as f32 };
        }
    }
}

/// Adds numbers' distances to an origin, and their squares.
///
/// # Safety
/// `VECTORS * LANES` numbers can be read from `from` on.
#[inline(always)]
unsafe fn add<V: Widening>(
    v: V,
    from: *const f32,
    less_origin: V::Vector,
    sums: &mut [V::Vector; VECTORS],
    squares: &mut [V::Vector; VECTORS],
) {
    for (j, (sum, square)) in sums.iter_mut().zip(squares).enumerate() {
        // SAFETY: the caller's promise, and j < VECTORS.
        let x = unsafe { v.load_single(from.add(j * V::LANES)) };
        // As good as an addition, and elsewhere in the CPU than the next one.
        let x = v.multiply_add(x, v.splat(1.0), less_origin);
        *sum = v.add(*sum, x);
        *square = v.multiply_add(x, x, *square);
    }
}

/// The sum of all lanes.
#[inline(always)]
fn total<V: Widening>(v: V, [a, b, c, d]: [V::Vector; VECTORS]) -> f64 {
    let sum = v.add(v.add(a, b), v.add(c, d));
    let mut lanes = [0.0; MOST_LANES];
    // SAFETY: no vector has more than MOST_LANES.
    unsafe { v.store(sum, lanes.as_mut_ptr()) };
    let mut half = V::LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Numbers that a norm takes rows of.
pub trait Rows: Element {
    /// Writes the norms of rows of `x` to `y`, on the calling thread.
    fn normalise(isa: Isa, norm: &Norm, affine: &Affine<Self::Wide>, x: &[Self], y: &mut [Self]);
}

impl Rows for f32 {
    fn normalise(isa: Isa, norm: &Norm, affine: &Affine<f64>, x: &[f32], y: &mut [f32]) {
        let width = affine.width();
        for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
            norm.row(isa, x, affine, y);
        }
    }
}

macro_rules! as_any_row {
    ($type:ty) => {
        impl Rows for $type {
            fn normalise(
                isa: Isa,
                norm: &Norm,
                affine: &Affine<Self::Wide>,
                x: &[Self],
                y: &mut [Self],
            ) {
                let width = affine.width();
                let scratch = &mut vec![Self::Wide::ZERO; width][..];
                for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
                    isa.enter(AnyRow {
                        norm,
                        affine,
                        x,
                        y,
                        scratch,
                    });
                }
            }
        }
    };
}

as_any_row!(f64);
as_any_row!(f16);
as_any_row!(bf16);

/// A row of any type, by way of one in the type of its sums.
struct AnyRow<'a, T: Element> {
    norm: &'a Norm,
    affine: &'a Affine<T::Wide>,
    x: &'a [T],
    y: &'a mut [T],
    /// As long.
    scratch: &'a mut [T::Wide],
}

impl<T: Element> Routine for AnyRow<'_, T> {
    #[inline(always)]
    fn run(self) {
        let Self { norm, affine, .. } = self;
        let scale = norm.centre(self.x, self.scratch);
        let affine = affine.gain.iter().zip(&affine.bias);
        for ((y, &centred), (&gain, &bias)) in self.y.iter_mut().zip(&*self.scratch).zip(affine) {
            *y = T::from_wide(norm.rounded::<T>(centred * scale) * gain + bias);
        }
    }
}
