//! A GGUF file in parts called `NAME-00001-of-00003.gguf`, as llama.cpp's `llama-gguf-split` writes them.

use std::path::{Path, PathBuf};

use super::{Gguf, is_gguf};
use candle_blocks_base::{Error, Result};

/// How many missing parts a message names.
const SHOWN: usize = 4;
/// A file name's end, in small or capital letters.
const EXTENSION: &str = ".gguf";

/// Returns all parts of the file at a path in order. Returns only the path itself if its name is not a part's.
///
/// # Errors
/// [`Error::NotGguf`] if a part is missing.
pub(crate) fn parts(path: PathBuf) -> Result<Vec<PathBuf>> {
    let name = path.file_name().and_then(|name| name.to_str());
    let Some((base, _, count)) = name.and_then(numbered) else {
        return Ok(vec![path]);
    };
    let extension = name.map_or("gguf", |name| &name[name.len() - EXTENSION.len() + 1..]);
    if !is_gguf(&path) {
        return Ok(vec![path]);
    }
    let part = |no| path.with_file_name(format!("{base}-{no:05}-of-{count:05}.{extension}"));
    let all: Vec<PathBuf> = (1..=count).map(part).collect();
    let missing = |part: &&PathBuf| !part.exists();
    let missing: Vec<String> = { all.iter().filter(missing) }
        .map(|part| name_of(part))
        .collect();
    if missing.is_empty() {
        return Ok(all);
    }
    let (n, shown) = (missing.len(), &missing[..missing.len().min(SHOWN)]);
    let more = if n > SHOWN { ", .." } else { "" };
    Err(Error::NotGguf {
        reason: format!(
            "it is one of {count} parts of a split model, but {n} {} missing: {}{more}; put all \
             parts into one folder",
            if n == 1 { "is" } else { "are" },
            shown.join(", ")
        ),
        path,
    })
}

/// Returns the first path, if all paths are parts that belong to one file.
pub(crate) fn together<'p>(paths: &[&'p PathBuf]) -> Option<&'p PathBuf> {
    let of = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?;
        numbered(name).map(|(base, _, count)| (base.to_string(), count))
    };
    let (first, rest) = paths.split_first()?;
    let model = of(first)?;
    rest.iter()
        .all(|path| of(path).as_ref() == Some(&model))
        .then_some(*first)
}

/// Returns whether a file's name is that of a part after the first.
pub(crate) fn is_later_part(name: &str) -> bool {
    numbered(name).is_some_and(|(_, no, _)| no > 1)
}

/// Splits a part's name into the base name, the part's number and the count.
fn numbered(name: &str) -> Option<(&str, usize, usize)> {
    let (stem, extension) = name.split_at_checked(name.len().checked_sub(EXTENSION.len())?)?;
    let is_one = extension.eq_ignore_ascii_case(EXTENSION);
    let (rest, count) = is_one.then_some(stem)?.rsplit_once("-of-")?;
    let (base, no) = rest.rsplit_once('-')?;
    let number = |digits: &str| {
        let is_one = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_one.then(|| digits.parse::<usize>().ok()).flatten()
    };
    let (no, count) = (number(no)?, number(count)?);
    (1..=count).contains(&no).then_some((base, no, count))
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

impl Gguf {
    /// Checks that this is part `no`, counted from 0, out of `count`.
    ///
    /// # Errors
    /// [`Error::NotGguf`] if its keys disagree.
    pub(crate) fn check_part(&self, path: &Path, no: usize, count: usize) -> Result<()> {
        let key = |key: &str| self.metadata.get(key).and_then(|value| value.as_u64());
        let found = key("split.count").map_or(1, |count| count.max(1));
        let error = |reason| {
            Err(Error::NotGguf {
                path: path.to_path_buf(),
                reason,
            })
        };
        if count == 1 && found > 1 {
            let found_no = key("split.no").unwrap_or(0) + 1;
            return error(format!(
                "it is part {found_no} of {found} of a split model, but its name does not say so; \
                 name the parts NAME-{found_no:05}-of-{found:05}.gguf and so on, in one folder"
            ));
        }
        if found != count as u64 || (count > 1 && key("split.no") != Some(no as u64)) {
            return error(format!(
                "by its name it is part {} of {count}, but its keys split.no and split.count \
                 disagree; download it again",
                no + 1
            ));
        }
        Ok(())
    }

    /// Adds another part's tensors.
    pub(crate) fn append(&mut self, part: Self) {
        self.tensors.extend(part.tensors);
    }

    /// Checks that all parts together have as many tensors as their keys say.
    ///
    /// # Errors
    /// [`Error::NotGguf`] if not.
    pub(crate) fn check_count(&self, path: &Path) -> Result<()> {
        match self
            .metadata
            .get("split.tensors.count")
            .and_then(|value| value.as_u64())
        {
            Some(said) if said != self.tensors.len() as u64 => Err(Error::NotGguf {
                path: path.to_path_buf(),
                reason: format!(
                    "its parts have {} tensors, but split.tensors.count is {said}: they belong to \
                     different models; download all of them again",
                    self.tensors.len()
                ),
            }),
            _ => Ok(()),
        }
    }
}
