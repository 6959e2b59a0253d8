"""Lengths of sentences, and what is worth a word in them."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits of the words about causes and findings, each with its reason."""

    #: Longest headline; a clause of fewer characters says too little alone.
    headline_characters: int = 100
    clause_characters: int = 30
    #: What is this part of a time prints as nearly all of it: it is not said to be a part.
    nearly_all_ratio: float = 0.9
    #: Transfers of less take as long as the operation does, whatever their bytes: gloo's and NCCL's latency over
    #: bandwidth.
    small_bytes: int = 1 << 16


POLICY = Policy()
