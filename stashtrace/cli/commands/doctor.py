"""``stashtrace doctor [-- CMD]``: what can be measured on this machine, and what that means for the answers."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from stashtrace.cli.parsing import TEXT_FORMATS, Parser, split_at_dashes
from stashtrace.cli.print_results import ignore_broken_pipe, print_json, print_lines
from stashtrace.record.doctor import checks
from stashtrace.record.doctor_gpu import Check


def parser() -> Parser:
    """Return the parser of ``stashtrace doctor``."""
    parser = Parser(
        "doctor",
        "Say what is measured, inferred or invisible on this machine, and why.\n"
        "With COMMAND, also whether it can be traced; it is not run.",
        usage="stashtrace doctor [options] [-- COMMAND ...]",
    )
    parser.add_format(TEXT_FORMATS)
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the checks; exit code 3 if nothing could be recorded here."""
    options, command = split_at_dashes(argv)
    arguments = parser().read(options)
    results = checks(command)
    with ignore_broken_pipe():
        if arguments.format == "json":
            print_json([check.as_dict() for check in results])
        else:
            print_lines([line for check in results for line in _lines(check)])
    return 3 if any(check.state == "broken" for check in results) else 0


def _lines(check: Check) -> list[str]:
    """Return a check as its name and state, with what was found and what that means beside them."""
    lines = wrap(check.detail, 55) + [f"-> {line}" for line in wrap(check.meaning, 52)]
    heads = [f"{check.name:<14}{check.state:<11}"] + [" " * 25] * (len(lines) - 1)
    return [f"{head}{line}" for head, line in zip(heads, lines, strict=True)]
