"""How far the mean loss of a training with dropout may be from PyTorch's: as far as PyTorch's own seeds let expect."""

import math
import statistics

SEEDS = range(8)  # of PyTorch's trainings
# Student's t for as many seeds less one: 99.9 % lie within, to both sides.
STUDENT_T = 5.408


def of_mean(losses: list[float], means: list[float]) -> tuple[float, float]:
    """What the mean of the losses is off by, and may be off by. `means` are those of PyTorch's seeds; the bound is the
    interval of prediction for one more of such numbers, which one in a thousand leaves."""
    error = abs(statistics.fmean(losses) - statistics.fmean(means)) if losses else math.nan
    allowed = STUDENT_T * statistics.stdev(means) * math.sqrt(1 + 1 / len(means))
    return (math.inf if math.isnan(error) else error), allowed
