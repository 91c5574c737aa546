#!/usr/bin/env python3
"""docs/reference.md, docs/lensd.1 and docs/completions list every command and option as the program's --help does,
which is written from server/app/config_options.c.

    test_reference.py             the tests
    test_reference.py --update    writes the files anew

LENSD names the program.
"""

import os
import re
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
BYTES take the suffixes K, M and G (powers of 1024). TIME is in seconds, or with ms, s or m.
"""
EXIT = [("0", "success"),
        ("1", "the work failed: an image, an output, a server that is not ready; or something is missing that may come"
              " later: a model, a GPU, a free port, memory"),
        ("2", "wrong options or settings, or a model that cannot be served"),
        ("3", "a drain ended while requests were stuck: the log names their models (stopped)")]


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


# ---- completions ----

COMPLETIONS = "# Written by tests/test_reference.py --update. Do not edit."


def words(option):
    """The values an option can have, where they are few."""
    return option.value.split("|") if option.value and "|" in option.value else []


def summary(option):
    """The first clause of what an option means: a shell shows it on one line."""
    return re.split(r"[;:] ", option.text)[0]


def bash(every):
    values = {option.name: words(option) for command in every for option in command.options if words(option)}
    lines = [COMPLETIONS, "_lensd()", "{", "    local current=${COMP_WORDS[COMP_CWORD]} words=",
             "    case ${COMP_WORDS[COMP_CWORD - 1]} in"]
    lines += [f"    --{name}) words='{' '.join(choice)}' ;;" for name, choice in values.items()]
    lines += ["    esac", '    if [ "$COMP_CWORD" -eq 1 ]; then',
              f"        words='{' '.join(command.name for command in every)}'",
              '    elif [ -z "$words" ] && [[ $current == -* ]]; then', "        case ${COMP_WORDS[1]} in"]
    for command in every:
        lines.append(f"        {command.name}) words='{' '.join('--' + option.name for option in command.options)}' ;;")
    return "\n".join(lines + [
        "        esac", "    fi", "    # Without words bash completes file names.", "    COMPREPLY=()",
        '    [ -z "$words" ] || mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")', "}",
        "complete -o default -F _lensd lensd"]) + "\n"


def quoted(text):
    """For zsh: in single quotes, and in the brackets of _arguments."""
    return re.sub(r"([\[\]\\])", r"\\\1", text).replace("'", "'\\''")


def zsh(every):
    lines = ["#compdef lensd", COMPLETIONS, "_lensd()", "{", "    if (( CURRENT == 2 )); then",
             "        local -a commands=("]
    lines += [f"            '{command.name}:{quoted(command.about)}'" for command in every]
    lines += ["        )", "        _describe command commands", "        return", "    fi",
              "    local command=$words[2]", "    shift words", "    (( CURRENT-- ))", "    case $command in"]
    for command in every:
        lines += [f"    {command.name})", "        _arguments \\"]
        for option in command.options:
            value = ""
            if option.value:
                kinds = words(option)
                value = f":value:({' '.join(kinds)})" if kinds else f":{quoted(option.value)}:_files"
            lines.append(f"            '--{option.name}[{quoted(summary(option))}]{value}' \\")
        lines += ["            '*:file:_files'", "        ;;"]
    return "\n".join(lines + ["    esac", "}", '_lensd "$@"']) + "\n"


def fish(every):
    def quote(text):
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = [COMPLETIONS]
    lines += [f"complete -c lensd -n __fish_use_subcommand -f -a {command.name} -d {quote(command.about)}"
              for command in every]
    for command in every:
        for option in command.options:
            value = (f" -x -a '{' '.join(words(option))}'" if words(option) else " -r") if option.value else ""
            lines.append(f"complete -c lensd -n '__fish_seen_subcommand_from {command.name}' -l {option.name}{value} "
                         f"-d {quote(summary(option))}")
    return "\n".join(lines) + "\n"


FILES = {"reference.md": markdown, "lensd.1": man, "completions/lensd.bash": bash, "completions/lensd.fish": fish,
         "completions/_lensd": zsh}


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


class Completions(unittest.TestCase):
    def says(self, shell, script, *arguments):
        ended = subprocess.run([shell, "-c", script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, timeout=60, check=False)
        self.assertEqual(ended.returncode, 0, ended.stdout)
        return ended.stdout

    def bash(self, *line):
        """What bash offers for the last word of a line."""
        return self.says("bash", 'source "$0"; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _lensd; '
                         'echo "${COMPREPLY[@]}"', path_of("completions/lensd.bash"), "lensd", *line).split()

    def test_bash(self):
        every = commands()
        self.assertEqual(self.bash(""), [command.name for command in every])
        for command in every:
            self.assertEqual(self.bash(command.name, "--"), ["--" + option.name for option in command.options])
        self.assertEqual(self.bash("serve", "--precision", "b"), ["bf16"])
        self.assertEqual(self.bash("serve", "--log-format", ""), ["text", "json", "auto"])
        self.assertEqual(self.bash("serve", "--model", ""), [])

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh(self):
        """Calls the function with a stand-in for _arguments, which prints what it is given."""
        said = self.says("zsh", '_arguments() { print -rl -- "$@" }; words=(lensd health --h) CURRENT=3; source "$1"',
                         "zsh", path_of("completions/_lensd"))
        names = {line[2:].split("[")[0] for line in said.splitlines() if line.startswith("--")}
        self.assertEqual(names, {option.name for option in helptext.command("health").options})

    @unittest.skipUnless(shutil.which("fish"), "fish is not installed")
    def test_fish(self):
        path = path_of("completions/lensd.fish")
        said = self.says("fish", "source $argv[1]; complete -C 'lensd serve --precision b'", path)
        self.assertRegex(said, r"^bf16\t.*\n$")
        said = self.says("fish", "source $argv[1]; complete -C 'lensd serve --top'", path)
        self.assertRegex(said, "^--top-k\t")


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        update()
    else:
        unittest.main(verbosity=2)
