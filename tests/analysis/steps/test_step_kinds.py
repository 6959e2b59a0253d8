"""What kind each step is: the steps that are counted are those that the job's log counts.

W  wait for a batch           w  for the first one of an iterator      V v  the same of a second loader
q  forward without gradients  Q  in training mode     l  loss without gradients
F  training forward           B  backward             U  forward, backward, update     u  with another optimizer
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby, pairwise

import numpy as np
import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.registry import analyze
from stashtrace.analysis.steps.training_loop import BACKWARD, FORWARD, UPDATE, WAIT, Tokens, steps_of
from stashtrace.schema.kinds import PhaseFlag
from stashtrace.schema.trace import Trace

_PHASES = {
    "q": ("forward", PhaseFlag.NO_GRAD, "Net"),
    "Q": ("forward", PhaseFlag.NO_GRAD | PhaseFlag.TRAINING, "Net"),
    "l": ("forward", PhaseFlag.NO_GRAD, "Loss"),
    "F": ("forward", PhaseFlag.TRAINING, "Net"),
    "B": ("backward", PhaseFlag.TRAINING, "Net"),
    "1": ("optimizer", PhaseFlag.TRAINING, "Adam"),
    "2": ("optimizer", PhaseFlag.TRAINING, "SGD"),
}


class Loop:
    """A loop of one rank: each of its tokens takes a millisecond, and one more lies behind it."""

    def __init__(self, build: TraceBuilder | None = None, rank: int = 0) -> None:
        self.build, self.rank = build or TraceBuilder(), rank
        self.at = 0
        self.batches: Counter[int] = Counter()

    def play(self, word: str) -> Loop:
        process = self.build.rank(self.rank)
        for letter in word.replace("U", "FB1").replace("u", "FB2"):
            begin, self.at = self.at, self.at + 2 * MS
            if letter in _PHASES:
                kind, flags, name = _PHASES[letter]
                process.phase(kind, begin, begin + MS, flags=flags, name=name)
                continue
            loader = 1 if letter in "Ww" else 2
            if letter in "wv":
                self.batches[loader] = 0
            process.batch_wait(self.batches[loader], begin, begin + MS, loader=loader)
            self.batches[loader] += 1
        return self

    def trace(self) -> Trace:
        return self.build.trace()

    def kinds(self) -> list[tuple[str, int]]:
        """Kinds of the steps in order, equal ones in a row as one with their count."""
        return [(kind, len(list(own))) for kind, own in groupby(analyze(self.trace(), "steps")["kind"].tolist())]


_EPOCH, _EVALUATION = "wU" + "WU" * 5, "vq" + "Vq" * 8

CASES = {
    "a rollout that a killed job did not finish is outside": (("q" * 50 + "U" * 8) * 6 + "q" * 20, [("iteration", 6)]),
    "rollouts seen from the middle of a run": ("U" + ("Q" * 30 + "U" * 4) * 6, [("iteration", 7)]),
    "generated answers to a batch of prompts and updates on them": (("W" + "q" * 60 + "U" * 4) * 5, [("iteration", 5)]),
    "answers to one update are part of its step": (("W" + "q" * 60 + "U") * 8, [("train", 8)]),
    "a teacher, and validation": (
        ("wqU" + "WqU" * 5 + _EVALUATION) * 3,
        [("train", 6), ("validation", 9)] * 3,
    ),
    "validation over a loader after each epoch": (
        ("wU" + "WU" * 3 + "vq" + "Vq" * 99) * 4,
        [("train", 4), ("validation", 100)] * 4,
    ),
    "validation in training mode": (
        ("wU" + "WU" * 3 + "vQ" + "VQ" * 99) * 4,
        [("train", 4), ("validation", 100)] * 4,
    ),
    "two batches of validation before the first epoch": (
        "vqVq" + (_EPOCH + _EVALUATION) * 3,
        [("validation", 2)] + [("train", 6), ("validation", 9)] * 3,
    ),
    "two batches of validation before the first epoch, in training mode": (
        "vQVQ" + (_EPOCH + _EVALUATION.replace("q", "Q")) * 3,
        [("validation", 2)] + [("train", 6), ("validation", 9)] * 3,
    ),
    "validation of a model and its losses": (
        (_EPOCH + _EVALUATION.replace("q", "ql")) * 3,
        [("train", 6), ("validation", 9)] * 3,
    ),
    "validation after every single update": (("wU" + "vq" + "Vq" * 4) * 8, [("train", 1), ("validation", 5)] * 8),
    "validation without a loader": (("U" * 20 + "q" * 30) * 5, [("train", 20), ("validation", 30)] * 5),
    "validation before each epoch, and short in comparison": (
        ("qq" + "WU" * 20) * 5,
        [("validation", 2), ("train", 20)] * 5,
    ),
    "inference": ("Wq" * 30, [("inference", 30)]),
    "inference without a loader": ("q" * 7, [("inference", 7)]),
    "generating for each batch is a step per batch": (("W" + "q" * 40) * 6, [("inference", 6)]),
    "validation of a model that something unseen updates": ("WFB" * 3 + "Vq", [("train", 3), ("validation", 1)]),
    "two optimizers that take turns on one batch": ("WUu" * 10, [("train", 10)]),
    "two optimizers that take turns without a loader": ("Uu" * 10, [("train", 10)]),
    "a critic with more batches than its generator": (("WU" * 5 + "u") * 4, [("train", 20)]),
    "one optimizer after the other in two parts of a run": ("U" * 6 + "u" * 6, [("train", 12)]),
    "accumulated gradients": (("WFB" * 3 + "WU") * 6, [("train", 6)]),
}


@pytest.mark.parametrize("name", CASES)
def test_kinds_of_a_loop(name: str) -> None:
    word, kinds = CASES[name]
    assert Loop().play(word).kinds() == kinds


@pytest.mark.parametrize("quiet", ["Q", "q"], ids=["never eval()", "eval() for the rollout"])
def test_a_rollout_and_its_updates_are_one_iteration(quiet: str) -> None:
    loop = Loop().play((quiet * 100 + "U" * 4) * 40)
    assert loop.kinds() == [("iteration", 40)]
    steps = analyze(loop.trace(), "steps")
    assert steps["sub_steps_count"].tolist() == [4] * 40
    assert set((steps["end_ns"] - steps["begin_ns"])[1:].tolist()) == {(100 + 3 * 4) * 2 * MS}
    assert all(end == begin for (_, end), (begin, _) in pairwise(zip(steps["begin_ns"], steps["end_ns"], strict=True)))


def test_updates_whose_number_varies() -> None:
    counts = [4, 1, 3, 1, 2, 1, 1, 2]
    loop = Loop().play("".join("Q" * 64 + "U" * count for count in counts))
    assert loop.kinds() == [("iteration", 8)]
    assert analyze(loop.trace(), "steps")["sub_steps_count"].tolist() == counts


def test_what_one_rank_generates_is_no_rollout_of_the_job() -> None:
    """Rank 0 generates samples before every fourth update, rank 1 does not: both make the same training steps."""
    build = TraceBuilder()
    for rank, quiet in enumerate((100, 0)):
        Loop(build, rank).play(("q" * quiet + "U" * 4) * 10)
    steps = analyze(build.trace(), "steps")
    assert "iteration" not in steps["kind"]
    trains = steps.take(steps["kind"] == "train")
    assert [int((trains["rank"] == rank).sum()) for rank in range(2)] == [40, 40]


def test_on_a_device_an_iteration_lies_between_the_marks_of_its_ends() -> None:
    """Each update leaves a mark: those inside an iteration, and behind a short rollout, are none of its ends."""
    loop = Loop()
    stream = loop.build.rank(0).gpu(0).stream("compute", compute=True)
    late = 3 * MS  # the device is behind the host by the same amount
    stream.step(late, host_ns=0)
    ends = []
    for _ in range(6):
        loop.play("QQ")
        for _ in range(4):
            loop.play("U")
            stream.step(loop.at - MS + late, host_ns=loop.at - MS)
        ends.append(loop.at - MS + late)
    steps = analyze(loop.trace(), "steps")
    assert steps["kind"].tolist() == ["iteration"] * 6
    assert steps["end_ns"].tolist() == ends
    assert steps["begin_ns"].tolist() == [late, *ends[:-1]]
    assert (steps["clock_code"] > 0).all()


# Tokens without times. L l: loss without and with gradients, e: a wait that ends an iterator, V: without gradients.
_TOKENS = {"W": WAIT, "e": WAIT, "F": FORWARD, "V": FORWARD, "L": FORWARD, "l": FORWARD, "B": BACKWARD, "U": UPDATE}
_TOKEN_MODULES = {"F": 1, "V": 1, "L": 2, "l": 2, "M": 3}


def counts(word: str, *, evaluated: int = 1) -> dict[str, int]:
    """Steps by kind; ``evaluated`` is the module of V, where evaluation uses the model without its wrapper."""
    begin = np.arange(len(word)) * 10
    modules = {**_TOKEN_MODULES, "V": evaluated}
    tokens = Tokens(
        begin,
        begin + 8,
        np.array([_TOKENS[letter] for letter in word]),
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
