#!/usr/bin/env python3
"""Names that a reader searches for stand for one thing: no struct tag is defined in two sources of the product, and
no two of its object files define the same external function.

    check_names.py TREE BUILD    exit 0 and one line, or exit 1 and every name with its places

Sources that are compiled several times (kernels, once per instruction set) count once: their functions carry the
name of the set.
"""

import collections
import json
import os
import re
import subprocess
import sys

TAG = re.compile(r"^(?:typedef )?(?:struct|union|enum)(?: alignas\([^)]*\))? (\w+) \{", re.M)
FOLDERS = ("engine", "models", "proto", "server")
SOURCES = (".c", ".h", ".cu", ".cuh")


def tags(tree):
    """Struct, union and enum tags by name: the sources that define them."""
    places = collections.defaultdict(set)
    for folder in FOLDERS:
        for root, _, names in os.walk(os.path.join(tree, folder)):
            for name in names:
                if name.endswith(SOURCES):
                    path = os.path.join(root, name)
                    with open(path, encoding="utf-8") as file:
                        for tag in TAG.findall(file.read()):
                            places[tag].add(os.path.relpath(path, tree))
    return places


def functions(build):
    """External C functions by name: the objects that define them. A C++ name says its types itself."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        outputs = {command["output"] for command in json.load(file)}  # an earlier tree may have left others
    objects = [path for path in (os.path.join(build, output) for output in sorted(outputs)
                                 if output.split("/")[0] in FOLDERS) if os.path.exists(path)]
    places = collections.defaultdict(set)
    listing = subprocess.run(["nm", "-A", "--defined-only", "-g", *objects], capture_output=True, text=True, check=True)
    for line in listing.stdout.splitlines():
        symbol, kind, name = line.rsplit(None, 2)
        if kind == "T" and not name.startswith("_Z"):
            places[name].add(os.path.relpath(symbol.rsplit(":", 1)[0], build))
    return places


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    twice = {**{f"tag {name}": at for name, at in tags(sys.argv[1]).items() if len(at) > 1},
             **{f"function {name}": at for name, at in functions(sys.argv[2]).items() if len(at) > 1}}
    for name, places in sorted(twice.items()):
        print(f"{name} is defined in {', '.join(sorted(places))}; give each a name of its own")
    if not twice:
        print("names: every struct tag and every external function is defined once")
    return 1 if twice else 0


if __name__ == "__main__":
    sys.exit(main())
