#!/usr/bin/env python3
"""CPU microseconds that the tokenizer of a folder takes for a text of 75 words and its two special tokens, five times.

    tokens.py FOLDER [build]      FOLDER: CLIP's tokenizer.json, or its vocab.json and merges.txt

build/tests/text/encode reads, encodes and writes 20,000 texts; its user time less that for 100 texts counts.
"""

import os
import resource
import struct
import subprocess
import sys

FEW, MANY, WORDS = 100, 20000, 75
VOCABULARY = """a photo of the red car in rain near an old bridge at night with two dogs and people walking along river under
stone tower where children play football while birds fly over green hills before sunset""".split()


def user_seconds(tool, folder, count):
    """(CPU seconds, tokens of the first text)"""
    texts = (" ".join(VOCABULARY[(7 * i + k) % len(VOCABULARY)] for i in range(WORDS)).encode() for k in range(count))
    data = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    made = subprocess.run([tool, folder], input=data, capture_output=True, check=True).stdout
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, struct.unpack_from("<I", made)[0]


def main():
    folder, build = sys.argv[1], (sys.argv + ["build"])[2]
    tool = os.path.join(build, "tests", "text", "encode")
    for _ in range(5):
        few, tokens = user_seconds(tool, folder, FEW)
        many, _ = user_seconds(tool, folder, FEW + MANY)
        print(f"{tokens} tokens: {(many - few) / MANY * 1e6:.1f} us a text")


main()
