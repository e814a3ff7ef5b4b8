//! The types of tensors in GGUF files.

/// How numbers are stored: so many in a block of so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
    Mxfp4,
}

impl BlockKind {
    /// Number in the file, numbers of a block, and its bytes.
    const ALL: [(u32, Self, usize, usize); 12] = [
        (0, Self::F32, 1, 4),
        (1, Self::F16, 1, 2),
        (30, Self::Bf16, 1, 2),
        (2, Self::Q4_0, 32, 18),
        (3, Self::Q4_1, 32, 20),
        (6, Self::Q5_0, 32, 22),
        (7, Self::Q5_1, 32, 24),
        (8, Self::Q8_0, 32, 34),
        (12, Self::Q4K, 256, 144),
        (13, Self::Q5K, 256, 176),
        (14, Self::Q6K, 256, 210),
        (39, Self::Mxfp4, 32, 17),
    ];

    pub(super) fn of(number: u32) -> Option<Self> {
        let mut all = Self::ALL.iter();
        all.find(|(known, ..)| *known == number)
            .map(|(_, kind, ..)| *kind)
    }

    /// What ggml calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Mxfp4 => "MXFP4",
        }
    }

    /// Its number in the file.
    pub fn number(self) -> u32 {
        let of = Self::ALL.iter().find(|(_, kind, ..)| *kind == self);
        of.map_or(0, |(number, ..)| *number)
    }

    /// How many numbers a block has, and how many bytes.
    pub fn block(self) -> (usize, usize) {
        let of = Self::ALL.iter().find(|(_, kind, ..)| *kind == self);
        of.map_or((1, 1), |(_, _, numbers, bytes)| (*numbers, *bytes))
    }
}
