//! What the driver of products asks of a level's instructions: a table of functions for each format.
//!
//! Every call does the work of a tile, a panel or a row, so that a call through a pointer costs nothing, and the driver
//! is compiled once for each format instead of once for each format at each level.
//!
//! Levels whose unit is a vector have [`Dots`], from which all of these functions follow.

use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
use super::tiles::TileKernel;
use super::{
    Blocking, Chunks, DotTile, Dots, Finish, FinishPanels, Format, InPlaceTile, PackByRows,
    PackColumns, PackPanel, PackRow, PackRows, PanelPairs, Registers, UnpackColumn,
    formats::coded::Coded, pack_panel::transposed_columns,
};
use crate::vectors::{Instructions, Isa};

/// Declares a kernel: the facts that the driver asks for, the tasks that it has computed, each with the instructions
/// of dot products or with the vectors of their results, and what only a level of tiles does. Every `$Dots` is such a kernel.
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
    /// The instructions of one level for products in a format.
    ///
    /// A level whose unit is a tile register implements this trait itself, for the formats that it multiplies
    /// ([`TileKernel`]).
    pub trait Kernel<F: Format> of D: Dots;
    facts {
        /// The most rows of a tile.
        rows() -> usize { D::ROWS }
        /// Columns of a tile, and so of a panel.
        panel() -> usize { D::PANEL }
        /// How a row is packed that columns in a layout are multiplied by.
        chunks(layout: F::Layout) -> Chunks { D::chunks(layout) }
        /// Columns that are transposed together while a panel is packed.
        transposed_columns() -> usize { transposed_columns::<F, D>() }
        /// How rows are divided.
        blocking() -> Blocking { Blocking::OF_VECTORS }
    }
    tasks {
        /// Adds one chunk of a tile to its totals.
        dots multiply(DotTile<F>);
        /// Computes a row or two in pairs of panels.
        dots multiply_pairs(PanelPairs<F>);
        /// Adds one chunk of a few rows, times columns that are read where they lie.
        vectors multiply_in_place(InPlaceTile<F::Number>);
        /// Applies the epilogue to some rows of a panel.
        vectors finish(Finish<F::Number>);
        /// Applies the epilogue to some rows of several panels.
        vectors finish_panels(FinishPanels<F::Number>);
        /// Packs one row of the left operand.
        dots pack_row(PackRow<F>);
        /// Packs some rows of the left operand in one chunk.
        dots pack_rows(PackRows<F>);
        /// Packs a chunk of a panel whose words are its numbers.
        vectors pack_columns(PackColumns<F::Number>);
        /// Packs a whole panel.
        vectors pack_panel(PackPanel<F>);
        /// Copies the words of a packed column.
        vectors unpack_column(UnpackColumn<F>);
        /// Packs panels of a format that is packed by rows, from contiguous rows.
        vectors pack_by_rows(PackByRows<F>);
        /// Multiplies and adds registers for a while; returns how many operations these were.
        dots multiply_registers(Registers<F>) -> usize;
    }
    tiles {
        /// Calls `work` with the thread's tile registers ready for a product of so many rows, in tiles of [`Self::rows`]
        /// and one of what is left. Each `multiply` and `multiply_pairs` must be within such a call.
        fn with_tiles(&self, _rows: usize, work: &mut dyn FnMut()) {
            work();
        }
        /// Brings a panel whose columns are all packed into the order in which it is read.
        fn arrange(&self, _panel: &mut [F::Word]) {}
    }
}

/// A format that every level has a kernel for.
pub trait WithKernel: Format {
    /// The kernel of a level: that of its instructions for this format, or else of its vectors. A kernel holds nothing,
    /// so that the box takes no memory.
    fn kernel(isa: Isa) -> Box<dyn Kernel<Self>>;
}

macro_rules! with_kernel {
    // That of each level's vectors.
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

macro_rules! codes_with_kernel {
    ($neon:ident => $of_neon:expr; $($bits:literal $(e2m1 $e2m1:literal)?)*) => {
        $(with_kernel!(
            WithKernel Kernel Coded<$bits $(, $e2m1)?>,
            neon $neon => $of_neon, $neon => $of_neon,
            avx512 level => level, level => level.vnni(), level => level.code_dots()
        );)*
    };
}
codes_with_kernel!(level => level; 4 4 e2m1 true 5 6);
// Bytes without a sign, which Arm multiplies by no signed ones.
codes_with_kernel!(level => level.neon(); 8);
