#!/usr/bin/env python3
"""What `./dev test` asks of Meson's tests: which ones to run, and how they ended.

    report.py select BUILD [SUITE|TEST ...]   the names of the tests, one a line; -SUITE leaves one out
    report.py targets BUILD [SUITE|TEST ...]  what has to be built for tests that are named
    report.py summary BUILD STATUS [REPORTS]  the failures' output, a line "failed: TEST: CASE: ASSERTION" for
                                              each, then "N passed, N failed, N skipped"
    report.py failures LOG                    such lines for all that the output of a ./dev verb tells

A test program that speaks TAP, or a unittest run, counts as many times as it has cases; any other
program counts once. `summary` exits 1 when something failed, when there was no result at all, when
Meson itself ended badly (STATUS) without naming a failure, or when sanitizers left files in the folder
REPORTS: Criterion shows neither their text nor always their exit status.
"""

import json
import os
import re
import subprocess
import sys

TAP_CASE = re.compile(r"^(not )?ok\b(.*)$")
TAP_SKIP = re.compile(r"#\s*skip", re.IGNORECASE)
UNITTEST_RAN = re.compile(r"^Ran (\d+) tests? in ", re.MULTILINE)
UNITTEST_COUNT = re.compile(r"(failures|errors|skipped|unexpected successes)=(\d+)")
TAIL_LINES = 60

UNITTEST_CASE = re.compile(r"^(?:FAIL|ERROR): (.+)$")
UNITTEST_RULE = re.compile(r"^(={70}|-{70})$")
EXCEPTION = re.compile(r"^[\w.]+(?:Error|Exception|Expired|Broken|Exit|Interrupt)\b.*$")
CHECK_FAILED = re.compile(r"^\S+:\d+: .*\bfailed: .*$")
PLACE = re.compile(r"^\s+\S+:\d+: ")
# Of builds, linters and Meson.
OTHER_FAILURE = re.compile(r"(^|[ :])(error|warning): |^dev: .*fail|SUMMARY: |^ *\d+/\d+ .*\b(FAIL|TIMEOUT|ERROR)\b")


def introspection(what, build):
    text = subprocess.run(["meson", "introspect", what, build], check=True, stdout=subprocess.PIPE).stdout
    return json.loads(text)


def introspect(build):
    """Meson's tests: (name, suites without the project's prefix)."""
    return [(test["name"], [suite.split(":")[-1] for suite in test["suite"]])
            for test in introspection("--tests", build)]


def select(build, wanted):
    """Names of the tests of these suites and names; without any, all but the suite slow. -NAME leaves one out."""
    tests = introspect(build)
    chosen = []
    for word in [word for word in wanted if word[:1] != "-"] or ["all"]:
        found = [name for name, suites in tests if word in suites or word == name
                 or (word == "all" and "slow" not in suites)]
        if not found and word != "all":
            every = sorted({suite for _, suites in tests for suite in suites})
            sys.exit(f"dev: there is no test or suite '{word}'. Suites: {', '.join(every)}. "
                     f"Tests: {', '.join(sorted(name for name, _ in tests))}.")
        chosen += [name for name in found if name not in chosen]
    without = {word[1:] for word in wanted if word[:1] == "-"}
    return [name for name, suites in tests if name in chosen and not without & {name, *suites}]


def targets(build, wanted):
    """What ninja has to build for tests that are named; everything (none) where none is."""
    if all(word[:1] == "-" for word in wanted):
        return []
    names, build = set(select(build, wanted)), os.path.realpath(build)
    files = {target["id"]: target["filename"] for target in introspection("--targets", build)}
    needed = []
    for test in introspection("--tests", build):
        if test["name"] in names:
            needed += [path for path in test["cmd"] if path.startswith(build + os.sep)]
            needed += [path for each in test["depends"] for path in files.get(each, [])]
    every = {path for paths in files.values() for path in paths}
    return sorted({os.path.relpath(path, build) for path in needed if path in every}) or ["build.ninja"]


def count_tap(text):
    """(passed, failed, skipped) of TAP's top-level lines; None where there are none."""
    passed = failed = skipped = 0
    for line in text.splitlines():
        case = TAP_CASE.match(line)
        if not case:
            continue
        if TAP_SKIP.search(case.group(2)):
            skipped += 1
        elif case.group(1):
            failed += 1
        else:
            passed += 1
    return (passed, failed, skipped) if passed + failed + skipped else None


def count_unittest(text):
    ran = sum(int(number) for number in UNITTEST_RAN.findall(text))
    if not ran:
        return None
    counts = {"failures": 0, "errors": 0, "skipped": 0, "unexpected successes": 0}
    for line in text.splitlines():
        if line.startswith(("OK (", "FAILED (")):
            for word, number in UNITTEST_COUNT.findall(line):
                counts[word] += int(number)
    bad = counts["failures"] + counts["errors"] + counts["unexpected successes"]
    # An error in a class's set-up is counted by unittest as an error, but not as a test that ran.
    return max(ran - bad - counts["skipped"], 0), bad, counts["skipped"]


