//! Tensor types in GGUF files.

/// The storage type of elements: a fixed number of elements in a block with a fixed number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    F32,
    F16,
    Bf16,
    F64,
    I8,
    I16,
    I32,
    I64,
    Q1_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q8K,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq1S,
    Iq1M,
    Iq2Xxs,
    Iq2Xs,
    Iq2S,
    Iq3Xxs,
    Iq3S,
    Iq4Nl,
    Iq4Xs,
    Tq1_0,
    Tq2_0,
    Mxfp4,
    Nvfp4,
}

impl BlockKind {
    /// The type's id in the file, the type, ggml's name, the elements in a block, and the block's bytes.
    const ALL: [(u32, Self, &str, usize, usize); 34] = [
        (0, Self::F32, "F32", 1, 4),
        (1, Self::F16, "F16", 1, 2),
        (30, Self::Bf16, "BF16", 1, 2),
        (28, Self::F64, "F64", 1, 8),
        (24, Self::I8, "I8", 1, 1),
        (25, Self::I16, "I16", 1, 2),
        (26, Self::I32, "I32", 1, 4),
        (27, Self::I64, "I64", 1, 8),
        (41, Self::Q1_0, "Q1_0", 128, 18),
        (2, Self::Q4_0, "Q4_0", 32, 18),
        (3, Self::Q4_1, "Q4_1", 32, 20),
        (6, Self::Q5_0, "Q5_0", 32, 22),
        (7, Self::Q5_1, "Q5_1", 32, 24),
        (8, Self::Q8_0, "Q8_0", 32, 34),
        (9, Self::Q8_1, "Q8_1", 32, 36),
        (15, Self::Q8K, "Q8_K", 256, 292),
        (10, Self::Q2K, "Q2_K", 256, 84),
        (11, Self::Q3K, "Q3_K", 256, 110),
        (12, Self::Q4K, "Q4_K", 256, 144),
        (13, Self::Q5K, "Q5_K", 256, 176),
        (14, Self::Q6K, "Q6_K", 256, 210),
        (19, Self::Iq1S, "IQ1_S", 256, 50),
        (29, Self::Iq1M, "IQ1_M", 256, 56),
        (16, Self::Iq2Xxs, "IQ2_XXS", 256, 66),
        (17, Self::Iq2Xs, "IQ2_XS", 256, 74),
        (22, Self::Iq2S, "IQ2_S", 256, 82),
        (18, Self::Iq3Xxs, "IQ3_XXS", 256, 98),
        (21, Self::Iq3S, "IQ3_S", 256, 110),
        (20, Self::Iq4Nl, "IQ4_NL", 32, 18),
        (23, Self::Iq4Xs, "IQ4_XS", 256, 136),
        (34, Self::Tq1_0, "TQ1_0", 256, 54),
        (35, Self::Tq2_0, "TQ2_0", 256, 66),
        (39, Self::Mxfp4, "MXFP4", 32, 17),
        (40, Self::Nvfp4, "NVFP4", 64, 36),
    ];

    /// Returns the type with this id, if it is supported.
    pub fn of(number: u32) -> Option<Self> {
        let mut all = Self::ALL.iter();
        all.find(|(known, ..)| *known == number)
            .map(|(_, kind, ..)| *kind)
    }

    /// Returns all supported types' names, for a message.
    pub fn listed() -> String {
        Self::ALL.map(|(_, _, name, ..)| name).join(", ")
    }

    fn row(self) -> Option<&'static (u32, Self, &'static str, usize, usize)> {
        Self::ALL.iter().find(|(_, kind, ..)| *kind == self)
    }

    /// Returns ggml's name.
    pub fn name(self) -> &'static str {
        self.row().map_or("", |(_, _, name, ..)| name)
    }

    /// Returns whether its values are quantized: several share a block.
    pub fn is_quantized(self) -> bool {
        self.block().0 > 1
    }

    /// Returns the type's id in the file.
    pub fn number(self) -> u32 {
        self.row().map_or(0, |(number, ..)| *number)
    }

    /// Returns how many elements and how many bytes a block has.
    pub fn block(self) -> (usize, usize) {
        self.row()
            .map_or((1, 1), |(.., numbers, bytes)| (*numbers, *bytes))
    }
}

/// Returns ggml's name for an unsupported type: a newer one, and those that ggml has removed.
pub fn name_of_unread(number: u32) -> Option<&'static str> {
    const NAMES: [(u32, &str); 9] = [
        (4, "Q4_2"),
        (5, "Q4_3"),
        (31, "Q4_0_4_4"),
        (32, "Q4_0_4_8"),
        (33, "Q4_0_8_8"),
        (36, "IQ4_NL_4_4"),
        (37, "IQ4_NL_4_8"),
        (38, "IQ4_NL_8_8"),
        (42, "Q2_0"),
    ];
    let found = NAMES.iter().find(|(known, _)| *known == number);
    found.map(|(_, name)| *name)
}
