//! Sizes in transformers' configuration classes. `python weights/export.py default-configs` writes the list.

/// Returns the sizes that a section may leave out: transformers only writes those that differ from the class's defaults.
pub(super) fn class_sizes(model_type: &str) -> impl Iterator<Item = (&'static str, u64)> {
    let mut lines = include_str!("class_sizes.txt").lines();
    let of_type = lines.find_map(|line| {
        let (name, sizes) = line.split_once(' ')?;
        (name == model_type).then_some(sizes)
    });
    let sizes = of_type.unwrap_or_default().split_whitespace();
    sizes.filter_map(|size| {
        let (key, size) = size.split_once('=')?;
        Some((key, size.parse().ok()?))
    })
}
