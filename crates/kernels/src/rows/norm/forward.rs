//! The forward norm for one row: f32 in f64 vectors, other types in loops that the compiler vectorizes.

use super::kind::{Affine, Norm, Statistic};
use crate::cpu::Cpu;
use crate::vectors::{
    Element, Isa, Level, LevelTask, MAX_LANES, Real, Slice, SliceMut, Stored, Widening, with_type,
};

impl Norm {
    /// Writes the norm of each row in `x` to `y`. All slices have one type.
    ///
    /// # Panics
    /// If lengths or types do not match.
    pub fn forward(&self, cpu: Cpu, x: Slice, weight: Slice, bias: Option<Slice>, y: SliceMut) {
        with_type!(x, T => {
            let (x, y) = (T::of_slice(x), T::of_slice_mut(y));
            let affine = self.affine(T::of_slice(weight), bias.map(T::of_slice));
            let width = affine.width();
            assert_eq!(x.len(), y.len());
            cpu.for_rows(y, width, |start, y| {
                T::normalize(cpu.isa, self, &affine, &x[start..][..y.len()], y);
            });
        });
    }

    /// Writes one row's norm to `y`.
    pub(crate) fn row(&self, isa: Isa, x: &[f32], affine: &Affine<f64>, y: &mut [f32]) {
        isa.enter(SingleRow::new(self, affine, x, y));
    }

    /// Normalizes a row in place.
    pub(crate) fn row_in_place(&self, isa: Isa, row: &mut [f32], affine: &Affine<f64>) {
        isa.enter(SingleRow::in_place(self, affine, row));
    }
}

/// An f32 row to normalize, in place or to another row.
///
/// Two passes: one for both moments about an origin, one for the results. The origin is an element in the row. It is
/// at most `√n` deviations away from the mean, so that the moments' difference (`E[d²] - E[d]²`) loses at most
/// `log2(n)` of the 29 bits by which f64 is more precise than f32.
pub struct SingleRow<'a> {
    norm: &'a Norm,
    affine: &'a Affine<f64>,
    /// `width` elements to read. May be the same memory as `y`.
    x: *const f32,
    /// `width` elements to write, which nobody else accesses.
    y: *mut f32,
}

/// Vectors with partial sums: enough to hide the additions' latency, few enough for 16 registers.
const VECTORS: usize = 4;

impl<'a> SingleRow<'a> {
    /// Creates a task that writes to another row.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn new(norm: &'a Norm, affine: &'a Affine<f64>, x: &'a [f32], y: &'a mut [f32]) -> Self {
        assert_eq!((x.len(), y.len()), (affine.width(), affine.width()));
        Self {
            norm,
            affine,
            x: x.as_ptr(),
            y: y.as_mut_ptr(),
        }
    }

    /// Creates a task that works in place.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn in_place(norm: &'a Norm, affine: &'a Affine<f64>, row: &'a mut [f32]) -> Self {
        assert_eq!(row.len(), affine.width());
        let y = row.as_mut_ptr();
        let x = y;
        Self { norm, affine, x, y }
    }

    /// Returns the mean to subtract (0 for RMSNorm), and the factor to multiply by afterwards.
    #[inline(always)]
    fn moments<V: Widening>(&self, v: V) -> (f64, f64) {
        let width = self.affine.width();
        let origin = match self.norm.statistic {
            // SAFETY: `new` and `in_place` asserted `width` elements.
            Statistic::Variance if width > 0 => unsafe { *self.x },
            Statistic::Variance | Statistic::MeanSquare => 0.0,
        };
        let minus_origin = v.splat(-f64::from(origin));
        let mut sums = [v.splat(0.0); VECTORS];
        let mut squares = sums;
        let at_once = VECTORS * V::LANES;
        let whole = width - width % at_once;
        for i in (0..whole).step_by(at_once) {
            // SAFETY: i + VECTORS * LANES <= width.
            unsafe { add(v, self.x.add(i), minus_origin, &mut sums, &mut squares) };
        }
        if whole < width {
            // Padding: the origin's distance to itself is 0.
            let mut rest = [origin; VECTORS * MAX_LANES];
            for (i, rest) in rest[..width - whole].iter_mut().enumerate() {
                // SAFETY: whole + i < width.
                *rest = unsafe { *self.x.add(whole + i) };
            }
            // SAFETY: no vector has more than MAX_LANES lanes.
            unsafe { add(v, rest.as_ptr(), minus_origin, &mut sums, &mut squares) };
        }
        // Independent from the sums, so that the division overlaps with them.
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

impl LevelTask for SingleRow<'_> {
    #[inline(always)]
    fn compute<L: Level>(self, level: L) {
        self.write(level);
    }
}

