//! Assigns a tensor name to each parameter of a new checkpoint.
//!
//! If a role has several names, the family's name for new checkpoints is used, or else the first. If a role only exists as a
//! slice of a fused tensor, the roles in the other slices use the same tensor.

use std::collections::{HashMap, HashSet};

use candle_core::Tensor;

use crate::checkpoint::Architecture;
use crate::checkpoint::plan::outside_blocks;
use crate::checkpoint::plan::source::StoredParameter;
use crate::checkpoint::plan::tied::unite;
use crate::checkpoint::plan::{Request, candidates, count_items, parameters};
use crate::checkpoint::scheme::ModelPlace;
use crate::checkpoint::two_stacks::{role_of, similarity};
use crate::error::Result;

/// Selects the prefix of a stack's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrefixChoice {
    /// The prefix that the other tensors have: for blocks alone, or for a base model.
    AsOthers,
    /// The prefix of a base model below a head.
    BelowHead,
    /// The shortest prefix that distinguishes two stacks.
    Shortest,
}

impl Architecture {
    /// Returns tensor names for every parameter in the blocks, in the order of the layers, and for the embeddings and head
    /// if `given` contains any of their parameters. `others` determines the prefix.
    pub(crate) fn sources(
        &self,
        given: &[(String, Tensor)],
        others: &[(String, Tensor)],
    ) -> Result<Vec<StoredParameter>> {
        let mut ends = self.ends()?;
        if let Some((second, stack)) = &self.second {
            let roles = second.ends()?.into_iter();
            ends.extend(roles.map(|(role, shape)| (role_of(stack.part, &role), shape)));
        }
        let is_given = |role: &str| given.iter().any(|(known, _)| known == role);
        let is_whole = ends.iter().any(|(role, _)| is_given(role));
        Ok(self.united(is_whole, others)?.0)
    }

    /// Returns tensor names for every parameter, and a map from tied roles to the role that owns the parameter.
    pub(crate) fn united(
        &self,
        is_whole: bool,
        others: &[(String, Tensor)],
    ) -> Result<(Vec<StoredParameter>, HashMap<String, String>)> {
        let second = self.second.as_ref();
        let has_head = self.has_head() || second.is_some_and(|(second, _)| second.has_head());
        let start = match (is_whole, has_head, second) {
            (true, true, _) => PrefixChoice::BelowHead,
            (true, false, Some(_)) => PrefixChoice::Shortest,
            _ => PrefixChoice::AsOthers,
        };
        let (mut sources, mut ends) = self.of_stack(is_whole, start, others)?;
        if let Some((second, stack)) = second {
            let renamed = |source: StoredParameter| StoredParameter {
                role: role_of(stack.part, &source.role),
                ..source
            };
            let (blocks, around) = second.of_stack(is_whole, start, others)?;
            sources.extend(blocks.into_iter().map(renamed));
            ends.extend(around.into_iter().map(renamed));
        }
        let mut tied = HashMap::new();
        sources.extend(unite(ends, &mut tied));
        count_items(&mut sources);
        Ok((sources, tied))
    }

    /// Returns tensor names for this stack: its blocks, and its embeddings and heads.
    fn of_stack(
        &self,
        is_whole: bool,
        start: PrefixChoice,
        others: &[(String, Tensor)],
    ) -> Result<(Vec<StoredParameter>, Vec<StoredParameter>)> {
        let names = self.json.as_ref().map_or(&[][..], |(_, names)| names);
        let prefix = self.prefix(start, others);
        let pool = self
            .model
            .as_ref()
            .ok()
            .and_then(outside_blocks::attention_of_pooler);
        let mut places = Vec::new();
        let blocks = parameters(&self.config)?.into_iter();
        let blocks = blocks.map(|(role, shape)| (ModelPlace::of(&role), role, shape));
        let ends = if is_whole { self.ends()? } else { vec![] };
        let n_outside = ends.len();
        let ends = ends.into_iter();
        let ends = ends.map(|(role, shape)| (ModelPlace::OutsideBlocks, role, shape));
        for (place, role, shape) in blocks.chain(ends) {
            let request = Request {
                role: &role,
                shape: &shape,
                place,
                attention: pool,
            };
            let mut found = candidates(&self.table, &self.config, prefix, &request)?;
            outside_blocks::sort_by_names(&mut found, names);
            places.push(found);
        }
        // Tensors that a role must share because it has no other name.
        let forced: HashSet<String> = places
            .iter()
            .filter(|found| found.len() == 1 && found[0].features.is_some())
            .map(|found| found[0].name.clone())
            .collect();
        let chosen = |found: Vec<StoredParameter>| {
            let beside = found
                .iter()
                .position(|source| forced.contains(&source.name));
            found.into_iter().nth(beside.unwrap_or(0))
        };
        let mut sources: Vec<StoredParameter> = places.into_iter().filter_map(chosen).collect();
        for source in &sources {
            source.check_part(&self.family)?;
        }
        let ends = sources.split_off(sources.len() - n_outside);
        Ok((sources, ends))
    }

    /// Returns role and shape of every parameter outside the blocks.
    fn ends(&self) -> Result<Vec<(String, Vec<usize>)>> {
        let mut ends = match &self.model {
            Ok(model) => outside_blocks::parameters(model)?,
            Err(_) => vec![],
        };
        if let Some((_, stack)) = &self.second {
            ends.extend(similarity(stack.kind)?);
        }
        Ok(ends)
    }

    fn has_head(&self) -> bool {
        matches!(&self.model, Ok(model) if model.head.is_some())
    }

    /// Returns the prefix of the other tensors, such as `roberta.` for `roberta.embeddings…`, or of a whole model with a
    /// head. Without others, returns the base model's prefix, which is usually empty.
    fn prefix(&self, start: PrefixChoice, others: &[(String, Tensor)]) -> &str {
        let prefixes = &self.table.prefixes;
        let names = self.json.as_ref().map_or(&[][..], |(_, names)| names);
        let is_new = |prefix: &&String| names.iter().any(|n| n.starts_with(prefix.as_str()));
        let mut headed = prefixes.iter().filter(|prefix| !prefix.is_empty());
        let has_others = |prefix: &&String| {
            let has_prefix = |(name, _): &(String, Tensor)| name.starts_with(prefix.as_str());
            !prefix.is_empty() && others.iter().any(has_prefix)
        };
        let found = match start {
            PrefixChoice::BelowHead => headed.clone().find(is_new).or(headed.next()),
            PrefixChoice::Shortest => headed.min_by_key(|prefix| prefix.len()),
            PrefixChoice::AsOthers => {
                let found = prefixes.iter().find(has_others);
                let bare = prefixes.iter().find(|prefix| prefix.is_empty());
                found.or(bare).or(prefixes.first())
            }
        };
        found.map_or("", String::as_str)
    }
}
