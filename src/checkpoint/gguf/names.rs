//! GGUF's tensor names and transformers', and the steps that llama.cpp's converter took.

pub(super) mod value_heads;

use serde_json::Value;

use super::ConversionStep;
use super::architecture::{Architecture, Step};

impl Architecture {
    /// Returns transformers' name for a tensor; it has `{e}` where the tensor stacks experts.
    pub fn translated(&self, name: &str) -> Option<String> {
        let (module, parameter) = match self.is_named_whole(name) {
            true => (name, ""),
            false => parts_of(name),
        };
        let (pattern, number) = pattern_of(module);
        let translated = match pattern.strip_prefix("blk.{i}.") {
            Some(local) => format!("{}{}", self.blocks, self.modules.get(local)?),
            None => self.ends.get(&pattern)?.to_string(),
        };
        let translated = translated.replace("{i}", number.unwrap_or_default());
        let bare = translated.strip_prefix("model.").filter(|_| self.is_bare);
        let translated = bare.unwrap_or(&translated);
        Some(match translated.strip_suffix('!') {
            Some(whole) => whole.to_string(),
            None => format!("{translated}.{parameter}"),
        })
    }

    /// Returns whether the table has a tensor's whole name, with its parameter.
    pub fn is_named_whole(&self, name: &str) -> bool {
        let (pattern, _) = pattern_of(name);
        let local = pattern.strip_prefix("blk.{i}.");
        local.is_some_and(|local| local.contains('.') && self.modules.get(local).is_some())
    }

    /// Returns the GGUF name for a tensor in transformers, and its expert's index in a stack. Names may lack the base
    /// model's prefix, or have one where the table has none.
    pub fn original(&self, name: &str) -> Option<(String, Option<usize>)> {
        let (module, parameter) = name.rsplit_once('.')?;
        let without_prefix = module.split_once('.').map_or(module, |(_, rest)| rest);
        let with_prefix = format!("model.{module}");
        let blocks = self.modules.iter().map(|(known, translated)| {
            let translated = format!("{}{translated}", self.blocks);
            (format!("blk.{{i}}.{known}"), translated)
        });
        let ends = self.ends.iter();
        let ends = ends.map(|(known, translated)| (known.to_string(), translated.to_string()));
        blocks.chain(ends).find_map(|(known, translated)| {
            let [block, expert] = [module, without_prefix, &with_prefix]
                .into_iter()
                .find_map(|module| numbers(&translated, module))?;
            let known = match block {
                Some(block) => known.replace("{i}", &block.to_string()),
                None => known,
            };
            Some((format!("{known}.{parameter}"), expert))
        })
    }

    /// Returns whether a tensor with this name is not read: its module is dropped, or its block has this number or a later one.
    pub fn leaves_out(&self, name: &str, first_unused: u64) -> bool {
        let (module, _) = parts_of(name);
        match module
            .strip_prefix("blk.")
            .and_then(|rest| rest.split_once('.'))
        {
            Some((block, local)) => {
                let is_unused = block
                    .parse::<u64>()
                    .is_ok_and(|block| block >= first_unused);
                is_unused || self.dropped.contains(&local)
            }
            None => self.dropped.contains(&module),
        }
    }

    /// Returns the step that is undone as a tensor with this name is read.
    pub fn step(&self, config: &Value, name: &str) -> ConversionStep {
        let size = |key: &str| config.get(key).and_then(Value::as_u64).unwrap_or(1) as usize;
        let (n_heads, n_kv_heads) = (size("num_attention_heads"), size("num_key_value_heads"));
        let module = local(name);
        let is_meant = |pattern: &str| match pattern.strip_prefix('*') {
            Some(ending) => module.ends_with(ending),
            None => module == pattern,
        };
        let found = self.steps.iter().find(|(pattern, _)| is_meant(pattern));
        match found.map(|(_, step)| *step) {
            Some(Step::QueryPairs) => ConversionStep::Unpermute(n_heads, n_heads),
            Some(Step::KeyPairs) => ConversionStep::Unpermute(n_kv_heads, n_kv_heads),
            // Values are not turned.
            Some(Step::FusedPairs) => {
                ConversionStep::Unpermute(n_heads + 2 * n_kv_heads, n_heads + n_kv_heads)
            }
            Some(Step::LessOne) if name.ends_with(".weight") => ConversionStep::LessOne,
            Some(Step::OneRow) => ConversionStep::OneRow,
            Some(Step::Channels) => ConversionStep::Channels,
            Some(Step::Vector) => ConversionStep::Vector,
            Some(Step::NegatedExponential) => ConversionStep::NegatedExponential,
            Some(Step::NegatedExponentials) => ConversionStep::NegatedExponentials,
            _ => ConversionStep::None,
        }
    }
}

/// Returns a tensor's module and parameter. The parameter is empty for a tensor that is named as its module.
fn parts_of(name: &str) -> (&str, &str) {
    let is_block = |stem: &str| {
        let number = stem.strip_prefix("blk.");
        number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    match name.rsplit_once('.') {
        Some((block, _)) if is_block(block) => (name, ""),
        Some(parts) => parts,
        None => (name, ""),
    }
}

/// Returns the last part of a tensor's module.
pub(super) fn local(name: &str) -> &str {
    let (module, _) = parts_of(name);
    module.rsplit('.').next().unwrap_or(module)
}

/// Returns a module's name with `{i}` for its block's number, and that number.
fn pattern_of(module: &str) -> (String, Option<&str>) {
    let is_number =
        |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let number = module.split('.').find(is_number);
    let parts = module.split('.');
    let parts = parts.map(|part| if Some(part) == number { "{i}" } else { part });
    (parts.collect::<Vec<_>>().join("."), number)
}

/// Returns the indices that stand for `{i}` and `{e}` in a pattern.
fn numbers(pattern: &str, name: &str) -> Option<[Option<usize>; 2]> {
    let mut found = [None, None];
    let mut parts = name.split('.');
    for expected in pattern.split('.') {
        let part = parts.next()?;
        match expected {
            "{i}" => found[0] = Some(part.parse().ok()?),
            "{e}" => found[1] = Some(part.parse().ok()?),
            _ if expected != part => return None,
            _ => {}
        }
    }
    parts.next().is_none().then_some(found)
}
