//! Widens a panel chunk once for all tiles that use it.
//!
//! Quantized weights are stored in a few bits, and their scales in a packed form. A tile multiplies bytes (or pairs of
//! 16-bit integers), and needs each part's scale and offset as floats. A product with several tiles would widen the
//! same chunk in each of them. Widened, the chunk has 5 to 9 KB on AVX2, and stays in the
//! L1 cache.

use std::mem::MaybeUninit;

use super::{Dots, Format, WIDTH, parts};
use crate::vectors::Task;

/// Widens a packed chunk.
pub struct Widen<'a, F: Format> {
    /// The packed scale words of the panel's chunk.
    pub scales: &'a [F::Word],
    /// The packed words of its values.
    pub values: &'a [F::Word],
    /// The chunk's depth.
    pub depth: usize,
    pub layout: F::Layout,
    /// The destination, aligned for vectors, with [`Dots::WIDENED`] words.
    pub to: &'a mut [F::Word],
}

impl<F: Format, D: Dots<F>> Task<D> for Widen<'_, F> {
    #[inline(always)]
    fn compute(self, d: D) {
        if const { D::WIDENED.fewest_tiles == usize::MAX } {
            panic!("tiles of this format read packed chunks");
        } else {
            self.widen(d);
        }
    }
}

impl<F: Format> Widen<'_, F> {
    #[inline(always)]
    fn widen<D: Dots<F>>(self, d: D) {
        let Self {
            scales: from_scales,
            values: from,
            depth,
            layout,
            to,
        } = self;
        let lanes = D::PANEL / WIDTH;
        let n_parts = parts(depth, F::part(layout)).max(1);
        let groups = depth.div_ceil(F::GROUP);
        assert!(from_scales.len() >= F::scale_words(layout, depth) * D::PANEL);
        assert!(from.len() >= groups.div_ceil(F::GROUPS) * F::GROUP_WORDS * D::PANEL);
        assert!(depth <= F::CHUNK);
        assert!(to.len() >= D::WIDENED.all());
        let (scales, values) = to.split_at_mut(D::WIDENED.scales);
        // SAFETY: memory for scales may have any bits, and scales have no padding.
        let (start, scales, _) =
            unsafe { scales.align_to_mut::<[MaybeUninit<D::Scales>; WIDTH]>() };
        assert!(start.is_empty(), "memory that is not aligned for vectors");
        let halves = [0, lanes].map(|start| from_scales[start..].as_ptr());
        // SAFETY: by the first assertion, the chunk has these parts' scales.
        unsafe { d.all_scales(layout, halves, &mut scales[..n_parts]) };
        for group in 0..groups {
            let first = group / F::GROUPS * F::GROUP_WORDS;
            for j in 0..WIDTH {
                // SAFETY: the group is in the chunk, by the second assertion.
                let right = unsafe {
                    d.right(
                        from.as_ptr().add(first * D::PANEL + j * lanes),
                        group % F::GROUPS,
                    )
                };
                let right = (&raw const right).cast::<F::Word>();
                // A widened group may be as long as several groups of a tile.
                for i in (0..D::WIDENED_GROUP).step_by(D::TILE_WORDS) {
                    let tile_group = (group * D::WIDENED_GROUP + i) / D::TILE_WORDS;
                    let at = (tile_group * WIDTH + j) * D::TILE_WORDS * lanes;
                    // SAFETY: by the assertions, `values` holds all groups of a chunk; `right` holds a group.
                    unsafe {
                        let to = values.as_mut_ptr().add(at);
                        to.copy_from_nonoverlapping(right.add(i * lanes), D::TILE_WORDS * lanes);
                    }
                }
            }
        }
    }
}
