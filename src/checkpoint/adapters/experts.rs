//! Parameters in which a class in transformers 5 stacks all experts' matrices.
//!
//! The files of most families hold a matrix for each expert. The classes only have `gate_up_proj` and `down_proj`, with
//! three dimensions, which PEFT adapts through `target_parameters`.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::checkpoint::Checkpoint;
use crate::checkpoint::plan::source::StoredParameter;
use crate::checkpoint::scheme::Family;
use crate::error::Result;

/// An expert's matrices, in the order in which a class stores gates and ups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ExpertPart {
    Gate,
    Up,
    Down,
}

/// The orientation that PEFT assumes for a parameter's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AssumedOrientation {
    /// Their actual orientation.
    AsTheyLie,
    /// `[d_out, d_in]`, although they are `[d_in, d_out]`: the class lacks `is_transposed`.
    Exchanged,
}

/// The modules that hold the experts in some families.
struct Stacked {
    families: &'static [&'static str],
    /// The feed-forward's name in the class's blocks.
    feed_forward: &'static str,
    reading: AssumedOrientation,
    single: SingleExperts,
}

/// PEFT's treatment of adapters for single experts, which are modules in transformers 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SingleExperts {
    /// PEFT ignores them.
    Ignored,
    /// PEFT joins all experts' adapters. It also mistakes modules with these names, which are beside the experts, for
    /// experts.
    Joined(&'static [&'static str]),
}

const STACKED: &[Stacked] = &[
    Stacked {
        families: &[
            "deepseek_v2",
            "deepseek_v3",
            "dots1",
            "ernie4_5_moe",
            "exaone_moe",
            "flex_olmo",
            "glm4_moe",
            "glm4_moe_lite",
            "hunyuan_v1_moe",
            "olmoe",
            "qwen2_moe",
            "qwen3_moe",
            "solar_open",
        ],
        feed_forward: "mlp",
        reading: AssumedOrientation::AsTheyLie,
        single: SingleExperts::Joined(&["gate_proj", "up_proj", "down_proj"]),
    },
    Stacked {
        families: &["minimax_m2", "mixtral"],
        feed_forward: "mlp",
        reading: AssumedOrientation::AsTheyLie,
        single: SingleExperts::Joined(&[]),
    },
    Stacked {
        families: &["gpt_oss", "phimoe"],
        feed_forward: "mlp",
        reading: AssumedOrientation::AsTheyLie,
        single: SingleExperts::Ignored,
    },
    Stacked {
        families: &["granitemoe", "granitemoeshared", "granitemoe_swa"],
        feed_forward: "block_sparse_moe",
        reading: AssumedOrientation::AsTheyLie,
        single: SingleExperts::Ignored,
    },
    Stacked {
        families: &["llama4_text"],
        feed_forward: "feed_forward",
        reading: AssumedOrientation::Exchanged,
        single: SingleExperts::Ignored,
    },
];

impl Stacked {
    fn of(family: &Family) -> Option<&'static Self> {
        let name = family.name.as_str();
        STACKED.iter().find(|known| known.families.contains(&name))
    }
}

/// Returns PEFT's treatment of adapters for single experts, if the family's classes stack experts.
pub(super) fn single(family: &Family) -> Option<SingleExperts> {
    Stacked::of(family).map(|known| known.single)
}

/// An expert's matrix, and the class's parameter that contains it.
#[derive(Clone, Debug)]
pub(crate) struct ExpertMatrix<'p> {
    /// The module that contains the experts, without a prefix.
    pub module: String,
    pub expert: usize,
    pub part: ExpertPart,
    pub reading: AssumedOrientation,
    pub source: &'p StoredParameter,
}

impl<'p> ExpertMatrix<'p> {
    /// Returns the matrix that a source describes, or `None` if its class does not stack it.
    pub fn of(family: &Family, source: &'p StoredParameter) -> Option<Self> {
        let known = Stacked::of(family)?;
        let (block, inside) = source.role.strip_prefix("blocks.")?.split_once('.')?;
        let inside = inside.strip_prefix("feed_forward.experts.")?;
        let (expert, part) = inside.split_once('.')?;
        let part = match part {
            "gate.weight" => ExpertPart::Gate,
            "up.weight" => ExpertPart::Up,
            "down.weight" => ExpertPart::Down,
            _ => return None,
        };
        let block = family.block_prefix(block.parse().ok()?);
        Some(Self {
            module: format!("{block}{}.experts", known.feed_forward),
            expert: expert.parse().ok()?,
            part,
            reading: known.reading,
            source,
        })
    }

    /// Returns the parameter's name in its module.
    pub fn parameter(&self) -> &'static str {
        match self.part {
            ExpertPart::Gate | ExpertPart::Up => "gate_up_proj",
            ExpertPart::Down => "down_proj",
        }
    }

    /// Returns the rows of the parameter's matrix that belong to this matrix, and the parameter's number of rows, with both
    /// as `[d_out, d_in]`.
    pub fn outputs(&self) -> (Vec<Range<usize>>, usize) {
        let n = self.source.shape.first().copied().unwrap_or(0);
        let one = |range: Range<usize>| std::iter::once(range).collect();
        match (&self.source.features, self.source.item, self.part) {
            // The parameter is the same on disk.
            (Some(features), Some(_), _) => (features.ranges.clone(), features.total),
            (_, _, ExpertPart::Down) => (one(0..n), n),
            (_, _, ExpertPart::Gate) => (one(0..n), 2 * n),
            (_, _, ExpertPart::Up) => (one(n..2 * n), 2 * n),
        }
    }
}

impl Checkpoint {
    /// Returns each parameter's matrices, if the class stacks experts, by the module's name in the class and the parameter's
    /// name.
    ///
    /// # Errors
    /// If `config.json` cannot be read.
    pub(crate) fn expert_matrices(
        &self,
    ) -> Result<BTreeMap<(String, &'static str), Vec<ExpertMatrix<'_>>>> {
        let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
        if !self.stacks_experts() {
            return Ok(found);
        }
        let prefix = self.prefix_in_class()?;
        for source in self.plan.in_blocks() {
            if let Some(matrix) = ExpertMatrix::of(&self.family, source) {
                let at = (format!("{prefix}{}", matrix.module), matrix.parameter());
                found.entry(at).or_default().push(matrix);
            }
        }
        Ok(found)
    }

    /// Returns whether the class stacks experts, so that PEFT moves feed-forward entries of `target_modules` to
    /// `target_parameters`.
    pub(crate) fn stacks_experts(&self) -> bool {
        Stacked::of(&self.family).is_some()
    }
}
