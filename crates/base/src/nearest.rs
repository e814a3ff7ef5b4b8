//! Finds the known names most similar to a wrong one, for messages.

/// The length limit: the comparison's time grows with the product of the lengths, and a hostile file may contain names with
/// megabytes.
const MAX_CHARACTERS: usize = 1000;

/// Returns at most three `known` names that `name` continues, abbreviates or contains as a word, or that differ from `name`
/// by a typing error. No other names are suggested, because among many short names one is always similar.
pub fn near<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Vec<String> {
    let slips = (name.chars().count() / 4).max(1);
    let is_near = |known: &&str| {
        known.starts_with(name)
            || name.starts_with(known)
            || name.split(['_', '-']).any(|word| word == *known)
            // The first letter is seldom wrong: without this condition, blip would count as a typing error for clip.
            || known.chars().next() == name.chars().next() && strsim::osa_distance(name, known) <= slips
    };
    let known = known.filter(|_| !name.is_empty()).filter(is_near);
    nearest(name, known, 0.0, 3)
}

/// Returns at most `max` of the `candidates` that are most similar to `name`, nearest first, each with a normalized
/// Levenshtein similarity of at least `least`.
pub fn nearest<'a>(
    name: &str,
    candidates: impl Iterator<Item = &'a str>,
    least: f64,
    max: usize,
) -> Vec<String> {
    let length = name.chars().count();
    if length > MAX_CHARACTERS {
        return Vec::new();
    }
    let mut scored: Vec<(f64, &str)> = candidates
        .filter(|other| {
            // No pair scores above the ratio of its lengths.
            let other = other.chars().count();
            other <= MAX_CHARACTERS && length.min(other) as f64 >= least * length.max(other) as f64
        })
        .map(|other| (strsim::normalized_levenshtein(name, other), other))
        .filter(|&(score, _)| score >= least)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    scored.dedup();
    scored.truncate(max);
    scored
        .into_iter()
        .map(|(_, other)| other.to_owned())
        .collect()
}
