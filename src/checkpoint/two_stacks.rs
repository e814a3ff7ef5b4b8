//! Checkpoints with two stacks as one model.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use candle_nn::VarBuilder;

use crate::checkpoint::gguf;
use crate::checkpoint::keys::harmless::of_both;
use crate::checkpoint::plan::outside_blocks::StoredOutsideBlocks;
use crate::checkpoint::plan::{Plan, names, recorded};
use crate::checkpoint::scheme::builtin::{first_of_two, known};
use crate::checkpoint::scheme::{Family, StackPart};
use crate::checkpoint::{Architecture, Checkpoint, CheckpointOptions};
use crate::config::{ModelConfig, TwoStackKind};
use crate::error::{Error, Result};
use crate::layers::Similarity;

/// The second stack of a model with two stacks. [`Checkpoint::second_stack`](crate::Checkpoint::second_stack) returns it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SecondStack {
    /// The kind of this stack. The roles of its parameters begin with this name.
    pub part: StackPart,
    /// Its configuration, with embeddings, pooler and head.
    pub config: ModelConfig,
    /// How the two make one model.
    pub kind: TwoStackKind,
    /// Tied roles, and the role that owns the parameter, such as that of token embeddings which both stacks share.
    pub shared: BTreeMap<String, String>,
}

/// Returns a role's name in the whole model, for a role in the stack `part`.
pub(super) fn role_of(part: StackPart, role: &str) -> String {
    format!("{part}.{role}")
}

/// Returns role and shape of the parameters that compare two towers.
pub(super) fn similarity(kind: TwoStackKind) -> Result<Vec<(String, Vec<usize>)>> {
    match kind {
        TwoStackKind::TwoTowers { bias } => {
            recorded(|vb| Similarity::new(bias, vb.pp("similarity")).map(drop))
        }
        TwoStackKind::EncoderDecoder { .. } => Ok(vec![]),
    }
}

impl CheckpointOptions {
    /// Returns the options for the second stack, given the first one's family, and how the two make one model; `None` if
    /// only one stack was requested, or `config.json` describes no second.
    pub(super) fn second(
        self,
        family: &Family,
        config: &Path,
    ) -> Result<Option<(Self, StackPart, TwoStackKind)>> {
        let is_whole = self.whole && self.part.is_none() && self.family.is_none();
        let (true, Some((part, read))) = (is_whole, family.joined) else {
            return Ok(None);
        };
        let json = gguf::open_config(config)?;
        // A tower may have its own `model_type`.
        let model_type = json.text(&["model_type"])?.unwrap_or_default();
        if first_of_two(&model_type).is_none() {
            return Ok(None);
        }
        let options = Self {
            part: Some(part),
            ..self
        };
        Ok(Some((options, part, read(&json)?)))
    }
}

impl Architecture {
    /// Returns the second stack, if both were read ([`CheckpointOptions::whole`](crate::CheckpointOptions::whole)).
    ///
    /// # Errors
    /// The errors of [`Self::model_config`], for either stack.
    pub fn second_stack(&self) -> Result<Option<&SecondStack>> {
        self.model_config()?;
        Ok(self.second.as_ref().map(|(_, stack)| stack))
    }

    /// Returns this stack and the other one in the same `config.json` as one model.
    pub(super) fn joined(
        mut self,
        mut other: Self,
        part: StackPart,
        kind: TwoStackKind,
    ) -> Result<Self> {
        let config = match (&self.model, &other.model) {
            (Ok(_), Ok(config)) => config.clone(),
            (Err(_), _) => return Ok(self),
            (_, Err(reason)) => {
                self.model = Err(reason.clone());
                return Ok(self);
            }
        };
        let drawn = std::mem::take(&mut other.initialization);
        self.initialization =
            std::mem::take(&mut self.initialization).with_part(&part.to_string(), drawn);
        let stack = SecondStack {
            part,
            config,
            kind,
            shared: BTreeMap::new(),
        };
        self.second = Some((Box::new(other), stack));
        let shared = self.united(true, &[])?.1;
        if let Some((_, stack)) = &mut self.second {
            stack.shared = shared.into_iter().collect();
        }
        Ok(self)
    }
}

