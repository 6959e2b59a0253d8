"""Chakra execution traces of a run, one per rank: ``work`` cuts the graph by ranks, ``export`` writes it."""

from __future__ import annotations
