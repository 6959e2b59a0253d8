"""Files that a person may have edited: read, parsed, their values checked one by one; errors name file and value."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stashtrace.errors import FormatError, MissingDataError, UnsupportedVersionError


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """One file, for messages.

    Attributes
    ----------
    path : str
    content : str
        What should stand in it: ``calibration``.
    kind : str
        What it should be: ``calibration file``.
    hint : str
        How a good one is made.
    """

    path: str
    content: str
    kind: str
    hint: str

    def damaged(self, why: str) -> FormatError:
        """The error that the file is not what it should be."""
        return FormatError(f"{self.path} is not a usable {self.kind}: {why}", hint=self.hint)

    def read(self, inside: str = "") -> str:
        """Return its text.

        Parameters
        ----------
        inside : str
            What the file is called in a directory that may be meant.

        Raises
        ------
        MissingDataError
            If there is no such file.
        FormatError
            If it is a directory, or no text.
        """
        try:
            return Path(self.path).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            raise MissingDataError(f"{self.path} does not exist", hint=self.hint) from None
        except IsADirectoryError:
            hint = f"did you mean {self.path}/{inside}?" if inside else self.hint
            raise FormatError(f"{self.path} is a directory, not a {self.kind}", hint=hint) from None
        except UnicodeDecodeError:
            raise self.damaged("it is not UTF-8 text") from None

    def toml(self, text: str) -> dict[str, Any]:
        """Parse TOML; raise FormatError if it is none."""
        # The same code under two names: part of Python since 3.11.
        toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
        try:
            content: dict[str, Any] = toml.loads(text)
        except ValueError as error:
            raise self.damaged(f"no TOML: {str(error).splitlines()[0][:120]}") from error
        return content

    def json(self, text: str) -> dict[str, Any]:
        """Parse a JSON object; raise FormatError if it is none."""
        try:
            content = json.loads(text)
        except ValueError as error:
            raise self.damaged(f"no JSON: {str(error)[:120]}") from error
        except RecursionError:
            raise self.damaged("no JSON: brackets inside brackets without end") from None
        if not isinstance(content, dict):
            raise self.damaged("no object stands in it")
        return content

    def require_version(self, version: Any, newest: int, key: str = "version") -> None:
        """Raise UnsupportedVersionError if a newer stashtrace wrote it, FormatError if that is not a version."""
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise self.damaged(f"{key} is {version!r}")
        if version > newest:
            raise UnsupportedVersionError(
                f"{self.path} has {self.content} format {version}; this stashtrace reads up to {newest}",
                hint=f"a newer stashtrace reads it; {self.hint}",
            )

    def table(self, content: Mapping[str, Any], key: str) -> dict[str, Any]:
        """A table under a key, empty if it is not there."""
        value = content.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.damaged(f"{key} is not a table")
        return value

    def text(self, content: Mapping[str, Any], key: str) -> str:
        """A text under a key, empty if it is not there."""
        value = content.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.damaged(f"{key} is {value!r}, no text")
        return value

    def count(self, content: Mapping[str, Any], key: str) -> int:
        """A number that is not negative, without its fraction; 0 if it is not there."""
        value = content.get(key)
        if value is None:
            return 0
        if not is_number(value) or value < 0:
            raise self.damaged(f"{key} is {value!r}")
        return int(value)


def is_number(value: Any) -> bool:
    """Whether what was read is a finite number, and not true or false."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
