"""Evaluation between training steps: every batch of it is a validation step, also the last before training goes on.

W  wait for a batch     e  wait that ends an iterator     V  forward without gradients     L  loss without gradients
F  training forward     l  its loss                       B  backward                      U  update
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from stashtrace.analysis.steps.training_loop import BACKWARD, FORWARD, UPDATE, WAIT, Tokens, steps_of

_KINDS = {"W": WAIT, "e": WAIT, "F": FORWARD, "V": FORWARD, "L": FORWARD, "l": FORWARD, "B": BACKWARD, "U": UPDATE}
_MODULES = {"F": 1, "V": 1, "L": 2, "l": 2, "M": 3}


def counts(word: str, *, evaluated: int = 1) -> dict[str, int]:
    """Steps by kind; ``evaluated`` is the module of V, where evaluation uses the model without its wrapper."""
    begin = np.arange(len(word)) * 10
    modules = {**_MODULES, "V": evaluated}
    tokens = Tokens(
        begin,
        begin + 8,
        np.array([_KINDS[letter] for letter in word]),
        np.array([letter in "VL" for letter in word]),
        np.array([letter in "Fl" for letter in word]),
        np.zeros(len(word), dtype=bool),
        np.array([modules.get(letter, 0) for letter in word]),
    )
    kinds, numbers = np.unique(steps_of(tokens).kind, return_counts=True)
    return dict(zip(kinds.tolist(), numbers.tolist(), strict=True))


@pytest.mark.parametrize("evaluated", [1, 3])
@pytest.mark.parametrize("train", ["FBU", "FlBU", "WFBU", "WFlBU"])
@pytest.mark.parametrize("evaluation", ["WV" * 20, "WVL" * 20, "e" + "WV" * 20 + "e", "WV" * 20 + "e"])
def test_every_batch_counts(train: str, evaluation: str, evaluated: int) -> None:
    assert counts((train * 10 + evaluation) * 4, evaluated=evaluated) == {"train": 40, "validation": 80}
    assert counts((train * 10 + evaluation) * 4 + train * 3, evaluated=evaluated) == {"train": 43, "validation": 80}


@pytest.mark.parametrize("evaluated", [1, 3])
def test_a_teacher_on_the_same_batch_is_part_of_the_step(evaluated: int) -> None:
    assert counts("WVFBU" * 30, evaluated=evaluated) == {"train": 30}
    assert counts(("WFBU" * 3 + "WVFBU") * 10, evaluated=evaluated) == {"train": 40}
