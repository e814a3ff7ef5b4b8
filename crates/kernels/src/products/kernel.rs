//! The interface between the matrix product driver and an instruction set: a function table for each format.
//!
//! Every call does the work of a tile, a panel or a row, so that an indirect call costs next to nothing. The driver
//! is compiled once for each format rather than once for each format and instruction set.
//!
//! Instruction sets with vector registers implement [`Dots`], from which all these functions follow.

use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
use super::tiles::TileKernel;
use super::{
    ApplyEpilogue, ApplyEpilogueToPanels, Blocking, Chunks, DotTiles, Dots, Format, InPlaceTile,
    PackByRows, PackColumns, PackPanel, PackRow, PackRows, PanelPairs, Registers, UnpackColumn,
    Widen, WidenedWords,
    formats::group_scales::{E2M1, NON_LINEAR},
    formats::quantized::Quantized,
    pack_panel::transposed_columns,
};
use crate::vectors::{Instructions, Isa};

/// Declares a kernel trait: properties that the driver queries, tasks (each run with the dot-product instructions or
/// with the totals' vectors), and functions that only tile registers need. Every `$Dots` implements the kernel.
macro_rules! kernel {
    (
        $(#[$doc:meta])* $visibility:vis trait $Kernel:ident<F: $Format:ident> of D: $Dots:ident;
        facts { $($(#[$fact_doc:meta])* $fact:ident($($arg:ident: $arg_type:ty)?) -> $value:ty { $answer:expr })* }
        tasks { $($(#[$task_doc:meta])* $by:ident $task:ident($of:ty) $(-> $output:ty)?;)* }
        tiles { $($tiles:tt)* }
    ) => {
        $(#[$doc])*
        $visibility trait $Kernel<F: $Format>: Send + Sync {
            $($(#[$fact_doc])* fn $fact(&self, $($arg: $arg_type)?) -> $value;)*
            $($(#[$task_doc])* fn $task(&self, task: $of) $(-> $output)?;)*
            $($tiles)*
        }

        impl<F: $Format, D: $Dots<F>> $Kernel<F> for D {
            $(fn $fact(&self, $($arg: $arg_type)?) -> $value {
                $answer
            })*
            $(fn $task(&self, task: $of) $(-> $output)? {
                $crate::products::kernel::kernel!(@$by self).enter(task)
            })*
        }
    };
    (@dots $dots:ident) => { $dots };
    (@vectors $dots:ident) => { $dots.vectors() };
}
pub(crate) use kernel;

kernel! {
    /// An instruction set's functions for products in a format.
    ///
    /// An instruction set with tile registers implements this trait itself, for the formats that its tiles
    /// multiply ([`TileKernel`]).
    pub trait Kernel<F: Format> of D: Dots;
    facts {
        /// Returns the maximum row count in a tile.
        rows() -> usize { D::ROWS }
        /// Returns the column count in a tile, which is also a panel's width.
        panel() -> usize { D::PANEL }
        /// Returns how rows are packed that are multiplied by columns in `layout`.
        chunks(layout: F::Layout) -> Chunks { D::chunks(layout) }
        /// Returns how many columns are transposed together while a panel is packed.
        transposed_columns() -> usize { transposed_columns::<F, D>() }
        /// Returns the words in a widened chunk, which is empty if tiles read packed words.
        widened() -> WidenedWords { D::WIDENED }
        /// Returns the row blocking.
        blocking() -> Blocking { Blocking::OF_VECTORS }
    }
    tasks {
        /// Widens a packed chunk for the tiles that use it.
        dots widen(Widen<F>);
        /// Adds one chunk in a tile to the totals.
        dots multiply(DotTiles<F>);
        /// Computes few rows, in panel pairs.
        dots multiply_pairs(PanelPairs<F>);
        /// Adds one chunk in few rows, times unpacked columns.
        vectors multiply_in_place(InPlaceTile<F::Element>);
        /// Applies the epilogue to some rows in a panel.
        vectors finish(ApplyEpilogue<F::Element>);
        /// Applies the epilogue to some rows in several panels.
        vectors apply_epilogue_to_panels(ApplyEpilogueToPanels<F::Element>);
        /// Packs one left operand row.
        dots pack_row(PackRow<F>);
        /// Packs some left operand rows in one chunk.
        dots pack_rows(PackRows<F>);
        /// Packs a panel chunk whose words are the input values.
        vectors pack_columns(PackColumns<F::Element>);
        /// Packs a whole panel.
        vectors pack_panel(PackPanel<F>);
        /// Copies a packed column's words.
        vectors unpack_column(UnpackColumn<F>);
        /// Packs panels row by row, from contiguous rows, for formats that support it.
        vectors pack_by_rows(PackByRows<F>);
        /// Times the arithmetic: multiplies and adds registers for a while, and returns the operation count.
        dots multiply_registers(Registers<F>) -> usize;
    }
    tiles {
        /// Calls `work` with the thread's tile registers configured for a product of `rows` rows, in tiles of
        /// [`Self::rows`] and one tile for the remainder. Every `multiply` and `multiply_pairs` must run within
        /// such a call.
        fn with_tiles(&self, _rows: usize, work: &mut dyn FnMut()) {
            work();
        }
        /// Rearranges a panel into the order in which it is read, after all its columns are packed.
        fn arrange(&self, _panel: &mut [F::Word]) {}
    }
}

/// A format that has a kernel for every instruction set.
pub trait WithKernel: Format {
    /// Returns the kernel for an instruction set. It uses the dot-product instructions for this format, or else
    /// the general vector instructions. A kernel has no fields, so the box does not allocate.
    fn kernel(isa: Isa) -> Box<dyn Kernel<Self>>;
}

macro_rules! with_kernel {
    // The kernel of each instruction set's vectors.
    ($with:ident $kernel:ident $type:ty) => {
        $crate::products::kernel::with_kernel!(
            $with $kernel $type,
            neon level => level.neon(), level => level.neon(),
            avx512 level => level.avx512(), level => level.avx512(), level => level.avx512()
        );
    };
    (
        $with:ident $kernel:ident $type:ty,
        neon $dotprod:ident => $of_dotprod:expr, $neon_bf16:ident => $of_neon_bf16:expr,
        avx512 $vnni:ident => $of_vnni:expr, $bf16:ident => $of_bf16:expr, $tiles:ident => $of_tiles:expr
    ) => {
        impl $with for $type {
            fn kernel(isa: Isa) -> Box<dyn $kernel<Self>> {
                match isa {
                    Isa::Portable(level) => Box::new(level),
                    #[cfg(target_arch = "aarch64")]
                    Isa::Neon(level) => Box::new(level),
                    #[cfg(target_arch = "aarch64")]
                    Isa::NeonDotprod($dotprod) => Box::new($of_dotprod),
                    #[cfg(target_arch = "aarch64")]
                    Isa::NeonBf16($neon_bf16) => Box::new($of_neon_bf16),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2(level) => Box::new(level),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512(level) => Box::new(level),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512Vnni($vnni) => Box::new($of_vnni),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512Bf16($bf16) => Box::new($of_bf16),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Amx($tiles) => Box::new($of_tiles),
                    #[cfg(target_arch = "x86_64")]
                    Isa::AmxEmulated($tiles) => Box::new($of_tiles),
                }
            }
        }
    };
}
pub(crate) use with_kernel;

with_kernel!(WithKernel Kernel f32);
with_kernel!(WithKernel Kernel f64);
with_kernel!(WithKernel Kernel f16);
with_kernel!(
    WithKernel Kernel bf16,
    neon level => level.neon(), level => level,
    avx512 level => level.avx512(), level => level, level => TileKernel(level)
);
with_kernel!(
    WithKernel Kernel i8,
    neon level => level, level => level,
    avx512 level => level, level => level.vnni(), level => TileKernel(level)
);

macro_rules! quantized_with_kernel {
    ($neon:ident => $of_neon:expr; $($code:tt)*) => {
        $(with_kernel!(
            WithKernel Kernel Quantized<$code>,
            neon $neon => $of_neon, $neon => $of_neon,
            avx512 level => level, level => level.vnni(), level => level.group_dots()
        );)*
    };
}
quantized_with_kernel!(level => level; 2 3 4 E2M1 5 6);
// These values are unsigned bytes, and this level of Arm has no instruction for unsigned times signed bytes.
quantized_with_kernel!(level => level.neon(); 8 NON_LINEAR);