impl SingleRow<'_> {
    #[inline(always)]
    fn write<V: Widening>(self, v: V) {
        // As slices: through the `Vec`s, the compiler would reload their addresses after each store.
        let (gain, bias) = (&self.affine.gain[..], &self.affine.bias[..]);
        let width = gain.len();
        assert_eq!(bias.len(), width);
        let (mean, scale) = self.moments(v);
        // x̂ = x · scale - mean · scale. Its rounding is invisible for a mean up to 2²⁴ deviations, beyond which f32
        // itself holds no deviations.
        let offset = -mean * scale;
        let (scales, offsets) = (v.splat(scale), v.splat(offset));
        let whole = width - width % V::LANES;
        for i in (0..whole).step_by(V::LANES) {
            // SAFETY: i + LANES <= width; `new` and `in_place` asserted `width` elements in both rows, and `affine`
            // has as many.
            unsafe {
                let x = v.load_single(self.x.add(i));
                let normal = v.multiply_add(x, scales, offsets);
                let (gain, bias) = (v.load(gain.as_ptr().add(i)), v.load(bias.as_ptr().add(i)));
                v.store_single(v.multiply_add(normal, gain, bias), self.y.add(i));
            }
        }
        for i in whole..width {
            // SAFETY: i < width.
            let x = f64::from(unsafe { *self.x.add(i) });
            let y = (x * scale + offset) * gain[i] + bias[i];
            // SAFETY: i < width.
            unsafe { *self.y.add(i) = y as f32 };
        }
    }
}

/// Adds the elements' distances to an origin, and their squares, to the sums.
///
/// # Safety
/// `VECTORS * LANES` elements can be read at `from`.
#[inline(always)]
unsafe fn add<V: Widening>(
    v: V,
    from: *const f32,
    minus_origin: V::Vector,
    sums: &mut [V::Vector; VECTORS],
    squares: &mut [V::Vector; VECTORS],
) {
    for (j, (sum, square)) in sums.iter_mut().zip(squares).enumerate() {
        // SAFETY: the caller's promise, and j < VECTORS.
        let x = unsafe { v.load_single(from.add(j * V::LANES)) };
        // `x - origin` as a multiply-add, which most CPUs execute on other ports than the additions below.
        let x = v.multiply_add(x, v.splat(1.0), minus_origin);
        *sum = v.add(*sum, x);
        *square = v.multiply_add(x, x, *square);
    }
}

/// Sums all lanes in all vectors.
#[inline(always)]
fn total<V: Widening>(v: V, [a, b, c, d]: [V::Vector; VECTORS]) -> f64 {
    let sum = v.add(v.add(a, b), v.add(c, d));
    let mut lanes = [0.0; MAX_LANES];
    // SAFETY: no vector has more than MAX_LANES lanes.
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

/// Element types that a norm supports.
trait NormalizedRows: Element {
    /// Writes the norm of each row in `x` to `y`, on the calling thread.
    fn normalize(isa: Isa, norm: &Norm, affine: &Affine<Self::Wide>, x: &[Self], y: &mut [Self]) {
        isa.enter(AnyRows { norm, affine, x, y });
    }
}

impl NormalizedRows for f32 {
    fn normalize(isa: Isa, norm: &Norm, affine: &Affine<f64>, x: &[f32], y: &mut [f32]) {
        let width = affine.width();
        for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
            norm.row(isa, x, affine, y);
        }
    }
}

impl NormalizedRows for f64 {}
impl NormalizedRows for half::f16 {}
impl NormalizedRows for half::bf16 {}

/// Rows with any type.
struct AnyRows<'a, T: Element> {
    norm: &'a Norm,
    affine: &'a Affine<T::Wide>,
    x: &'a [T],
    y: &'a mut [T],
}

impl<T: Element> LevelTask for AnyRows<'_, T> {
    #[inline(always)]
    fn compute<L: Level>(self, _: L) {
        let Self { norm, affine, .. } = self;
        let (gain, bias) = (&affine.gain[..], &affine.bias[..]);
        let mut centered = vec![T::Wide::ZERO; gain.len()];
        let rows = self.x.chunks_exact(gain.len());
        for (x, y) in rows.zip(self.y.chunks_exact_mut(gain.len())) {
            let scale = norm.center(x, &mut centered);
            let affine = gain.iter().zip(bias);
            for ((y, &centered), (&gain, &bias)) in y.iter_mut().zip(&centered).zip(affine) {
                *y = T::from_wide(norm.rounded::<T>(centered * scale) * gain + bias);
            }
        }
    }
}
