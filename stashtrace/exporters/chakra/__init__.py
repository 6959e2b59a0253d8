"""Chakra execution traces of a run, one per rank: ``work`` cuts the graph by ranks, ``messages`` encodes it, ``export``
writes the files and says what they leave out."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations
