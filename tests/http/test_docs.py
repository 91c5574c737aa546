"""What docs/operations.md and SECURITY.md say of options and variables is what the program says of itself."""

import json
import os
import re
import subprocess
import unittest

import helptext
from harness import ROOT, read

SECURITY = os.path.join(ROOT, "SECURITY.md")
PAGES = [os.path.join(ROOT, "docs", "operations.md"), SECURITY]
# Of programs that the pages call.
FOREIGN = {"data", "data-binary", "compressed", "cacert", "unix-socket", "system", "group", "enable", "now", "help", "cpus", "cpuset-cpus", "name", "rm", "version"}


def options_of(command):
    """{name: (value or None, default or None)}"""
    return {option.name: (option.value, option.default) for option in helptext.command(command).options}


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.options = {}
        for command, _ in helptext.commands():
            cls.options.update(options_of(command))
        cls.serve = options_of("serve")

    def test_help_was_understood(self):
        self.assertIn("serve", [name for name, _ in helptext.commands()])
        self.assertEqual(self.serve["port"], ("N", "8080"))
        self.assertEqual(self.serve["log-format"], ("text|json|auto", "text"))
        self.assertEqual(self.serve["check"], (None, None))
        self.assertGreater(len(self.serve), 40)

    def test_dev_explains_its_verbs(self):
        for verb in ("build", "test", "families", "distros"):
            with self.subTest(verb=verb):
                answer = subprocess.run([os.path.join(ROOT, "dev"), verb, "--help"], capture_output=True, text=True, timeout=60)
                self.assertEqual((answer.returncode, answer.stderr), (0, ""))
                self.assertIn(f"  {verb} ", answer.stdout)

    def test_every_option_that_a_page_names_is_there(self):
        for page in PAGES:
            text = read(page).decode()
            # In `code`, and in indented lines that call lensd.
            code = " ".join(re.findall(r"`([^`]+)`", text) +
                            [line for line in text.splitlines() if re.match(r"    (\$ )?(\./dev run|.*lensd |--)", line)])
            for name in re.findall(r"(?<![\w-])--([a-z][a-z0-9-]+)", code):
                with self.subTest(page=os.path.relpath(page, ROOT), option=name):
                    self.assertTrue(name in self.options or name in FOREIGN, f"there is no --{name}")

    def test_every_option_of_access_and_lifecycle_is_explained(self):
        text = read(os.path.join(ROOT, "docs", "operations.md")).decode()
        for name in ("api-keys", "admin-key-file", "protect-health", "cors-origin", "allowed-hosts", "trusted-proxies",
                     "proxy-protocol", "admin-port", "tls-cert", "tls-key", "unix",
                     "unix-mode", "user", "pid-file", "core-dumps", "check", "log-format", "log-level", "grace",
                     "drain-delay", "max-inflate-ratio", "max-body", "header-timeout", "body-timeout", "idle-timeout",
                     "max-header", "max-connections", "max-connections-per-address", "max-upload-memory"):
            with self.subTest(option=name):
                self.assertIn(name, self.serve)
                self.assertIn(f"--{name}", text)

    def test_limits_and_their_defaults(self):
        """SECURITY.md has a row for each limit."""
        rows = dict(re.findall(r"(?m)^\| `--([a-z-]+)` \| (\w+) \|", read(SECURITY).decode()))
        for name, default in rows.items():
            with self.subTest(option=name):
                self.assertEqual(self.serve[name][1], default)
        limits = {name for name in self.serve if re.match(r"max-(?!batch|detections)|(header|body|answer|idle)-timeout", name)}
        self.assertEqual(limits - set(rows), set())

    def test_the_tests_that_security_names_exist(self):
        """Each published vulnerability names the test that tries it, each test of test_published.py is named."""
        text = read(SECURITY).decode()
        table = text[text.index("| published |"):]
        tested = re.findall(r"`(\w+)`: `(\w+)`(?:, `(\w+)`)?", table)
        self.assertGreater(len(tested), 8)
        for suite, *tests in tested:
            source = read(os.path.join(ROOT, "tests", "http", f"test_{suite}.py")).decode()
            for name in filter(None, tests):
                with self.subTest(test=name):
                    self.assertRegex(source, rf"(def|class) {name}\(")
        for path, name in re.findall(r"`(?:tests/unit/models/)?(test_\w+\.c)`: `(\w+)`", table):
            self.assertIn(f", {name}", read(os.path.join(ROOT, "tests", "unit", "models", path)).decode())
        published = read(os.path.join(ROOT, "tests", "http", "test_published.py")).decode()
        for name in re.findall(r"def (test_\w+)", published):
            self.assertIn(f"`{name}`", table)

    def test_every_key_of_the_preprocessing_is_explained(self):
        source = read(os.path.join(ROOT, "models", "folder", "preprocess_config.c")).decode()
        text = read(os.path.join(ROOT, "docs", "photos.md")).decode()
        huggingface, timm = source.split("/* ---- timm ---- */")
        keys = set(re.findall(r'(?:get|get_\w+|read_size)\(json, "(\w+)"', huggingface))
        self.assertGreater(len(keys), 15)
        for key in keys | set(re.findall(r'get(?:_\w+)?\(cfg, "(\w+)"', timm)):
            with self.subTest(key=key):
                self.assertRegex(text, rf"`{key}`")
        table = json.loads(read(os.path.join(ROOT, "models", "folder", "processors.json")))
        self.assertIn(f"holds {len(table)} classes", text)
        self.assertIn(f"For the other {sum('inexact' in keys for keys in table.values())} ", text)

    def test_variables(self):
        engine = [os.path.join(folder, name) for folder, _, names in os.walk(os.path.join(ROOT, "engine"))
                  for name in names if name.endswith(".c")]
        read_by_engine = {name for path in engine
                          for name in re.findall(r'getenv\("LENSD_([A-Z_]+)"\)', read(path).decode())}
        for page in PAGES:
            for name in re.findall(r"\bLENSD_([A-Z][A-Z_]+)\b", read(page).decode()):
                option = name.lower().replace("_", "-")
                with self.subTest(page=os.path.relpath(page, ROOT), variable=name):
                    self.assertTrue(option in self.options or name in read_by_engine or
                                    name in ("SHARED", "FAMILIES", "SKIP_PACKAGES"), name)


