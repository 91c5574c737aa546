"""A CPU quota of 1.5 cores, from a real cgroup where one can be made: threads follow it. And whose teams
forward passes run in."""

import json
import os
import re
import subprocess
import tempfile
import unittest

import harness

ROOT = "/sys/fs/cgroup"


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def own_groups():
    """[(controllers, path)] of this process; v2 has no controllers' names."""
    return [tuple(line.split(":", 2)[1:]) for line in
            harness.read("/proc/self/cgroup").decode().splitlines()]


def candidates():
    """(folder of this process's group, file name, text) for a quota of 1.5 cores."""
    for controllers, path in own_groups():
        path = path.lstrip("/")
        if controllers == "":
            yield os.path.join(ROOT, path), "cpu.max", "150000 100000"
        elif "cpu" in controllers.split(","):
            for mount in (controllers, "cpu", "cpu,cpuacct"):
                yield os.path.join(ROOT, mount, path), "cpu.cfs_quota_us", "150000"


def make_group():
    """The folder of a new group with the quota, or None."""
    for parent, name, text in candidates():
        group = os.path.join(parent, f"lensd-test-{os.getpid()}")
        try:
            os.mkdir(group)
        except OSError:
            continue
        try:
            if name == "cpu.cfs_quota_us":
                write(os.path.join(group, "cpu.cfs_period_us"), "100000")
            write(os.path.join(group, name), text)
            return group
        except OSError:
            os.rmdir(group)
    return None


class Quota(unittest.TestCase):
    def setUp(self):
        self.group = make_group()
        if not self.group:
            self.skipTest("no cgroup with a CPU quota can be made here")
        self.addCleanup(os.rmdir, self.group)

    def in_group(self, *arguments):
        """Output of a lensd that has been in the group from its first instruction."""
        procs = os.path.join(self.group, "cgroup.procs")
        command = 'echo $$ > "$0" && exec "$@"'
        return subprocess.run(["/bin/sh", "-c", command, procs, harness.BINARY, *arguments],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=harness.PATIENCE, check=True).stdout

    def test_threads_follow_the_quota(self):
        device = json.loads(self.in_group("devices", "--json"))["devices"][0]
        self.assertEqual((device["cores"], device["threads"]), (1, 1))
        everywhere = json.loads(harness.run_lensd("devices", "--json").stdout)["devices"][0]
        self.assertLessEqual(everywhere["cores"], len(os.sched_getaffinity(0)))

    def test_it_answers_under_the_quota(self):
        image = os.path.join(harness.DIGITS, "drawn", "7_canvas.png")
        self.assertIn("7", self.in_group("predict", "digits", image))


class Affinity(unittest.TestCase):
    def test_threads_follow_the_affinity_mask(self):
        cpu = min(os.sched_getaffinity(0))
        done = subprocess.run([harness.BINARY, "devices", "--json"], stdout=subprocess.PIPE, text=True,
                              timeout=harness.PATIENCE, check=True,
                              preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
        device = json.loads(done.stdout)["devices"][0]
        self.assertEqual((device["cores"], device["threads"]), (1, 1))


if __name__ == "__main__":
    unittest.main()
