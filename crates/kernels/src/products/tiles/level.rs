//! Instruction sets with tile registers.

use std::arch::x86_64::__m512i;

use half::bf16;

use crate::products::Dots;
use crate::vectors::amx::Amx;
use crate::vectors::amx_emulated::AmxEmulated;
use crate::vectors::avx512::{Avx512, Avx512Bf16, Avx512Vnni};
use crate::vectors::tiles::Tiles;

/// An instruction set with tiles, and its vectors' dot products, which pack rows.
pub trait TileLevel: Tiles {
    type Dots: Dots<bf16, Vectors = Avx512>;
    /// Dot products for int8, with 32-bit integer accumulators.
    type ByteDots: Dots<i8, Vectors = Avx512, Sum = __m512i>;
    /// Tile products that take about 0.8 ms.
    const PRODUCTS: usize;
    fn dots(self) -> Self::Dots;
    fn byte_dots(self) -> Self::ByteDots;
}

impl TileLevel for Amx {
    type Dots = Avx512Bf16;
    type ByteDots = Avx512Vnni;
    const PRODUCTS: usize = 1 << 17;
    fn dots(self) -> Avx512Bf16 {
        self.bf16()
    }
    fn byte_dots(self) -> Avx512Vnni {
        self.bf16().vnni()
    }
}

impl TileLevel for AmxEmulated {
    type Dots = Self;
    type ByteDots = Self;
    const PRODUCTS: usize = 1 << 11;
    fn dots(self) -> Self {
        self
    }
    fn byte_dots(self) -> Self {
        self
    }
}

/// The kernel for an instruction set with tiles.
pub struct TileKernel<T>(pub T);
