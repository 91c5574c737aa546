#!/usr/bin/env python3
"""That ./dev soak would find a leak, and would not find one where there is none."""

import collections
import os
import random
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

import drift  # noqa: E402
import soak  # noqa: E402

MIB = 2**20


class Drift(unittest.TestCase):
    def noisy(self, seed, count=40, slope=0.0, noise=2 * MIB):
        generator = random.Random(seed)
        return [200 * MIB + i * slope + generator.gauss(0, noise) for i in range(count)]

    def test_a_planted_leak_is_found(self):
        """1 MiB a lap under noise of 2 MiB: 19 over the last half."""
        for seed in range(20):
            self.assertRegex(drift.grows(self.noisy(seed, slope=MIB), 8 * MIB) or "", "^grew by")

    def test_one_descriptor_in_three_laps_is_found(self):
        self.assertRegex(drift.grows([14 + i // 3 for i in range(20)], 1) or "", "^grew by")

    def test_noise_is_no_leak(self):
        for seed in range(50):
            self.assertIsNone(drift.grows(self.noisy(seed), 8 * MIB))

    def test_what_settles_is_no_leak(self):
        warm_up = [100 * MIB + min(i, 20) * 8 * MIB for i in range(40)]
        self.assertIsNone(drift.grows(warm_up, 8 * MIB))

    def test_one_step_is_no_leak(self):
        """An allocator that keeps 12 MiB more from some lap on."""
        for at in range(60, 120, 3):
            values = [value + 12 * MIB * (i >= at) for i, value in enumerate(self.noisy(at, 120, noise=0.1 * MIB))]
            self.assertIsNone(drift.grows(values, 8 * MIB), at)

    def test_one_high_value_is_no_leak(self):
        for at in (20, 30, 39):
            values = [200.0 * MIB] * 40
            values[at] += 500 * MIB
            self.assertIsNone(drift.grows(values, 8 * MIB))

    def test_a_leak_below_the_floor_is_not_reported(self):
        self.assertIsNone(drift.grows(self.noisy(1, slope=0.1 * MIB, noise=0.01 * MIB), 8 * MIB))

    def test_too_few_are_said(self):
        self.assertIn("are needed", drift.grows([1.0] * 10, 1))


class Counters(unittest.TestCase):
    def test_equal(self):
        seen = collections.Counter({"200": 3, "503": 1})
        self.assertEqual(soak.differences("requests", seen, {"200": 3.0, "503": 1.0, "404": 0.0}), [])

    def test_one_request_less_or_more(self):
        seen = collections.Counter({"200": 3})
        for counted in ({"200": 2.0}, {"200": 4.0}, {"200": 3.0, "408": 1.0}, {}):
            self.assertEqual(len(soak.differences("requests", seen, counted)), 1, counted)


class Verdict(unittest.TestCase):
    def test_each_gauge_is_judged(self):
        flat = {"rss": [100.0 * MIB] * 20, "fds": [14.0] * 20, "threads": [9.0] * 20}
        self.assertEqual(soak.leaks(flat), [])
        for name, step in (("rss", 2.0 * MIB), ("fds", 1.0), ("threads", 1.0)):
            leaky = {**flat, name: [flat[name][0] + i * step for i in range(20)]}
            (found,) = soak.leaks(leaky)
            self.assertTrue(found.startswith(f"{name} grew by"), found)


if __name__ == "__main__":
    unittest.main()