def count(result):
    """(passed, failed, skipped) of one line of Meson's log. Meson's verdict has the last word: a
    program that failed without a failing case (a crash, a leak) is one failure more."""
    verdict = result["result"]
    stdout, stderr = result.get("stdout") or "", result.get("stderr") or ""
    passed, failed, skipped = count_tap(stdout) or count_unittest(stderr) or \
        count_unittest(stdout) or (0, 0, 0)
    if verdict in ("OK", "EXPECTEDFAIL"):
        if passed + failed + skipped == 0:
            passed = 1
    elif verdict == "SKIP":
        if skipped == 0:
            skipped = 1
    elif failed == 0:
        failed = 1
    return passed, failed, skipped


def failures(text):
    """[(case, assertion)] of what unittest, TAP programs and CHECK() of tests/unit/tap.h print."""
    found, case, why, is_tap = [], None, "", False

    def end():
        nonlocal case
        if case is not None:
            found.append((case, why))
        case = None

    for line in text.splitlines():
        heading, tap = UNITTEST_CASE.match(line), TAP_CASE.match(line)
        if heading:
            end()
            case, why, is_tap = heading.group(1), "", False
        elif tap:
            end()
            if tap.group(1) and not TAP_SKIP.search(line):
                case, why, is_tap = line[len("not ok"):].strip(" -"), "", True
        elif CHECK_FAILED.match(line):
            end()
            found.append(("", line))
        elif case is not None and is_tap and not why and PLACE.match(line):
            why = line.strip()
        elif case is not None and not is_tap and EXCEPTION.match(line):
            why = line  # the last one of a chain is the one that was raised
        elif UNITTEST_RAN.match(line):
            end()
    end()
    return found


def failed_lines(name, result):
    """A line for each case of a test that failed, or one for the test."""
    text = "\n".join((result.get(part) or "") for part in ("stdout", "stderr"))
    cases = failures(text)
    if not cases:
        last = [line for line in text.splitlines() if line.strip()][-1:]
        cases = [(f"{result['result']}, exit {result['returncode']}", *last)]
    return [f"failed: {name}: " + ": ".join(part for part in case if part)[:400] for case in cases]


def failures_of_log(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    lines = [line for line in text.splitlines() if line.startswith("failed: ")]
    lines = lines or ["failed: " + ": ".join(part for part in case if part)[:400] for case in failures(text)]
    return lines or [line for line in text.splitlines() if OTHER_FAILURE.search(line)][-40:] or text.splitlines()[-40:]


def read_log(build):
    path = os.path.join(build, "meson-logs", "testlog.json")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8", errors="replace") as file:
        return [json.loads(line) for line in file if line.strip()]


def skip_reasons(result):
    """One line for each skipped case that gives its reason."""
    lines = (result.get("stdout") or "").splitlines() + (result.get("stderr") or "").splitlines()
    return [line.strip() for line in lines if TAP_SKIP.search(line) or "skipped" in line.lower()
            and not line.startswith(("OK (", "FAILED ("))]


def print_tail(result):
    lines = [line for part in ("stdout", "stderr") for line in (result.get(part) or "").splitlines()
             if not (line.startswith("ok ") and not TAP_SKIP.search(line))]
    print(f"---- {result['name']}: {result['result']}, exit {result['returncode']} ----")
    if len(lines) > TAIL_LINES:
        print(f"(the last {TAIL_LINES} of {len(lines)} lines)")
    print("\n".join(lines[-TAIL_LINES:]))


def print_reports(folder):
    """Prints the sanitizers' reports; returns a line of failed_lines() for each."""
    failed = []
    names = sorted(os.listdir(folder)) if folder and os.path.isdir(folder) else []
    for name in names:
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
        print(f"---- sanitizer report {name} ----")
        print("\n".join(lines[:TAIL_LINES]))
        failed.append(f"failed: sanitizer report {name}: "
                      + next((line for line in lines if line.startswith("SUMMARY: ")), "".join(lines[:1]))[:400])
    return failed


def summary(build, status, reports=None):
    totals, failed = [0, 0, 0], []
    results = read_log(build)
    for result in results:
        counts = count(result)
        totals = [total + number for total, number in zip(totals, counts)]
        if counts[2]:
            reasons = sorted(set(skip_reasons(result)))
            print(f"skipped in {result['name']}: {counts[2]}"
                  + (f" ({reasons[0][:160]})" if reasons else ""))
        if counts[1]:
            print_tail(result)
            failed += failed_lines(result["name"], result)
    if status != 0 and totals[1] == 0:
        print(f"meson test ended with {status} and named no failure; see "
              f"{os.path.join(build, 'meson-logs', 'testlog.txt')}")
        totals[1] = 1
    reported = print_reports(reports)
    failed += reported
    if reported and totals[1] == 0:
        totals[1] = 1
    if not results:
        print("no test gave a result")
        totals[1] = max(totals[1], 1)
    print("".join(line + "\n" for line in failed), end="")
    print("{} passed, {} failed, {} skipped".format(*totals))
    return 1 if totals[1] else 0


def main(arguments):
    if len(arguments) >= 2 and arguments[0] in ("select", "targets"):
        print("\n".join((select if arguments[0] == "select" else targets)(arguments[1], arguments[2:])))
        return 0
    if len(arguments) == 2 and arguments[0] == "failures":
        print("\n".join(failures_of_log(arguments[1])))
        return 0
    if len(arguments) in (3, 4) and arguments[0] == "summary":
        return summary(arguments[1], int(arguments[2]), *arguments[3:])
    sys.exit(__doc__.strip())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
