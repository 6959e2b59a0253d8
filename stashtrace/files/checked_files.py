"""Files that a person may have edited: read, parsed, their values checked one by one; errors name file and value."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stashtrace.errors import FormatError, MissingDataError, UnsupportedVersionError
from stashtrace.files.run_facts import json_object
from stashtrace.files.whole_files import read_text


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """One file, for messages."""

    path: str
    #: What should stand in it: ``calibration``.
    content: str
    #: What it should be: ``calibration file``.
    kind: str
    #: How a good one is made.
    hint: str

    def damaged(self, why: str) -> FormatError:
        """The error that the file is not what it should be."""
        return FormatError(f"{self.path} is not a usable {self.kind}: {why}", hint=self.hint)

    def read(self, inside: str = "") -> str:
        """Return its text; raise MissingDataError if there is none, FormatError if it is no text.

        ``inside`` is what the file is called in a directory that may be meant.
        """
        try:
            return read_text(self.path)
        except (FileNotFoundError, NotADirectoryError):
            raise MissingDataError(f"{self.path} does not exist", hint=self.hint) from None
        except IsADirectoryError:
            hint = f"did you mean {self.path}/{inside}?" if inside else self.hint
            raise FormatError(f"{self.path} is a directory, not a {self.kind}", hint=hint) from None
        except OSError as error:
            raise FormatError(f"{self.path} cannot be read: {error.strerror or error}", hint=self.hint) from error
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
            return json_object(text)
        except ValueError as error:
            raise self.damaged(f"no JSON object: {str(error)[:120]}") from error

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
        """Return a table under a key, empty if it is not there."""
        value: dict[str, Any] = {} if content.get(key) is None else content[key]
        if not isinstance(value, dict):
            raise self.damaged(f"{key} is not a table")
        return value

    def text(self, content: Mapping[str, Any], key: str) -> str:
        """Return a text under a key, empty if it is not there."""
        value = "" if content.get(key) is None else content[key]
        return str(self.require(isinstance(value, str), key, value, ", no text"))

    def count(self, content: Mapping[str, Any], key: str) -> int:
        """Return a number that is not negative, without its fraction; 0 if it is not there."""
        value = 0 if content.get(key) is None else content[key]
        return int(self.require(is_number(value) and value >= 0, key, value))

    def require(self, is_right: bool, what: str, value: Any, why: str = "") -> Any:
        """Return the value of ``what``; raise FormatError that shows it, and says why, unless it is right."""
        if not is_right:
            raise self.damaged(f"{what} is {repr(value)[:60]}{why}")
        return value


def is_number(value: Any) -> bool:
    """Whether what was read is a finite number, and not true or false."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
