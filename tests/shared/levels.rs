//! The instruction sets.

/// Every instruction set, by its name in `CANDLE_BLOCKS_ISA`.
pub const LEVELS: [&str; 10] = [
    "portable",
    "neon",
    "neon_dotprod",
    "neon_bf16",
    "avx2",
    "avx512",
    "avx512_vnni",
    "avx512_bf16",
    "amx",
    "amx_emulated",
];
