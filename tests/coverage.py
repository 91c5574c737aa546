#!/usr/bin/env python3
"""Which lines and branches the tests have reached: coverage.py BUILD, a build with -Db_coverage=true whose tests ran.

Prints a table by folder, then each file below a bar with its functions that nothing calls. BUILD/unreached.txt has the
lines. Exits 1 where one of FOLDERS as a whole is below a bar."""

import collections
import concurrent.futures
import glob
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = ("server", "models", "proto", "engine")
WITHOUT = ("engine/cuda/",)  # needs nvcc and a GPU
BARS = {"lines": 95, "branches": 85}


class Source:
    """What was reached of a file, by any of the objects that contain it: kernels are compiled several times, and
    functions of headers by each file that includes them."""

    def __init__(self):
        self.lines = collections.Counter()
        self.branches = {}  # line: whether each was taken
        self.functions = {}  # first line: [name, how often it was called]

    def add(self, found):
        branches = collections.defaultdict(list)
        for line in found["lines"]:
            self.lines[line["line_number"]] += line["count"]
            branches[line["line_number"]] += [branch["count"] > 0 for branch in line["branches"]]
        for line, taken in branches.items():
            known = self.branches.get(line, [])
            if len(known) == len(taken):
                taken = [a or b for a, b in zip(known, taken)]
            # Of objects that the compiler has optimised differently, the one that tells most counts.
            self.branches[line] = max(known, taken, key=lambda one: (sum(one), len(one)))
        for function in found["functions"]:
            self.functions.setdefault(function["start_line"], [function["name"], 0])[1] += function["execution_count"]

    def counts(self):
        """{bar: (reached, all)}"""
        taken = [one for line in self.branches.values() for one in line]
        return {"lines": (sum(count > 0 for count in self.lines.values()), len(self.lines)),
                "branches": (sum(taken), len(taken))}

    def unreached(self):
        lines = sorted(line for line, count in self.lines.items() if count == 0)
        partly = sorted(line for line, taken in self.branches.items() if self.lines[line] and not all(taken))
        return f"lines {ranges(lines)}; branches in {ranges(partly)}"


def ranges(lines):
    """[1, 2, 3, 7] as "1-3, 7"."""
    parts = []
    for line in lines:
        if parts and parts[-1][1] == line - 1:
            parts[-1][1] = line
        else:
            parts.append([line, line])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts) or "none"


def gcov(build, notes):
    said = subprocess.run(["gcov", "--branch-probabilities", "--json-format", "--stdout", *notes],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=build, check=True).stdout
    return [file for line in said.splitlines() for file in json.loads(line)["files"]]


def read_counters(build):
    """{path: Source} of lensd's own files."""
    notes = sorted(glob.glob(os.path.join(build, "**", "*.gcno"), recursive=True))
    parts, sources = [notes[i:i + 16] for i in range(0, len(notes), 16)], {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for files in pool.map(lambda part: gcov(build, part), parts):
            for file in files:
                path = os.path.relpath(os.path.join(build, file["file"]), ROOT)
                if path.startswith(tuple(name + "/" for name in FOLDERS)) and not path.startswith(WITHOUT):
                    sources.setdefault(path, Source()).add(file)
    return sources


def add_up(sources):
    total = {bar: [0, 0] for bar in BARS}
    for source in sources:
        for bar, pair in source.counts().items():
            total[bar] = [a + b for a, b in zip(total[bar], pair)]
    return total


def percent(pair):
    return 100 * pair[0] / pair[1] if pair[1] else 100


def is_low(counts):
    return any(percent(pair) < BARS[bar] for bar, pair in counts.items())


def row(name, counts):
    return f"| {name} | " + " | ".join(f"{pair[1]:,} | {percent(pair):.1f}" for pair in counts.values()) + " |"


def print_folders(sources):
    """Returns whether each of FOLDERS reaches the bars."""
    good = True
    print("| folder | lines | reached, % | branches | taken, % |\n|---|--:|--:|--:|--:|")
    for top in FOLDERS:
        own = {path: source for path, source in sources.items() if path.startswith(top + "/")}
        whole = add_up(own.values())
        good &= not is_low(whole)
        print(row(f"**{top}**", whole))
        for folder in sorted({os.path.dirname(path) for path in own} - {top}):
            print(row(folder, add_up(source for path, source in own.items() if os.path.dirname(path) == folder)))
    print(row("**all**", add_up(sources.values())))
    return good


def print_low(sources):
    print("\n| file | lines | reached, % | branches | taken, % | functions that no test calls |\n|---|--:|--:|--:|--:|---|")
    for path, source in sorted(sources.items()):
        counts = source.counts()
        if is_low(counts):
            idle = ", ".join(f"`{name}`" for _, (name, calls) in sorted(source.functions.items()) if calls == 0)
            print(f"{row(path, counts)} {idle} |")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    build = os.path.abspath(sys.argv[1])
    sources = read_counters(build)
    if not sources:
        sys.exit(f"coverage.py: {build} has no counters: it needs -Db_coverage=true, and tests that ran")
    good = print_folders(sources)
    print_low(sources)
    with open(os.path.join(build, "unreached.txt"), "w", encoding="utf-8") as file:
        for path, source in sorted(sources.items()):
            file.write(f"{path}: {source.unreached()}\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
