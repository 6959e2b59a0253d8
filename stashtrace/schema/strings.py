"""StringPool: texts of a trace, each once, addressed by code. Code 0 is the empty text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from stashtrace.schema.groupby import Int64
from stashtrace.schema.possible import rank_number


class StringPool:
    """Append-only list of distinct texts."""

    __slots__ = ("_codes", "_texts")

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._texts: list[str] = [""]
        self._codes: dict[str, int] = {"": 0}
        for text in texts:
            self.code(text)

    def code(self, text: str) -> int:
        """Return the code of ``text``, adding it if new."""
        code = self._codes.get(text)
        if code is None:
            code = self._codes[text] = len(self._texts)
            self._texts.append(text if text.isascii() else text.encode("utf-8", "replace").decode())
        return code

    def codes(self, texts: Iterable[str]) -> Int64:
        """Codes of many texts, adding new ones."""
        listed = texts if isinstance(texts, list) else list(texts)
        known = list(map(self._codes.get, listed))
        return np.array([self.code(text) for text in listed] if None in known else known, dtype=np.int64)

    def find(self, text: str) -> int:
        """Return the code of ``text``, or -1 if it is not there."""
        return self._codes.get(text, -1)

    def text(self, code: int) -> str:
        """Text of one code."""
        return self._texts[code]

    def texts(self, codes: npt.NDArray[np.integer]) -> npt.NDArray[np.object_]:
        """Texts of many codes, as an object array of the same shape."""
        table = np.asarray(self._texts, dtype=object)
        return np.asarray(table[codes], dtype=object)

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)


def ranks_of(text: str) -> list[int]:
    """Ranks of a comma-separated list, as in ``groups.members_code``; empty for any other text."""
    ranks = [rank_number(part) for part in text.split(",")]
    return ranks if min(ranks) >= 0 else []
