"""A process file without secrets: its rows unchanged, its texts and metadata scrubbed by ``pseudonyms.Scrubber``.

Rows of records that this stashtrace does not know are left out, since they may hold anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from stashtrace.format.project import Layout, current_layouts
from stashtrace.format.stash_file import PART_BYTES, Chunk, StashFile
from stashtrace.schema.trace import LossRow
from stashtrace.scrubbing.pseudonyms import Scrubber, Survey

_TEXT = "string_part"
_LONGEST_BYTES = (1 << 16) - 1
_CHUNK_ROWS = 1 << 16


def survey_file(process: StashFile, survey: Survey) -> None:
    """Note metadata, texts that are paths, and secrets that other texts hold."""
    survey.add_facts(process.metadata)
    texts = process.texts()
    files: set[int] = set()
    named = {n for n, layout in current_layouts().items() if "path_id" in (layout.dtype.names or ())}
    for chunk in process.chunks(named):
        if "path_id" in (chunk.layout.dtype.names or ()):
            files.update(np.unique(chunk.rows["path_id"]).tolist())
    for number in files & texts.keys():
        survey.add_file(texts[number])
    for number, text in process.text_bytes().items():
        if number not in files:
            survey.add_text(text.decode("utf-8", "replace"))


class ScrubbedFile(StashFile):
    """A process file as it is to be written by ``compact``."""

    def __init__(self, path: str, scrubber: Scrubber) -> None:
        self._facts: dict[str, Any] | None = None  # until the file is read: as they stand in it
        super().__init__(path)
        before = self.head.metadata.get("scrubbed", [])
        done = [str(name) for name in before] if isinstance(before, list) else []
        self._scrubber = scrubber.after(done)
        known = {key: value for key, value in self.head.metadata.items() if key not in ("losses", "scrubbed")}
        self._facts = self._scrubber.facts(known) | {"scrubbed": list(dict.fromkeys([*done, *scrubber.done]))}

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the new file."""
        return self.head.metadata if self._facts is None else self._facts

    @property
    def losses(self) -> list[LossRow]:
        """As of the file, their sentences scrubbed."""
        return self.lasting_losses

    @property
    def lasting_losses(self) -> list[LossRow]:
        """All: rows that cannot be read are left out."""
        text = self._scrubber.text
        unread = [(c, r, s, n, a) for (c, r, s, a), n in self._unread.items()]
        return [(c, r, s, n, text(a)) for c, r, s, n, a in [*super().lasting_losses, *unread]]

    def row_counts(self) -> dict[str, int]:
        """Rows per record name, of known records."""
        return {name: count for name, count in super().row_counts().items() if name in current_layouts()}

    def foreign_segments(self) -> Iterator[tuple[int, bytes]]:
        """No segments: what they hold is unknown."""
        return iter(())

    def chunks(self, records: Collection[str] | None = None, tids: Collection[int] | None = None) -> Iterator[Chunk]:
        """Rows of the scrubbed texts, then all other rows."""
        if records is not None:  # read for the texts themselves
            yield from super().chunks(records, tids)
            return
        layout = next((known for known in self.layouts.values() if known.name == _TEXT), None)
        if layout is not None:
            yield from self._text_chunks(layout)
        yield from super().chunks(current_layouts().keys() - {_TEXT}, tids)

    def _text_chunks(self, layout: Layout) -> Iterator[Chunk]:
        source = next((s for s in self.segments if s.record_id == layout.record_id), None)
        tid, ring_id = (source.tid, source.ring_id) if source is not None else (0, 0)
        for part, ring in [] if source is not None else [(p[1], p[2]) for p in self._ring_parts() if p[0] is layout]:
            tid, ring_id = part, ring
        rows: list[tuple[int, int, int, bytes]] = []
        for number, text in self.text_bytes().items():
            data = self._new(text)
            for part, at in enumerate(range(0, max(len(data), 1), PART_BYTES)):
                rows.append((number, part, len(data), data[at : at + PART_BYTES]))
        for begin in range(0, len(rows), _CHUNK_ROWS):
            values = zip(*rows[begin : begin + _CHUNK_ROWS], strict=True)
            chunk = np.zeros(min(_CHUNK_ROWS, len(rows) - begin), dtype=layout.dtype)
            for name, column in zip(("string_id", "part", "length_bytes", "text"), values, strict=True):
                chunk[name] = column
            yield Chunk(layout, tid, ring_id, begin, chunk)

    def _new(self, text: bytes) -> bytes:
        read = text.decode("utf-8", "surrogateescape")
        # The survey has texts as readers show them, which differ where a text is not UTF-8.
        shown = text.decode("utf-8", "replace")
        new = self._scrubber.text(shown if shown in self._scrubber.survey.files else read)
        return text if new in (read, shown) else new.encode("utf-8", "surrogateescape")[:_LONGEST_BYTES]
