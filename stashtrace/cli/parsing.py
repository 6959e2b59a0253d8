"""What the parsers of all commands share: their look, the common options, errors as UsageError.

argparse is imported here and therefore only once a command has been chosen.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from stashtrace.errors import MissingDataError, UsageError

#: Long names of the option that says where to write; the first is the documented one.
OUT_OPTIONS = ("--out", "--output")


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises instead of exiting, and knows the options of every command."""

    def __init__(self, command: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"stashtrace {command}",
            description=description,
            epilog=epilog,
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        common = self.add_argument_group("common options")
        common.add_argument("-v", "--verbose", action="count", default=0, help="say more on stderr; twice for details")
        common.add_argument("--debug", action="store_true", help="show the Python traceback of an error")

    def error(self, message: str) -> NoReturn:
        """Turn argparse's complaint into one line and a hint."""
        raise UsageError(f"{self.prog}: {message}", hint=f"`{self.prog} --help` shows the options")

    def add_out(self, metavar: str, text: str, *, default: str | None = None, required: bool = False) -> None:
        """Add the option that says where to write: ``-o`` or ``--out``; ``--output`` is accepted too."""
        self.add_argument(
            "-o", *OUT_OPTIONS, dest="out", metavar=metavar, default=default, required=required, help=text
        )

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse, and apply the common options."""
        namespace = self.parse_args(list(argv))
        speak_up(namespace.verbose)
        return namespace


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str, **_: object) -> None:
        super().__init__(prog, max_help_position=26, width=80)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """``-o, --out FILE`` on every Python; before 3.13 argparse repeats the FILE. Second names are not shown."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        names = [name for name in action.option_strings if name not in OUT_OPTIONS[1:]]
        return f"{', '.join(names)} {value}"


def speak_up(verbosity: int) -> None:
    """Send log lines and warnings to stderr, as much as was asked for."""
    logger = logging.getLogger("stashtrace")
    logger.setLevel({0: logging.ERROR, 1: logging.INFO}.get(verbosity, logging.DEBUG))
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        sys.stderr.write(f"warning: {message}\n")

    warnings.showwarning = show


def existing_run(path: str) -> Path:
    """Path of a run or trace file that is there.

    Raises
    ------
    MissingDataError
        If nothing is at the path.
    """
    found = Path(path)
    if not found.exists():
        near = sorted(str(p) for p in Path().glob("stash-*") if p.is_dir())
        hint = f"the newest run here is {near[-1]}" if near else "`stashtrace run -- CMD` makes one"
        raise MissingDataError(f"{path} does not exist", hint=hint)
    return found
