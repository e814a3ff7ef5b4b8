//! Sizes among errors: the largest and the median.

/// Returns the largest non-negative value. NaN counts as infinite.
pub(super) fn largest(values: &[f64]) -> f64 {
    let rank = |&v: &f64| if v.is_nan() { f64::INFINITY } else { v };
    values.iter().map(rank).fold(0.0, f64::max)
}

/// Returns the median (the upper one for an even count), or 0 for no values.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_the_largest() {
        assert_eq!(largest(&[1.0, f64::NAN, 2.0]), f64::INFINITY);
        assert_eq!(largest(&[]), 0.0);
    }

    #[test]
    fn the_median_ignores_outliers() {
        assert_eq!(median(vec![1e9, 1.0, 3.0, 2.0, f64::INFINITY]), 3.0);
        assert_eq!(median(vec![]), 0.0);
    }
}
