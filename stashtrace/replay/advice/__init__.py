"""Advice on overlapping, fusing and splitting communication: CoCoNeT's four transformations, found in a trace."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stashtrace.replay.advice.advice_table import overlap_advice
    from stashtrace.replay.advice.choose_remedies import Advice, named_advice
    from stashtrace.replay.advice.limit_by_replay import ReplayedAdvice

__all__ = ["Advice", "ReplayedAdvice", "named_advice", "overlap_advice"]

#: Loaded on use: a summary needs of this folder only what to do first.
_PLACES = {
    "Advice": "choose_remedies",
    "ReplayedAdvice": "limit_by_replay",
    "named_advice": "choose_remedies",
    "overlap_advice": "advice_table",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