impl Checkpoint {
    /// Returns the second stack, if both were opened ([`CheckpointOptions::whole`](crate::CheckpointOptions::whole)).
    ///
    /// # Errors
    /// The errors of [`Self::model_config`], for either stack.
    pub fn second_stack(&self) -> Result<Option<&SecondStack>> {
        if self.is_joined {
            self.model_config()?;
        }
        Ok(self.other.as_ref())
    }

    /// # Errors
    /// If this is a checkpoint with two stacks and none was selected.
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

    /// Returns this stack and the other one in the same files as one model.
    pub(super) fn joined(
        mut self,
        mut other: Self,
        part: StackPart,
        kind: TwoStackKind,
    ) -> Result<Self> {
        self.is_joined = true;
        match other.plan.model.take() {
            Some(config) if self.plan.model.is_some() => {
                self.other = Some(SecondStack {
                    part,
                    config,
                    kind,
                    shared: BTreeMap::new(),
                });
            }
            Some(_) => {} // this stack's error explains the problem
            None => {
                self.plan.model = None;
                self.plan.no_model = other.plan.no_model.take();
            }
        }
        self.plan.add(other.plan, part);
        if let TwoStackKind::TwoTowers { bias } = kind {
            let places = StoredOutsideBlocks {
                family: &self.family,
                stack: &self.config,
                files: &self.files,
                prefix: "",
                names: &[],
            };
            let build = |vb: VarBuilder| Similarity::new(bias, vb.pp("similarity")).map(drop);
            let (sources, missing) = places.of_part("similarity", None, build)?;
            self.plan.sources.extend(sources);
            self.plan.missing.extend(missing);
            self.plan.unite_tied();
        }
        if self.other.is_none() {
            let unread = std::mem::take(&mut self.plan.unread); // there is no whole model
            self.plan.outside.extend(unread);
        }
        if let Some(other) = &mut self.other {
            other.shared = self.plan.tied.clone().into_iter().collect();
        }
        Ok(self)
    }
}

impl Plan {
    /// Adds the plan of the other stack in the same files, whose roles then begin with its part's name.
    pub fn add(&mut self, other: Self, part: StackPart) {
        let Self {
            mut sources,
            mut missing,
            n_in_blocks,
            tied,
            ..
        } = other;
        let in_part = |role: &str| role_of(part, role);
        let roles = sources.iter_mut().map(|source| &mut source.role);
        for role in roles.chain(missing.iter_mut().map(|missing| &mut missing.role)) {
            *role = in_part(role);
        }
        let renamed = tied
            .into_iter()
            .map(|(role, first)| (in_part(&role), in_part(&first)));
        self.tied.extend(renamed);
        let outside_blocks = sources.split_off(n_in_blocks);
        self.sources
            .splice(self.n_in_blocks..self.n_in_blocks, sources);
        self.n_in_blocks += n_in_blocks;
        self.sources.extend(outside_blocks);
        self.missing.extend(missing);
        self.unite_tied();

        // To each stack, the other's tensors are outside.
        let (in_blocks, outside_blocks) = (names(self.in_blocks()), names(self.outside_blocks()));
        let is_used = |name: &String| in_blocks.contains(name) || outside_blocks.contains(name);
        let unknown: BTreeSet<String> = self.unused.drain(..).chain(other.unused).collect();
        self.unused = unknown.into_iter().filter(|name| !is_used(name)).collect();
        let unread: BTreeSet<String> = self.unread.drain(..).chain(other.unread).collect();
        self.unread = unread.into_iter().filter(|name| !is_used(name)).collect();
        let outside: BTreeSet<String> = self.outside.drain(..).chain(other.outside).collect();
        self.unread_keys = of_both(&self.unread_keys, &other.unread_keys);
        self.unrounded = of_both(&self.unrounded, &other.unrounded);
        self.ignored.extend(other.ignored);
        self.ignored.sort();
        self.ignored.dedup();
        let is_outside = |name: &String| {
            let others = [&self.ignored, &self.unused, &self.unread];
            !in_blocks.contains(name) && !others.iter().any(|names| names.contains(name))
        };
        self.outside = outside.into_iter().filter(is_outside).collect();
    }
}