class Recipes(unittest.TestCase):
    """docs/recipes.md: each row has a test that is there, a task that lensd has, and scripts that are there."""

    ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in
            read(os.path.join(ROOT, "docs", "recipes.md")).decode().splitlines() if line.startswith("| ")][1:]

    def test_each_was_tried(self):
        self.assertGreater(len(self.ROWS), 12)
        for name, _, _, _, _, tried in self.ROWS:
            with self.subTest(name):
                found = re.fullmatch(r"`(tests/[a-z_/]+\.py)` `(\w+)\.(\w+)`", tried)
                self.assertTrue(found or tried.startswith("by hand: "), tried)
                if found:
                    program = read(os.path.join(ROOT, found[1])).decode()
                    self.assertIn(f"    def {found[3]}(", program.split(f"\nclass {found[2]}(")[1].split("\nclass ")[0])

    def test_tasks_and_scripts(self):
        tasks = read(os.path.join(ROOT, "models", "tasks", "options.c")).decode()
        for name, get, _, task, _, _ in self.ROWS:
            with self.subTest(name):
                self.assertTrue(re.findall(r"`([a-z-]+)`", task))
                for word in re.findall(r"`([a-z-]+)`", task):
                    self.assertIn(f'] = "{word}",', tasks)
                for script in re.findall(r"export_\w+\.py", get):
                    self.assertTrue(os.path.exists(os.path.join(ROOT, "models", "export", script)), script)


if __name__ == "__main__":
    unittest.main()
