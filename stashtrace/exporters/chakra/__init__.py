"""Chakra execution traces of a run, one per rank: ``work`` cuts the graph by ranks, ``messages`` encodes it, ``export``
writes the files and says what they leave out."""

from __future__ import annotations
