//! What the driver of products asks of a level's instructions: a table of functions for each format.
//!
//! Every call does the work of a tile, a panel or a row, so that a call through a pointer costs nothing, and the driver
//! is compiled once for each format instead of once for each format at each level.
//!
//! Most levels have [`Dots`], from which all of these functions follow. A level whose unit is not a vector (a tile
//! register) implements [`Kernel`] itself, with an order of addition of its own.

use std::marker::PhantomData;

use half::bf16;

use super::{
    dot_tile::DotTile,
    epilogue::{Finish, FinishPanels},
    format::{Dots, Format},
    in_place::InPlaceTile,
    pack_panel::{CopyPanels, PackPanel, transposed_columns},
    pack_row::{PackRow, PackRows},
    packed_rows::Chunks,
    panel_pair::PanelPairs,
    registers::Registers,
    transpose::PackColumns,
};
use crate::vectors::{isa::Isa, level::Instructions};

/// The instructions of one level for products in a format.
pub trait Kernel<F: Format>: Send + Sync {
    /// The most rows of a tile.
    fn rows(&self) -> usize;
    /// Columns of a tile, and so of a panel.
    fn panel(&self) -> usize;
    /// How a packed row is divided into chunks.
    fn chunks(&self) -> Chunks;
    /// Columns that are transposed together while a panel is packed.
    fn transposed_columns(&self) -> usize;

    /// Adds one chunk of a tile to its totals.
    fn multiply(&self, tile: DotTile<F>);
    /// Computes a row or two in pairs of panels.
    fn multiply_pairs(&self, pairs: PanelPairs<F>);
    /// Adds one chunk of a few rows, times columns that are read where they lie.
    fn multiply_in_place(&self, tile: InPlaceTile<F::Number>);
    /// Applies the epilogue to some rows of a panel.
    fn finish(&self, finish: Finish<F::Number>);
    /// Applies the epilogue to some rows of several panels.
    fn finish_panels(&self, finish: FinishPanels<F::Number>);
    /// Packs one row of the left operand.
    fn pack_row(&self, row: PackRow<F>);
    /// Packs some rows of the left operand in one chunk.
    fn pack_rows(&self, rows: PackRows<F>);
    /// Packs a chunk of a panel whose words are its numbers.
    fn pack_columns(&self, columns: PackColumns<F::Number>);
    /// Packs a whole panel.
    fn pack_panel(&self, panel: PackPanel<F>);
    /// Packs panels whose words are their numbers, from contiguous rows.
    fn copy_panels(&self, panels: CopyPanels<F::Number>);
    /// Multiplies and adds registers for a while; returns how many operations these were.
    fn multiply_registers(&self) -> usize;
}

impl<F: Format, D: Dots<F>> Kernel<F> for D {
    fn rows(&self) -> usize {
        D::ROWS
    }

    fn panel(&self) -> usize {
        D::PANEL
    }

    fn chunks(&self) -> Chunks {
        D::CHUNKS
    }

    fn transposed_columns(&self) -> usize {
        transposed_columns::<F, D>()
    }

    fn multiply(&self, tile: DotTile<F>) {
        self.enter(tile);
    }

    fn multiply_pairs(&self, pairs: PanelPairs<F>) {
        self.enter(pairs);
    }

    fn multiply_in_place(&self, tile: InPlaceTile<F::Number>) {
        self.vectors().enter(tile);
    }

    fn finish(&self, finish: Finish<F::Number>) {
        self.vectors().enter(finish);
    }

    fn finish_panels(&self, finish: FinishPanels<F::Number>) {
        self.vectors().enter(finish);
    }

    fn pack_row(&self, row: PackRow<F>) {
        self.enter(row);
    }

    fn pack_rows(&self, rows: PackRows<F>) {
        self.enter(rows);
    }

    fn pack_columns(&self, columns: PackColumns<F::Number>) {
        self.vectors().enter(columns);
    }

    fn pack_panel(&self, panel: PackPanel<F>) {
        self.enter(panel);
    }

    fn copy_panels(&self, panels: CopyPanels<F::Number>) {
        self.vectors().enter(panels);
    }

    fn multiply_registers(&self) -> usize {
        self.enter(Registers(PhantomData))
    }
}

/// A format that every level has a kernel for.
pub trait WithKernel: Format {
    /// The kernel of a level: that of its instructions for this format, or else of its vectors. A kernel holds nothing,
    /// so that the box takes no memory.
    fn kernel(isa: Isa) -> Box<dyn Kernel<Self>>;
}

/// Chooses the dot products of a level: `$avx512` are those of AVX-512, by variants.
macro_rules! choose {
    ($isa:expr, $vnni:ident => $of_vnni:expr, $bf16:ident => $of_bf16:expr) => {
        match $isa {
            Isa::Portable(level) => Box::new(level),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon(level) => Box::new(level),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(level) => Box::new(level),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(level) => Box::new(level),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni($vnni) => Box::new($of_vnni),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16($bf16) => Box::new($of_bf16),
        }
    };
}

pub(crate) use choose;

macro_rules! with_kernel {
    ($type:ty, $vnni:ident => $of_vnni:expr, $bf16:ident => $of_bf16:expr) => {
        impl WithKernel for $type {
            fn kernel(isa: Isa) -> Box<dyn Kernel<Self>> {
                choose!(isa, $vnni => $of_vnni, $bf16 => $of_bf16)
            }
        }
    };
}

with_kernel!(f32, level => level.avx512(), level => level.avx512());
with_kernel!(f64, level => level.avx512(), level => level.avx512());
with_kernel!(bf16, level => level.avx512(), level => level);
with_kernel!(i8, level => level, level => level.vnni());
