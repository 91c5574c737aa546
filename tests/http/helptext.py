"""What `lensd --help` and `lensd COMMAND --help` say, as data."""

import collections
import re

from harness import run_lensd

Option = collections.namedtuple("Option", "name value default text group")  # value: None for a switch
Command = collections.namedtuple("Command", "name about usage text examples options")


def commands():
    """[(name, about)] in the order of `lensd --help`."""
    text = run_lensd("--help").stdout.split("Commands:")[1].split("\n\n")[0]
    return re.findall(r"^  (\w+)  +(\S.*)$", text, re.M)


def command(name, about=""):
    blocks = run_lensd(name, "--help").stdout.strip().split("\n\n")
    usage, text, examples, *groups, _ = blocks
    options = []
    for block in groups:
        heading, lines = block.split("\n", 1)
        # The description of an option begins in column 28, in the option's line or below it.
        for match in re.finditer(r"^  --(\S+)(?: (\S+))?(?:\n| +)(.*(?:\n {28}.*)*)", lines, re.M):
            meaning = " ".join(match.group(3).split())
            default = re.search(r" \(default (\S+)\)$", meaning)
            options.append(Option(match.group(1), match.group(2), default and default.group(1),
                                  meaning[:default.start()] if default else meaning, heading.rstrip(":")))
    return Command(name, about, usage.removeprefix("Usage: "), " ".join(text.split()),
                   [line.strip() for line in examples.splitlines()[1:]], options)
