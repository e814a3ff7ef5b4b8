//! The levels of instructions that there are.

/// Every level of instructions, as `CANDLE_BLOCKS_ISA` takes it.
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
