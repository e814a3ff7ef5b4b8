//! Run-time selection of the instruction set, once per process.
//!
//! Each instruction set is a token type whose values only a CPU check can create. Holding a token proves that its
//! instructions may be executed. The `SAFETY` comments rely on this.

use std::{fmt, sync::OnceLock};

#[cfg(target_arch = "x86_64")]
use super::amx::Amx;
#[cfg(target_arch = "x86_64")]
use super::amx_emulated::AmxEmulated;
#[cfg(target_arch = "x86_64")]
use super::avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use super::avx512::{Avx512, Avx512Bf16, Avx512Vnni};
#[cfg(target_arch = "aarch64")]
use super::neon::{Neon, NeonBf16, NeonDotprod};
use super::{Instructions, LevelTask, portable::Portable};

/// The environment variable that forces an instruction set: `portable`, `neon`, `neon_dotprod`, `neon_bf16`, `avx2`,
/// `avx512`, `avx512_vnni`, `avx512_bf16`, `amx` or `amx_emulated`.
pub const VARIABLE: &str = "CANDLE_BLOCKS_ISA";

/// Declares the instruction sets, from slowest to fastest for each architecture: architecture, name, token, and the
/// instruction set whose vectors it uses.
macro_rules! levels {
    ($($(#[$doc:meta])* $(for $arch:literal)? $name:literal: $level:ident($token:expr) $($as_level:ident)?;)*) => {
        /// All names.
        const NAMES: [&str; 10] = [$($name),*];

        /// An instruction set that this CPU has.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Isa {
            $($(#[$doc])* $(#[cfg(target_arch = $arch)])? $level($level),)*
        }

        impl Isa {
            /// Returns the instruction set with this name, if this CPU has it.
            pub fn named(name: &str) -> Result<Self, IsaError> {
                let level = match name {
                    $($(#[cfg(target_arch = $arch)])? $name => $token.map(Self::$level),)*
                    other if NAMES.contains(&other) => None,
                    _ => return Err(IsaError::Unknown(name.to_string())),
                };
                level.ok_or_else(|| IsaError::Unavailable(name.to_string()))
            }

            /// Runs a task, compiled with this instruction set. Dot-product instructions are used through a
            /// product's kernel instead.
            pub(crate) fn enter<O>(self, task: impl LevelTask<O>) -> O {
                match self {
                    $($(#[cfg(target_arch = $arch)])? Self::$level(level) => level$(.$as_level())?.enter(task),)*
                }
            }

            /// Returns the name, as in [`VARIABLE`].
            pub fn name(self) -> &'static str {
                match self {
                    $($(#[cfg(target_arch = $arch)])? Self::$level(_) => $name,)*
                }
            }
        }
    };
}

levels! {
    /// Only the compilation target's baseline.
    "portable": Portable(Some(Portable));
    /// NEON, which every 64-bit Arm CPU has.
    for "aarch64" "neon": Neon(Neon::new());
    /// NEON with int8 dot products. Other formats are unchanged.
    for "aarch64" "neon_dotprod": NeonDotprod(NeonDotprod::new()) neon;
    /// NEON with dot products and small matrix products for int8 and bfloat16. f32, f64 and f16 are unchanged.
    /// bfloat16 rounds differently, and therefore has different bits.
    for "aarch64" "neon_bf16": NeonBf16(NeonBf16::new()) neon;
    /// AVX2, FMA and F16C.
    for "x86_64" "avx2": Avx2(Avx2::new());
    /// AVX-512 as in Skylake-X (F, BW, DQ and VL).
    for "x86_64" "avx512": Avx512(Avx512::new());
    /// AVX-512 with int8 dot products. Other formats are unchanged.
    for "x86_64" "avx512_vnni": Avx512Vnni(Avx512Vnni::new()) avx512;
    /// AVX-512 with int8 and bfloat16 dot products. f32 and f64 are unchanged.
    for "x86_64" "avx512_bf16": Avx512Bf16(Avx512Bf16::new()) avx512;
    /// AVX-512 with int8 dot products, and with tile registers for bfloat16 products (Intel AMX, on Linux), which
    /// have their own summation order.
    for "x86_64" "amx": Amx(Amx::new()) avx512;
    /// AVX-512 with emulated AMX, which gives AMX's bits. Meant for tests, and so slow that it must be selected by
    /// name.
    for "x86_64" "amx_emulated": AmxEmulated(AmxEmulated::new()) avx512;
}

/// The instruction set that is never selected automatically.
const EMULATED: &str = "amx_emulated";

impl Isa {
    /// Returns the instruction set named by [`VARIABLE`], or else the fastest. Determined once per process.
    pub fn selected() -> Result<Self, IsaError> {
        static SELECTED: OnceLock<Result<Isa, IsaError>> = OnceLock::new();
        let select = || match std::env::var_os(VARIABLE) {
            None => Ok(Self::best()),
            Some(name) => Self::named(&name.to_string_lossy()),
        };
        SELECTED.get_or_init(select).clone()
    }

    /// Returns the fastest instruction set that this CPU has.
    pub fn best() -> Self {
        let fastest_first = NAMES.iter().rev();
        fastest_first
            .filter(|name| **name != EMULATED)
            .filter_map(|name| Self::named(name).ok())
            .next()
            .unwrap_or(Self::Portable(Portable))
    }

    /// Returns every instruction set that this CPU has, slowest first. Prints the names of missing ones.
    #[cfg(test)]
    pub fn levels() -> Vec<Self> {
        let levels = NAMES.map(Self::named).into_iter();
        let said = levels.map(|level| level.inspect_err(|error| println!("left out: {error}")));
        said.flatten().collect()
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The reason why an instruction set cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IsaError {
    /// No instruction set has this name.
    Unknown(String),
    /// This CPU, or this target, lacks the instruction set with this name.
    Unavailable(String),
}

impl fmt::Display for IsaError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let best = Isa::best();
        match self {
            Self::Unknown(name) => {
                let names = NAMES.join(", ");
                write!(
                    f,
                    "{VARIABLE}={name}: expected one of {names}; or unset it for {best}"
                )
            }
            Self::Unavailable(name) => write!(
                f,
                "{VARIABLE}={name}: this CPU lacks these instructions; unset the variable to use its best, {best}"
            ),
        }
    }
}

impl std::error::Error for IsaError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_can_be_selected_by_its_name() {
        for name in NAMES {
            match Isa::named(name) {
                Ok(isa) => assert_eq!(isa.name(), name),
                Err(error) => assert_eq!(error, IsaError::Unavailable(name.to_string())),
            }
        }
        assert!(Isa::named("portable").is_ok());
    }

    #[test]
    fn an_unknown_level_is_an_error_that_names_the_known_ones() {
        for name in ["", "AVX2", "avx1024"] {
            let message = Isa::named(name).unwrap_err().to_string();
            assert!(
                message.contains(&format!("{VARIABLE}={name}:")),
                "{message}"
            );
            assert!(
                message.contains("portable, neon, neon_dotprod, neon_bf16, avx2, avx512, avx512_vnni, avx512_bf16"),
                "{message}"
            );
        }
    }
}
