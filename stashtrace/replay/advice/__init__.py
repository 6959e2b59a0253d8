"""Advice on overlapping, fusing and splitting communication: CoCoNeT's four transformations, found in a trace."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.replay.advice.named import Advice, named_advice
from stashtrace.replay.advice.replayed import ReplayedAdvice
from stashtrace.replay.advice.table import overlap_advice

__all__ = ["Advice", "ReplayedAdvice", "named_advice", "overlap_advice"]
