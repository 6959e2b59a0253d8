"""``stashtrace doctor [-- CMD]``: what this machine lets us see, each line ending in what it means."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from textwrap import wrap

from stashtrace.cli.parsing import Parser
from stashtrace.record.doctor import checks


def parser() -> Parser:
    """Options of ``stashtrace doctor``."""
    parser = Parser("doctor", "Say what will be measured, inferred or invisible on this machine, and why.")
    parser.usage = "stashtrace doctor [options] [-- COMMAND ...]"
    parser.add_argument("--format", choices=("table", "json"), default="table", help="lines (default) or JSON")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the checks; exit code 3 if nothing could be recorded here."""
    words = list(argv)
    command = words[words.index("--") + 1 :] if "--" in words else []
    arguments = parser().read(words[: words.index("--")] if "--" in words else words)
    found = checks(command)
    if arguments.format == "json":
        sys.stdout.write(json.dumps([c.as_dict() for c in found], indent=1) + "\n")
    else:
        for check in found:
            lines = wrap(check.detail, 55) + [f"-> {line}" for line in wrap(check.meaning, 52)]
            heads = [f"{check.name:<14}{check.state:<11}"] + [" " * 25] * (len(lines) - 1)
            sys.stdout.writelines(f"{head}{line}\n" for head, line in zip(heads, lines, strict=True))
    return 3 if any(c.state == "broken" for c in found) else 0
