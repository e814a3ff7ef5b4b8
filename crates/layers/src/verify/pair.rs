//! An element in our tensor, in PyTorch's, and its exact value.

/// A compared element.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    /// Its row-major index.
    pub index: usize,
    pub ours: f64,
    pub torch: f64,
    /// The twin's value if there is a twin, otherwise PyTorch's own.
    pub truth: f64,
}

impl Pair {
    /// Returns the expected value: PyTorch's own result if that is infinite or NaN, otherwise the exact value.
    pub fn target(&self) -> f64 {
        if self.torch.is_finite() {
            self.truth
        } else {
            self.torch
        }
    }

    /// Returns the distance from the target: infinite for NaN, and for an unexpected infinity.
    pub fn error(&self) -> f64 {
        let target = self.target();
        if self.ours == target || (self.ours.is_nan() && target.is_nan()) {
            return 0.0;
        }
        let distance = (self.ours - target).abs();
        if distance.is_nan() {
            f64::INFINITY
        } else {
            distance
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_infinity_and_nan_for_nan_are_right() {
        let error = |ours, torch| {
            let pair = Pair {
                index: 0,
                ours,
                torch,
                truth: 1.0,
            };
            pair.error()
        };
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        for (ours, torch) in [(inf, inf), (-inf, -inf), (nan, nan), (1.0, 7.0)] {
            assert_eq!(error(ours, torch), 0.0, "{ours} for {torch}");
        }
        let wrong = [(inf, -inf), (nan, inf), (inf, nan), (1.0, inf), (1.0, nan)];
        for (ours, torch) in wrong
            .into_iter()
            .chain([(nan, 1.0), (inf, 1.0), (-inf, 1.0)])
        {
            assert_eq!(error(ours, torch), inf, "{ours} for {torch}");
        }
    }
}
