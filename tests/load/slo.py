"""The highest rate that meets an objective such as "50ms@p99", found by asking at one rate after the
other."""

import re

from generators import name_of

PRECISION = 1.04  # neighbours this near are one answer
PROBES = 14
ROOM = 1.6  # how far above the first rate that holds the search may go at a time


class Objective:
    """At most `limit_ms` at quantile `share`; a request that fails has missed it."""

    def __init__(self, text):
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)@p(\d+(?:\.\d+)?)", text)
        if not found:
            raise ValueError(f"'{text}' is not of the form 50ms@p99")
        self.limit_ms = float(found.group(1)) * {"us": 1e-3, "ms": 1, "s": 1e3}[found.group(2)]
        self.share = float(found.group(3)) / 100
        if not 0 < self.share < 1 or self.limit_ms <= 0:
            raise ValueError(f"'{text}': the time is above 0 and the percentile between 0 and 100")

    def __str__(self):
        return f"{self.limit_ms:g} ms at {name_of(self.share)}"

    def value(self, result):
        """What the objective looks at: ms, or None when failures alone are too many."""
        return result.counting_failures(self.share)

    def met(self, result):
        value = self.value(result)
        return value is not None and value <= self.limit_ms

    def samples(self):
        """Requests from which this quantile can be told: ten beyond it."""
        return 10 / (1 - self.share)


def search(objective, first, run, confirm, out_of_time):
    """run(rate) and confirm(rate) give results. Returns (the result that holds or None, every result).

    Doubles or halves its way to a rate that holds beside one that does not, then goes between them;
    the last word has a longer run, as one short run may have been lucky.
    """
    low, high, best, results = None, None, None, []
    rate = first
    while len(results) < PROBES and not out_of_time():
        result = run(rate)
        results.append(result)
        if objective.met(result):
            low, best = rate, result
        else:
            high = rate
        if low is None:
            if high < first / 512:
                return None, results
            rate = high / 2
        elif high is None:
            rate = low * ROOM
        elif high / low <= PRECISION:
            break
        else:
            rate = (low * high) ** 0.5
    for _ in range(4):
        if best is None or out_of_time():
            break
        result = confirm(low)
        results.append(result)
        if objective.met(result):
            return result, results
        low, best = low / PRECISION, None if low / PRECISION < first / 512 else best
    # Out of time or of attempts: what was met once, if it still stands.
    return next((r for r in reversed(results) if objective.met(r)
                 and not any(not objective.met(o) and o.asked <= r.asked for o in results)), None), results
