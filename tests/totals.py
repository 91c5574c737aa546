"""Runs a unittest program and ends it with the line that ./dev adds up: N passed, N failed, N skipped."""

import sys
import unittest


def main(reason=None):
    """`reason`: a sentence why nothing can be run on this machine, or None."""
    if reason:
        print(f"skipped: {reason}", file=sys.stderr)
        print("0 passed, 0 failed, 1 skipped")
        sys.exit(0)
    result = unittest.main(module="__main__", exit=False, verbosity=2).result
    failed = len(result.failures) + len(result.errors)
    skipped = len(result.skipped)
    for test, why in result.skipped:
        print(f"skipped: {test}: {why}", file=sys.stderr)
    print(f"{max(0, result.testsRun - failed - skipped)} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 0)
