"""Advice on overlapping, fusing and splitting communication: CoCoNeT's four transformations, found in a trace."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.replay.advice.advice_table import overlap_advice
from stashtrace.replay.advice.choose_remedies import Advice, named_advice
from stashtrace.replay.advice.limit_by_replay import ReplayedAdvice

__all__ = ["Advice", "ReplayedAdvice", "named_advice", "overlap_advice"]
