#!/usr/bin/python3
"""check_circles.py finds circles among objects and among folders, and accepts a tree without any."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

CHECK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "check_circles.py")


def source(defines, *uses):
    """A C file that defines one function, which calls others."""
    return "".join(f"void {use}(void);\n" for use in uses) + \
        f"void {defines}(void);\nvoid {defines}(void) {{ " + "".join(f"{use}(); " for use in uses) + "}\n"


class CheckCircles(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.tree = scratch.name
        self.build = os.path.join(self.tree, "build")
        os.mkdir(self.build)
        self.commands = []

    def compile(self, path, text, *flags):
        os.makedirs(os.path.join(self.tree, os.path.dirname(path)), exist_ok=True)
        with open(os.path.join(self.tree, path), "w", encoding="utf-8") as file:
            file.write(text)
        # As Meson names objects: a flat file in its target's folder.
        output = f"{len(self.commands)}_{path.replace('/', '_')}.o"
        subprocess.run(["cc", "-c", *flags, "-o", os.path.join(self.build, output), os.path.join(self.tree, path)],
                       check=True)
        self.commands.append({"directory": self.build, "file": os.path.join("..", path), "output": output})

    def check(self):
        with open(os.path.join(self.build, "compile_commands.json"), "w", encoding="utf-8") as file:
            json.dump(self.commands, file)
        return subprocess.run([sys.executable, CHECK, self.build, self.tree], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60)

    def test_downhill(self):
        self.compile("top/a.c", source("a", "b", "c"))
        self.compile("low/b.c", source("b", "c", "abort"))
        self.compile("low/c.c", source("c"))
        checked = self.check()
        self.assertEqual(checked.stdout, "circles: none among 3 files and 2 folders\n")
        self.assertEqual(checked.returncode, 0)

    def test_files(self):
        self.compile("low/a.c", source("a", "b"))
        self.compile("low/b.c", source("b", "c"))
        self.compile("low/c.c", source("c", "a"))
        self.compile("low/d.c", source("d", "a"))
        checked = self.check()
        self.assertIn("a circle of 3 files: low/a.c low/b.c low/c.c\n", checked.stdout)
        self.assertIn("    low/a.c -> low/b.c: b\n    low/b.c -> low/c.c: c\n    low/c.c -> low/a.c: a\n",
                      checked.stdout)
        self.assertEqual(checked.returncode, 1)

    def test_folders(self):
        self.compile("x/a.c", source("a", "b"))
        self.compile("y/b.c", source("b"))
        self.compile("y/c.c", source("c", "d"))
        self.compile("x/d.c", source("d"))
        checked = self.check()
        self.assertNotIn("files", checked.stdout)
        self.assertIn("a circle of 2 folders: x y\n", checked.stdout)
        self.assertIn("x -> y: x/a.c needs b of y/b.c\n", checked.stdout)
        self.assertEqual(checked.returncode, 1)

    def test_a_source_compiled_twice_is_one_file(self):
        self.compile("low/a.c", source("NAME", "b"), "-DNAME=a_one")
        self.compile("low/a.c", source("NAME"), "-DNAME=a_two")
        self.compile("low/b.c", source("b", "a_two"))
        checked = self.check()
        self.assertIn("a circle of 2 files: low/a.c low/b.c\n", checked.stdout)
        self.assertEqual(checked.returncode, 1)

    def test_tests_are_left_out(self):
        self.compile("tests/a.c", source("a", "b"))
        self.compile("tests/b.c", source("b", "a"))
        self.compile("low/c.c", source("c"))
        self.assertEqual(self.check().returncode, 0)

    def test_a_missing_object_is_an_error(self):
        self.compile("low/a.c", source("a"))
        os.remove(os.path.join(self.build, self.commands[0]["output"]))
        checked = self.check()
        self.assertIn("is missing; build everything first", checked.stderr)
        self.assertEqual(checked.returncode, 1)


if __name__ == "__main__":
    unittest.main()
