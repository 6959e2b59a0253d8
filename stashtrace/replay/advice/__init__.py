"""Advice on overlapping, fusing and splitting communication: three of CoCoNeT's transformations, found in a trace."""

from __future__ import annotations

from stashtrace.replay.advice.advice_table import Advice, ReplayedAdvice, named_advice, overlap_advice

__all__ = ["Advice", "ReplayedAdvice", "named_advice", "overlap_advice"]
