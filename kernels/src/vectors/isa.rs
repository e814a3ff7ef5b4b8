//! Which instruction set the kernels use: detected once, at run time.
//!
//! Each level is a token type whose values only a check of the CPU can make. Holding a token is the proof that
//! its instructions may be executed, which is what the `SAFETY` notes of the levels rely on.

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

/// The environment variable that forces a level: `portable`, `neon`, `neon_dotprod`, `neon_bf16`, `avx2`,
/// `avx512`, `avx512_vnni`, `avx512_bf16`, `amx` or `amx_emulated`.
pub const VARIABLE: &str = "CANDLE_BLOCKS_ISA";

/// Declares the levels, for each kind of CPU from slowest to fastest: each with the CPUs that can have it, its name, its
/// token, and the level whose vectors it has.
macro_rules! levels {
    ($($(#[$doc:meta])* $(for $arch:literal)? $name:literal: $level:ident($token:expr) $($as_level:ident)?;)*) => {
        /// The names of all levels.
        const NAMES: [&str; 10] = [$($name),*];

        /// An instruction set that this CPU has.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Isa {
            $($(#[$doc])* $(#[cfg(target_arch = $arch)])? $level($level),)*
        }

        impl Isa {
            /// The level with this name, if this CPU has it.
            pub fn named(name: &str) -> Result<Self, IsaError> {
                let level = match name {
                    $($(#[cfg(target_arch = $arch)])? $name => $token.map(Self::$level),)*
                    other if NAMES.contains(&other) => None,
                    _ => return Err(IsaError::Unknown(name.to_string())),
                };
                level.ok_or_else(|| IsaError::Unavailable(name.to_string()))
            }

            /// Computes a task, compiled with this level's instructions. Those for dot products are entered through a
            /// product's kernel instead.
            pub(crate) fn enter<O>(self, task: impl LevelTask<O>) -> O {
                match self {
                    $($(#[cfg(target_arch = $arch)])? Self::$level(level) => level$(.$as_level())?.enter(task),)*
                }
            }

            /// The level's name, as [`VARIABLE`] takes it.
            pub fn name(self) -> &'static str {
                match self {
                    $($(#[cfg(target_arch = $arch)])? Self::$level(_) => $name,)*
                }
            }
        }
    };
}

levels! {
    /// Only what every CPU of the compilation target has.
    "portable": Portable(Some(Portable));
    /// NEON, which every 64-bit Arm CPU has.
    for "aarch64" "neon": Neon(Neon::new());
    /// NEON with dot products of int8, which change nothing for other formats.
    for "aarch64" "neon_dotprod": NeonDotprod(NeonDotprod::new()) neon;
    /// NEON with dot products and products of small matrices of int8 and bfloat16, which change nothing for f32, f64 and
    /// f16. In bfloat16 it rounds in another way, and so has bits of its own.
    for "aarch64" "neon_bf16": NeonBf16(NeonBf16::new()) neon;
    /// AVX2, FMA and F16C.
    for "x86_64" "avx2": Avx2(Avx2::new());
    /// AVX-512 of the Skylake-X generation (F, BW, DQ and VL).
    for "x86_64" "avx512": Avx512(Avx512::new());
    /// AVX-512 with dot products of int8, which change nothing for other formats.
    for "x86_64" "avx512_vnni": Avx512Vnni(Avx512Vnni::new()) avx512;
    /// AVX-512 with dot products of int8 and bfloat16, which change nothing for f32 and f64.
    for "x86_64" "avx512_bf16": Avx512Bf16(Avx512Bf16::new()) avx512;
    /// AVX-512 with dot products of int8, and with tile registers for products of bfloat16 (Intel's AMX, on Linux). These
    /// have an order of addition of their own.
    for "x86_64" "amx": Amx(Amx::new()) avx512;
    /// AVX-512, and the bits of the level before by emulation: for tests, and so slow that only its name selects it.
    for "x86_64" "amx_emulated": AmxEmulated(AmxEmulated::new()) avx512;
}

/// The level that is no CPU's best.
const EMULATED: &str = "amx_emulated";

impl Isa {
    /// The level named by [`VARIABLE`], or else the fastest one. Determined once per process.
    pub fn selected() -> Result<Self, IsaError> {
        static SELECTED: OnceLock<Result<Isa, IsaError>> = OnceLock::new();
        let select = || match std::env::var_os(VARIABLE) {
            None => Ok(Self::best()),
            Some(name) => Self::named(&name.to_string_lossy()),
        };
        SELECTED.get_or_init(select).clone()
    }

    /// The fastest level that this CPU has.
    pub fn best() -> Self {
        let fastest_first = NAMES.iter().rev();
        fastest_first
            .filter(|name| **name != EMULATED)
            .filter_map(|name| Self::named(name).ok())
            .next()
            .unwrap_or(Self::Portable(Portable))
    }

    /// Every level that this CPU has, slowest first; prints which ones it lacks.
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

/// Why a level cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IsaError {
    /// No level has this name.
    Unknown(String),
    /// This CPU, or this target, lacks the level of this name.
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
                "{VARIABLE}={name}: this CPU lacks these instructions; its best is {best}, taken when the variable is unset"
            ),
        }
    }
}

impl std::error::Error for IsaError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_goes_by_the_name_that_forces_it() {
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
