#!/usr/bin/python3
"""No circles: neither among the object files of the product nor among its folders.

    check_circles.py BUILD [TREE]    exit 0 and one line, or exit 1 and every circle, with a shortest path around it

BUILD is a Meson build folder that has been built, TREE its sources (default: the tree of this script). The object
files say who uses whom: nm lists the symbols that each one defines and needs. A source that is compiled several
times, once per instruction set, counts as one file. A folder is the sources directly in it. Tests are left out.
Exit 77: the objects hold no machine code (link-time optimisation).
"""

import collections
import json
import os
import subprocess
import sys


def objects_of(build, tree):
    """Maps each object to its source, for sources outside of tests/. Generated sources are named within BUILD."""
    sources = {}
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        commands = json.load(file)
    for command in commands:
        source = os.path.realpath(os.path.join(command["directory"], command["file"]))
        source = os.path.relpath(source, build if source.startswith(build + os.sep) else tree)
        path = os.path.join(command["directory"], command["output"])
        # A test may compile what the product does not on this machine (engine/cuda without a CUDA toolkit).
        if source.startswith("tests/") or (command["output"].startswith("tests/") and not os.path.exists(path)):
            continue
        sources[path] = source
    return sources


def symbols_of(objects):
    """Yields (object, symbol, whether the object needs it) for every external symbol."""
    listing = subprocess.run(["nm", "--portability", "--extern-only", *objects], stdout=subprocess.PIPE, check=True,
                             text=True).stdout
    path = objects[0]
    for line in listing.splitlines():
        if line.endswith(":"):
            path = line[:-1]
        elif line:
            symbol, kind = line.split()[:2]
            yield path, symbol, kind in "Uvw"


def uses(sources):
    """Edges of the files: edges[user][used] is the symbols that `user` needs and `used` defines."""
    makers, needs = collections.defaultdict(set), collections.defaultdict(set)
    for path, symbol, is_needed in symbols_of(list(sources)):
        if symbol.startswith("__gnu_lto"):
            print(f"skipped: {path} holds no machine code, build without link-time optimisation")
            sys.exit(77)
        if is_needed:
            needs[sources[path]].add(symbol)
        else:
            makers[symbol].add(sources[path])
    edges = {source: collections.defaultdict(set) for source in sources.values()}
    for source, needed in needs.items():
        for symbol in needed:
            definers = makers.get(symbol, set())
            # Two programs may each define a symbol of the same name: a file uses the one of its own folder.
            near = {maker for maker in definers if os.path.dirname(maker) == os.path.dirname(source)}
            for maker in (near or definers) - {source}:
                edges[source][maker].add(symbol)
    return edges


def folders(edges):
    """The same among folders; an edge says "user.c uses used.c" for one pair of its files."""
    merged = collections.defaultdict(lambda: collections.defaultdict(set))
    for user, used in edges.items():
        for source, symbols in used.items():
            a, b = os.path.dirname(user), os.path.dirname(source)
            if a != b:
                merged[a][b].add(f"{user} needs {min(symbols)} of {source}")
    return merged


def circles(edges):
    """Strongly connected components of more than one member, by Tarjan's algorithm, largest first."""
    number, lowest, stack, found = {}, {}, [], []

    def visit(node):
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for used in edges.get(node, ()):
            if used not in number:
                visit(used)
                lowest[node] = min(lowest[node], lowest[used])
            elif used in stack:
                lowest[node] = min(lowest[node], number[used])
        if lowest[node] == number[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    sys.setrecursionlimit(10000)
    for node in sorted(edges):
        if node not in number:
            visit(node)
    return sorted(found, key=len, reverse=True)


def shortest_way(edges, members):
    """A shortest path around a circle: [a, b, …, a]."""
    best = None
    for start in members:
        ways, seen = collections.deque([[start]]), set()
        while ways:
            way = ways.popleft()
            for used in sorted(edges.get(way[-1], ())):
                if used == start and (best is None or len(way) + 1 < len(best)):
                    best = way + [start]
                if used in members and used not in seen:
                    seen.add(used)
                    ways.append(way + [used])
    return best


def report(kind, edges):
    """Prints every circle; returns how many there are."""
    found = circles(edges)
    for members in found:
        print(f"a circle of {len(members)} {kind}: {' '.join(members)}")
        way = shortest_way(edges, members)
        for user, used in zip(way, way[1:]):
            print(f"    {user} -> {used}: {min(edges[user][used])}")
    return len(found)


def main():
    build = os.path.realpath(sys.argv[1])
    tree = os.path.realpath(sys.argv[2] if len(sys.argv) > 2 else os.path.join(os.path.dirname(__file__), ".."))
    sources = objects_of(build, tree)
    for path in sources:
        if not os.path.exists(path):
            sys.exit(f"{path} is missing; build everything first")
    edges = uses(sources)
    if report("files", edges) + report("folders", folders(edges)):
        print("Move what both sides use into a file below both, or pass the lower side a pointer to what it calls.")
        return 1
    print(f"circles: none among {len(edges)} files and {len(set(map(os.path.dirname, edges)))} folders")
    return 0


if __name__ == "__main__":
    sys.exit(main())
