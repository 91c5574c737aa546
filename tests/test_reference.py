#!/usr/bin/env python3
"""docs/reference.md and docs/lensd.1 list every command and option as the program's --help does, which is
written from server/app/config_options.c.

    test_reference.py             the tests
    test_reference.py --update    writes both files anew

LENSD names the program.
"""

import os
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
DOCS = os.path.join(os.path.dirname(HERE), "docs")
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(HERE, "http"))
import helptext  # noqa: E402

SETTINGS = """\
Every option is a flag, an environment variable and a key of the JSON file that --config names. A flag wins over \
the environment, the environment over the file. The value of a switch in a variable or in the file is true or false.
An empty variable is treated as unset. An empty model is an error: `lensd serve ""` always, `LENSD_MODEL=` and \
`LENSD_MODELS=` where nothing else names a model.
BYTES take the suffixes K, M and G (of 1024). TIME is in seconds, or with ms, s or m.
"""
EXIT = [("0", "success"), ("1", "the work failed: an image, an output, a server that is not ready"),
        ("2", "wrong options or settings, or a model that cannot be served")]


def commands():
    return [helptext.command(name, about) for name, about in helptext.commands()]


def variable(option):
    return "LENSD_" + option.name.upper().replace("-", "_")


def default(option):
    return (option.default or "") if option.value else "off"


# ---- Markdown ----


def cell(text):
    return text.replace("|", "\\|").replace("*", "\\*")


def markdown(every):
    lines = ["# Commands and options", "",
             "<!-- Written by tests/test_reference.py --update from `lensd COMMAND --help`. Do not edit. -->", "",
             "The same is in `man lensd`.", ""]
    lines += [line + "\n" for line in SETTINGS.replace("--config", "`--config`").splitlines()]
    for command in every:
        lines += [f"## lensd {command.name}", "", f"`{command.usage}`", "", command.text, "",
                  "```text", *command.examples, "```"]
        group = None
        for option in command.options:
            # Headings for the many of serve only.
            if group is None or (option.group != group and command.name == "serve"):
                lines += ["", *([f"### {option.group}", ""] if command.name == "serve" else []),
                          "| flag | variable | key | default | meaning |", "|---|---|---|---|---|"]
            group = option.group
            flag = f"--{option.name}" + (f" {option.value}" if option.value else "")
            key = "" if option.name == "config" else f"`{option.name}`"
            lines.append(f"| `{cell(flag)}` | `{variable(option)}` | {key} | {default(option)} | {cell(option.text)} |")
        lines.append("")
    lines += ["## Exit status", "", "| status | meaning |", "|--:|---|"]
    lines += [f"| {status} | {meaning} |" for status, meaning in EXIT]
    return "\n".join(lines) + "\n"


# ---- man(7) ----


def roff(text):
    """Text with nothing in it that roff would take for a request or an escape."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...").replace("`", "")
    assert text.isascii(), text
    return "\\&" + text if text[:1] in (".", "'") else text


def man(every):
    lines = ['.\\" Written by tests/test_reference.py --update. Do not edit.', '.TH LENSD 1 "" "" "User Commands"',
             ".SH NAME", "lensd \\- image\\-inference server", ".SH SYNOPSIS"]
    for command in every:
        lines += [roff(command.usage), ".br"]
    lines[-1:] = [".SH DESCRIPTION"]
    for paragraph in SETTINGS.splitlines():
        lines += [roff(paragraph), ".PP"]
    lines.pop()
    for command in every:
        lines += [f".SH LENSD {command.name.upper()}", roff(command.text)]
        group = None
        for option in command.options:
            if option.group != group:
                group = option.group
                lines += [f".SS {roff(group)}"]
            value = f" \\fI{roff(option.value)}\\fR" if option.value else ""
            after = f" (default {default(option)})" if option.default else ""
            lines += [".TP", f"\\fB\\-\\-{roff(option.name)}\\fR{value}", roff(option.text + after)]
        lines += [".SS Examples", ".nf", *(roff(line) for line in command.examples), ".fi"]
    lines += [".SH ENVIRONMENT", "The variable of an option is its name in capitals, with underscores, after",
              "LENSD_: \\fB\\-\\-top\\-k\\fR is \\fBLENSD_TOP_K\\fR.", ".SH EXIT STATUS"]
    for status, meaning in EXIT:
        lines += [".TP", status, roff(meaning)]
    return "\n".join(lines) + "\n"


FILES = {"reference.md": markdown, "lensd.1": man}


def path_of(name):
    return os.path.join(DOCS, name)


def update():
    every = commands()
    for name, render in FILES.items():
        with open(path_of(name), "w", encoding="utf-8") as file:
            file.write(render(every))


class Reference(unittest.TestCase):
    def test_files_are_up_to_date(self):
        every = commands()
        for name, render in FILES.items():
            with self.subTest(name), open(path_of(name), encoding="utf-8") as file:
                self.assertEqual(file.read(), render(every),
                                 f"docs/{name} is stale: LENSD=build/server/lensd tests/test_reference.py --update")

    def test_every_flag_is_understood(self):
        """No line of --help is left out by the reader of it."""
        for command in commands():
            text = helptext.run_lensd(command.name, "--help").stdout
            flags = [line.split()[0][2:] for line in text.splitlines() if line.startswith("  --")]
            self.assertEqual([option.name for option in command.options], flags, command.name)
            self.assertTrue(all(option.text for option in command.options), command.name)

    @unittest.skipUnless(shutil.which("groff"), "groff is not installed")
    def test_man_page_has_no_warnings(self):
        ended = subprocess.run(["groff", "-man", "-ww", "-z", path_of("lensd.1")], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
        self.assertEqual((ended.returncode, ended.stdout), (0, ""))


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        update()
    else:
        unittest.main(verbosity=2)
