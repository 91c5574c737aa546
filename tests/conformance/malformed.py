#!/usr/bin/env python3
"""Runs a checker over models that lie and compares with what EXPECT.tsv says of each.

    malformed.py CHECKER… -- CORPUS [--no-limits] [--sentences]

CHECKER is a command that takes a file and exits 0 (taken) or 1 to 123 (refused). Every file gets
10 seconds of CPU time, 8 MiB of stack and, unless --no-limits (AddressSanitizer reserves terabytes), 8 GiB of
address space. A signal, a timeout, a refusal without a sentence are failures whatever was expected.
With --sentences so is one that does not say where, and what to do; of an operator also what was
expected.
"shared:X" is X in the folder of test data beside the repository. Exit 77 where the corpus is absent.
"""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

SECONDS = 10    # of CPU time, which other processes do not lengthen
PATIENCE = 600  # for a checker that waits
STACK = 8 << 20
MEMORY = 8 << 30


def scratch_copy(corpus, folder):
    """The corpus with the links that cannot be stored in it."""
    copy = os.path.join(folder, "malformed")
    shutil.copytree(corpus, copy, copy_function=shutil.copyfile)
    for root, folders, files in os.walk(copy):
        for name in folders:
            os.chmod(os.path.join(root, name), 0o755)
    os.chmod(copy, 0o755)
    with open(os.path.join(copy, "outside.bin"), "wb") as file:
        file.write(bytes(64))
    ext = os.path.join(copy, "ext")
    for name, target in (("link.bin", "../outside.bin"), ("uplink", "..")):
        path = os.path.join(ext, name)
        if os.path.lexists(path):
            os.remove(path)
        os.symlink(target, path)
    source, hard = os.path.join(ext, "hard_src.bin"), os.path.join(ext, "hard.bin")
    if os.path.exists(source):
        if os.path.lexists(hard):
            os.remove(hard)
        os.link(source, hard)
    return copy


def limit(no_limits):
    def apply():
        resource.setrlimit(resource.RLIMIT_STACK, (STACK, STACK))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        if not no_limits:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    return apply


PLACES = re.compile(r"(\bnode |\binitializer |\binput |\boutput |\bfunction |\bopset |\bbyte \d|\bthe graph\b|"
                    r"\bthe name |\bIR version|\bno graph|\bthe model\b|\bthe file\b|\ban initializer|"
                    r"not an ONNX file|[A-Z]\w+ '[^']*' \(.*opset \d+\))")
ADVICE = re.compile(r"[;:] [^;]*\b(export|re-export|copy|put|run|download|convert|unpack|name)\b[^;]*$")
OPERATOR = re.compile(r"([A-Z]\w+ '[^']*' \(.*opset \d+\)|node '[^']*' \(\w+\))")
EXPECTED = re.compile(r"(expected|need|must|required|missing|more than|at most|out of range|cannot be|has only|but the|"
                      r"which does not|lensd has|reads? but|have \d)")


def vague(name, text):
    """What a refusal lacks, or None."""
    said = [line for line in text.strip().splitlines() if line.startswith(("lensd: ", "lensd cannot run"))]
    if len(said) != 1:
        return f"{len(said)} sentences instead of one"
    if not PLACES.search(said[0]):
        return "it does not say where"
    if not ADVICE.search(said[0]):
        return "it does not say what to do"
    if name.startswith(("op_", "loop_", "if_")) and not OPERATOR.search(said[0]):
        return "it does not name the node and its operator"
    if name.startswith(("op_", "loop_", "if_")) and not EXPECTED.search(said[0]):
        return "it does not say what was expected"
    return None


def judge(expect, code, text):
    """None when the outcome is allowed, else what is wrong with it."""
    if code is None or code == -signal.SIGXCPU:
        return f"took more than {SECONDS} s of CPU time, or waited for {PATIENCE} s"
    if code < 0 or code > 123:
        return f"ended by a signal or sanitizer (exit {code})"
    if code and len(text.strip()) < 20:
        return "refused without saying why"
    if expect == "reject" and code == 0:
        return "taken, but must be refused"
    if expect == "accept" and code != 0:
        return f"refused, but must be taken: {text.strip()}"
    return None


def main():
    arguments = sys.argv[1:]
    no_limits = "--no-limits" in arguments
    sentences = "--sentences" in arguments
    arguments = [a for a in arguments if a not in ("--no-limits", "--sentences")]
    if "--" not in arguments:
        print(__doc__)
        return 2
    split = arguments.index("--")
    checker, corpus = arguments[:split], arguments[split + 1]
    if corpus.startswith("shared:"):
        beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../shared")
        corpus = os.path.join(os.environ.get("LENSD_SHARED", beside), corpus[len("shared:"):])
    if not os.path.isfile(os.path.join(corpus, "EXPECT.tsv")):
        print(f"skipped: there is no {corpus}/EXPECT.tsv")
        return 77
    wrong = right = 0
    with tempfile.TemporaryDirectory(prefix="lensd_malformed_") as folder:
        copy = scratch_copy(corpus, folder)
        with open(os.path.join(copy, "EXPECT.tsv"), encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t") for line in file][1:]
        for name, expect, *_ in rows:
            try:
                done = subprocess.run(checker + [os.path.join(copy, name)], timeout=PATIENCE,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      preexec_fn=limit(no_limits))
                code, text = done.returncode, done.stdout.decode("utf-8", "replace")
            except subprocess.TimeoutExpired:
                code, text = None, ""
            problem = judge(expect, code, text) or (vague(name, text) if sentences and code else None)
            if problem:
                wrong += 1
                print(f"FAIL {name} ({expect}): {problem}\n{text[-2000:]}")
            else:
                right += 1
    print(f"{right} as expected, {wrong} not")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
