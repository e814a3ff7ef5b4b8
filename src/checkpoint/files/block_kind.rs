//! Tensor types in GGUF files.

/// The storage type of elements: a fixed number of elements in a block with a fixed number of bytes.
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
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    Mxfp4,
}

impl BlockKind {
    /// The type's id in the file, the type, the elements in a block, and the block's bytes.
    const ALL: [(u32, Self, usize, usize); 16] = [
        (0, Self::F32, 1, 4),
        (1, Self::F16, 1, 2),
        (30, Self::Bf16, 1, 2),
        (2, Self::Q4_0, 32, 18),
        (3, Self::Q4_1, 32, 20),
        (6, Self::Q5_0, 32, 22),
        (7, Self::Q5_1, 32, 24),
        (8, Self::Q8_0, 32, 34),
        (10, Self::Q2K, 256, 84),
        (11, Self::Q3K, 256, 110),
        (12, Self::Q4K, 256, 144),
        (13, Self::Q5K, 256, 176),
        (14, Self::Q6K, 256, 210),
        (20, Self::Iq4Nl, 32, 18),
        (23, Self::Iq4Xs, 256, 136),
        (39, Self::Mxfp4, 32, 17),
    ];

    /// Returns the type with this id, if it is supported.
    pub(super) fn of(number: u32) -> Option<Self> {
        let mut all = Self::ALL.iter();
        all.find(|(known, ..)| *known == number)
            .map(|(_, kind, ..)| *kind)
    }

    /// Returns the names of all supported types, for a message.
    pub(super) fn listed() -> String {
        let names: Vec<&str> = Self::ALL.iter().map(|(_, kind, ..)| kind.name()).collect();
        names.join(", ")
    }

    /// Returns ggml's name.
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
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Iq4Nl => "IQ4_NL",
            Self::Iq4Xs => "IQ4_XS",
            Self::Mxfp4 => "MXFP4",
        }
    }

    /// Returns whether its values are quantized: several share a block.
    pub fn is_quantized(self) -> bool {
        self.block().0 > 1
    }

    /// Returns the type's id in the file.
    pub fn number(self) -> u32 {
        let of = Self::ALL.iter().find(|(_, kind, ..)| *kind == self);
        of.map_or(0, |(number, ..)| *number)
    }

    /// Returns a block's number of elements and number of bytes.
    pub fn block(self) -> (usize, usize) {
        let of = Self::ALL.iter().find(|(_, kind, ..)| *kind == self);
        of.map_or((1, 1), |(_, _, numbers, bytes)| (*numbers, *bytes))
    }
}

/// Returns ggml's name for an unsupported type, including types that ggml has removed.
pub(super) fn name_of_unread(number: u32) -> Option<&'static str> {
    const NAMES: [(u32, &str); 27] = [
        (4, "Q4_2"),
        (5, "Q4_3"),
        (9, "Q8_1"),
        (15, "Q8_K"),
        (16, "IQ2_XXS"),
        (17, "IQ2_XS"),
        (18, "IQ3_XXS"),
        (19, "IQ1_S"),
        (21, "IQ3_S"),
        (22, "IQ2_S"),
        (24, "I8"),
        (25, "I16"),
        (26, "I32"),
        (27, "I64"),
        (28, "F64"),
        (29, "IQ1_M"),
        (31, "Q4_0_4_4"),
        (32, "Q4_0_4_8"),
        (33, "Q4_0_8_8"),
        (34, "TQ1_0"),
        (35, "TQ2_0"),
        (36, "IQ4_NL_4_4"),
        (37, "IQ4_NL_4_8"),
        (38, "IQ4_NL_8_8"),
        (40, "NVFP4"),
        (41, "Q1_0"),
        (42, "Q2_0"),
    ];
    let found = NAMES.iter().find(|(known, _)| *known == number);
    found.map(|(_, name)| *name)
}
