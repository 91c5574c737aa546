"""Does a series of measurements grow? Standard library only, so that ./dev soak needs nothing else."""

import math
import statistics

# Fewer than these cannot be told from chance at Z.
FEWEST = 8
# Standard deviations: one series in 700 that only fluctuates exceeds this.
Z = 3.0


def trend(values):
    """Mann and Kendall's test as (z, growth): how many standard deviations the count of rises exceeds that of falls,
    and what the median slope (Theil, Sen) makes over the whole series. Neither follows a single high value."""
    count = len(values)
    pairs = [(values[j] - values[i], j - i) for i in range(count) for j in range(i + 1, count)]
    rises = sum((difference > 0) - (difference < 0) for difference, _ in pairs)
    ties = [values.count(value) for value in set(values)]
    variance = (count * (count - 1) * (2 * count + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    z = (rises - (rises > 0) + (rises < 0)) / math.sqrt(variance) if variance > 0 else 0.0
    slope = statistics.median(difference / steps for difference, steps in pairs)
    return z, slope * (count - 1)


def grows(values, floor):
    """A sentence if the last half of `values` grows by `floor` or more, and that is neither chance nor one step: both
    halves of it grow as well, by an eighth of `floor` or more. None if it does not."""
    half = values[len(values) // 2:]
    if len(half) < FEWEST:
        return f"{len(half)} measurements in the last half, {FEWEST} are needed"
    z, growth = trend(half)
    middle = len(half) // 2
    if z > Z and growth >= floor and min(trend(half[:middle])[1], trend(half[middle:])[1]) >= floor / 8:
        return f"grew by {growth:.4g} over the last half ({half[0]:.4g} to {half[-1]:.4g}, z = {z:.1f})"
    return None
