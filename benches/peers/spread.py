"""The allowed distance of a training's mean loss with dropout from PyTorch's, derived from PyTorch's own seeds."""

import math
import statistics

SEEDS = range(8)  # for PyTorch's trainings
# Student's t for one degree of freedom less than seeds: 99.9 % lie within, two-sided.
STUDENT_T = 5.408


def of_mean(losses: list[float], means: list[float]) -> tuple[float, float]:
    """Returns the error of the losses' mean, and the allowed error. `means` are the means for PyTorch's seeds. The
    bound is the prediction interval for one more sample, which one in a thousand exceeds."""
    error = abs(statistics.fmean(losses) - statistics.fmean(means)) if losses else math.nan
    allowed = STUDENT_T * statistics.stdev(means) * math.sqrt(1 + 1 / len(means))
    return (math.inf if math.isnan(error) else error), allowed
