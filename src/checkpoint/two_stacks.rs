//! Checkpoints of two stacks as one model.

use std::collections::{BTreeSet, HashSet};

use candle_nn::VarBuilder;

use crate::checkpoint::Checkpoint;
use crate::checkpoint::ends::of_part;
use crate::checkpoint::known::known;
use crate::checkpoint::plan::Plan;
use crate::checkpoint::scheme::StackPart;
use crate::checkpoint::source::Source;
use crate::config::{Joint, ModelConfig};
use crate::error::{Error, Result};
use crate::layers::Similarity;

/// The stack that makes one model with a checkpoint's own.
#[derive(Clone, Debug)]
pub struct OtherStack {
    /// Which it is. The roles of its parameters begin with this name.
    pub part: StackPart,
    /// It, with its embeddings, pooler and head.
    pub config: ModelConfig,
    /// How the two make one model.
    pub joint: Joint,
}

impl Checkpoint {
    /// The stack that makes one model with this one, if both were opened
    /// ([`CheckpointOptions::whole`](crate::CheckpointOptions::whole)).
    ///
    /// # Errors
    /// As for [`Self::model_config`], about either.
    pub fn other_stack(&self) -> Result<Option<&OtherStack>> {
        if self.is_joined {
            self.model_config()?;
        }
        Ok(self.other.as_ref())
    }

    /// Whether two roles share one parameter.
    pub(crate) fn is_one(&self, role: &str, other: &str) -> bool {
        self.plan.is_one(role, other)
    }

    /// # Errors
    /// If this is a checkpoint of two stacks of which none was chosen.
    pub(crate) fn check_chosen(&self) -> Result<()> {
        if !self.is_joined {
            return Ok(());
        }
        let model_type = self.family.model_types.first().unwrap_or(&self.family.name);
        match known(model_type, None) {
            Err(unknown) => Err(Error::input("part", unknown.reason(model_type))),
            Ok(_) => Ok(()),
        }
    }

    /// This stack and the other one of the same files as one model.
    pub(super) fn joined(mut self, mut other: Self, part: StackPart, joint: Joint) -> Result<Self> {
        self.is_joined = true;
        match other.plan.model.take() {
            Some(config) if self.plan.model.is_some() => {
                self.other = Some(OtherStack {
                    part,
                    config,
                    joint,
                });
            }
            Some(_) => {} // this stack says what is wrong
            None => {
                self.plan.model = None;
                self.plan.no_model = other.plan.no_model.take();
            }
        }
        self.plan.add(other.plan, part);
        if let Joint::Similarity { bias } = joint {
            let family = (&self.family, &self.config, "");
            let build = |vb: VarBuilder| Similarity::new(bias, vb.pp("similarity")).map(drop);
            let (sources, missing) = of_part("similarity", family, &self.files, None, build)?;
            self.plan.sources.extend(sources);
            self.plan.missing.extend(missing);
            self.plan.unite_tied();
        }
        Ok(self)
    }
}

impl Plan {
    /// Adds the plan of the other stack of the same files, whose roles then begin with its part's name.
    pub fn add(&mut self, other: Self, part: StackPart) {
        let Self {
            mut sources,
            mut missing,
            n_of_blocks,
            tied,
            ..
        } = other;
        let of_part = |role: &str| format!("{part}.{role}");
        let roles = sources.iter_mut().map(|source| &mut source.role);
        for role in roles.chain(missing.iter_mut().map(|missing| &mut missing.role)) {
            *role = of_part(role);
        }
        let renamed = tied
            .into_iter()
            .map(|(role, first)| (of_part(&role), of_part(&first)));
        self.tied.extend(renamed);
        let of_ends = sources.split_off(n_of_blocks);
        self.sources
            .splice(self.n_of_blocks..self.n_of_blocks, sources);
        self.n_of_blocks += n_of_blocks;
        self.sources.extend(of_ends);
        self.missing.extend(missing);
        self.unite_tied();

        // Each stack has the other's tensors outside of it.
        let names = |sources: &[Source]| -> HashSet<String> {
            sources.iter().map(|source| source.name.clone()).collect()
        };
        let (of_blocks, of_ends) = (names(self.of_blocks()), names(self.of_ends()));
        let is_used = |name: &String| of_blocks.contains(name) || of_ends.contains(name);
        let unknown: BTreeSet<String> = self.unused.drain(..).chain(other.unused).collect();
        self.unused = unknown.into_iter().filter(|name| !is_used(name)).collect();
        let outside: BTreeSet<String> = self.outside.drain(..).chain(other.outside).collect();
        self.ignored.extend(other.ignored);
        self.ignored.sort();
        self.ignored.dedup();
        let is_outside = |name: &String| {
            !of_blocks.contains(name) && !self.ignored.contains(name) && !self.unused.contains(name)
        };
        self.outside = outside.into_iter().filter(is_outside).collect();
    }
}
