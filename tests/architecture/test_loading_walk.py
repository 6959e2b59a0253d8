"""Loading is a straight way: the files that a run passes on its way to a trace, and their order, are those drawn.

What is counted: every file of the package in which something runs between the call of ``load_trace`` and its return.
Not counted are the modules at the top of the package and the folders that all use, ``schema/`` among them, and
the files below ``format.stash_file`` that know bytes and no run. The decoders of collectors count as one stop, for a
process meets those alone of which it has rows, and none of them knows another.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from other_boot import as_other_boot
from source_tree import ROOT

from stashtrace.lab import synth
from stashtrace.loading import decode, load

MOST_FILES = 15
PACKAGE = ROOT / "stashtrace"
BYTES = {"format.container", "format.ring", "format.project", "format.codec"}
SHARED_DOORS = {"registry", "decode_context"}
#: Folders that all use, as the modules at the top of the package.
GROUND = {"schema", "files", "scrubbing", "text"}
#: The turn of runs of several hosts: its arithmetic, below ``clocks.align_recorded``.
FITTING = {"loading.clocks.meetings", "loading.clocks.fit_host_pair"}


def drawn() -> dict[str, int]:
    """Stop -> how deep it is indented, in the order of the docstring."""
    lines = re.findall(r"^    ( *)([a-z_.*]+)  ", load.__doc__ or "", re.MULTILINE)
    return {"loading.load" if name == "load" else name: len(indent) // 2 for indent, name in lines}


def stop_of(frame: FrameType) -> str | None:
    """The stop in which a frame runs; None for what is not counted."""
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(PACKAGE):
        return None
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    name = ".".join(parts)
    if len(parts) == 1 or parts[0] in GROUND or name in BYTES:
        return None
    if parts[0] == "collectors" and parts[1] not in SHARED_DOORS:
        return "collectors.*"
    return name


def is_stage(frame: FrameType) -> bool:
    """Whether a frame is of a function of a module, not of an object that a stage has handed on."""
    code = frame.f_code
    return not code.co_name.startswith("<") and code.co_varnames[:1] not in (("self",), ("cls",))


@contextmanager
def watched(called: Callable[[FrameType], None]) -> Iterator[None]:
    """Report each call of a Python function."""

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called(frame)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)


Way = tuple[list[str], list[tuple[str, str]]]


def walk(path: Path) -> Way:
    """(stops in order of the first visit, calls between the stages of ``loading/`` in order)."""
    visited: dict[str, None] = {}
    calls: list[tuple[str, str]] = []

    def called(frame: FrameType) -> None:
        here = stop_of(frame)
        if here is None:
            return
        visited.setdefault(here)
        above = stop_of(frame.f_back) if frame.f_back is not None else None
        if above not in (None, here) and is_stage(frame):
            calls.append((above, here))

    load.load_trace(path)  # imports are not part of the way
    decode._resolved.cache_clear()
    with watched(called):
        load.load_trace(path)
    return list(visited), calls


def write_run(path: Path) -> Path:
    synth.write(path, synth.SyntheticJob(ranks=2, steps=4, calls_per_batch=12))
    return path


def write_run_of_two_hosts(path: Path) -> Path:
    files = sorted(write_run(path).glob("*.stash"))
    for file in files[len(files) // 2 :]:
        as_other_boot(file, offset_ns=7_000_000)
    return path


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> tuple[Way, Way]:
    """The ways of a run of one host, and of one of two."""
    folder = tmp_path_factory.mktemp("runs")
    return walk(write_run(folder / "one")), walk(write_run_of_two_hosts(folder / "two"))


def test_a_run_passes_the_drawn_files_alone_in_their_order(ways: tuple[Way, Way]) -> None:
    (one, _), (two, _) = ways
    assert one == list(drawn())
    assert len(drawn()) <= MOST_FILES
    assert set(two) - FITTING == {*drawn(), "loading.clocks.align_recorded"}


def test_each_stage_is_entered_once(ways: tuple[Way, Way]) -> None:
    _, calls = ways[0]
    entered = [to for to, _ in itertools.groupby(to for at, to in calls if at == "loading.load")]
    assert entered == [name for name, depth in drawn().items() if depth == 0 and name != "loading.load"]


def test_no_stage_climbs_back(ways: tuple[Way, Way]) -> None:
    """Functions call those of later stages alone; what earlier ones made is handed on."""
    place = {name: at for at, name in enumerate(drawn())}
    for _, calls in ways:
        between = {(at, to) for at, to in calls if at in place and to in place and to.startswith("loading.")}
        assert len(between) > 5
        assert [(at, to) for at, to in sorted(between) if place[at] >= place[to]] == []
