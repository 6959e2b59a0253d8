"""Every function that hooks stand in front of answers as libc does: value, errno, and what it changed.

One program makes over six thousand calls, good and bad, and prints what came of each; both outputs are compared by
line. Nothing in them depends on time: descriptors, positions, sizes, digests, errno (77 before each call).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trust.pairs import Outcome, Pair, compiled, recorded_rows

ROOT = Path(__file__).resolve().parents[2]
FEWEST_CALLS = 6_000
#: A line about a bad address. The recorder may not look at one that the kernel would never have looked at.
BAD_ADDRESS = re.compile(r"^[^ ]+\([^)]*BAD")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("conformance", tmp_path_factory.mktemp("conformance"))


@pytest.fixture(scope="module")
def both(program: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Outcome]:
    pair = Pair(tmp_path_factory.mktemp("both"))
    outcomes = pair.run([program], DRAINER="self")  # no thread of ours, so that nothing depends on its moments
    assert recorded_rows(pair.run_dir) > FEWEST_CALLS // 2, "the traced run recorded next to nothing"
    return outcomes


def lines(outcome: Outcome, *, bad_addresses: bool) -> list[str]:
    return [line for line in outcome.output.splitlines() if bool(BAD_ADDRESS.match(line)) == bad_addresses]


def own_errors(outcome: Outcome) -> list[str]:
    """What the program wrote to stderr; the recorder says there what it cannot write, one line a process."""
    return [line for line in outcome.errors.splitlines() if not line.startswith("stashtrace[")]


def calls_count(outcome: Outcome) -> int:
    return int(outcome.output.splitlines()[-1].split()[1])


@pytest.mark.thorough
def test_every_hook_is_called(both: tuple[Outcome, Outcome]) -> None:
    definitions = (ROOT / "csrc/hooks/real_functions.def").read_text(encoding="utf-8")
    hooked = set(re.findall(r"^REAL\([^,]+, (\w+),", definitions, re.M))
    assert len(hooked) > 150
    called = set(re.findall(r"^(\w+)(?:\(| = | was woken)", both[0].output, re.M))
    missing = {name for name in hooked - called if f"{name} is not in this libc" not in both[0].output}
    assert missing == set()


@pytest.mark.thorough
def test_same_answers(both: tuple[Outcome, Outcome]) -> None:
    plain, traced = both
    assert (plain.code, calls_count(plain) > FEWEST_CALLS) == (0, True)
    assert lines(traced, bad_addresses=False) == lines(plain, bad_addresses=False)
    assert (traced.code, own_errors(traced), traced.files) == (plain.code, own_errors(plain), plain.files)


@pytest.mark.thorough
def test_same_answers_to_bad_addresses(both: tuple[Outcome, Outcome]) -> None:
    plain, traced = both
    expected = lines(plain, bad_addresses=True)
    assert len(expected) > 200
    assert lines(traced, bad_addresses=True) == expected


SETTINGS = {
    "auto": {},
    "thread": {"DRAINER": "thread", "SAMPLE_MS": "1"},
    "self": {"DRAINER": "self", "RING_BYTES": "4096"},
    "off": {"DRAINER": "off", "RING_BYTES": "4096"},
    "every wait": {"WAIT_THRESHOLD_NS": "0"},
}


@pytest.mark.trust
@pytest.mark.parametrize("name", SETTINGS)
def test_same_answers_many_times(
    program: Path, tmp_path: Path, name: str, record_property: Callable[[str, object], None]
) -> None:
    """Four times with each setting, two at once."""

    def once(turn: int) -> tuple[int, list[str]]:
        plain, traced = Pair(tmp_path / str(turn)).run([program], **SETTINGS[name])
        here, there = plain.output.splitlines(), traced.output.splitlines()
        differences = [f"{a} | {b}" for a, b in zip(here, there, strict=False) if a != b]
        if len(here) != len(there) or plain.code != traced.code:
            differences.append(f"{len(here)} lines and {plain.code}, {len(there)} lines and {traced.code}")
        return calls_count(plain), differences

    with ThreadPoolExecutor(2) as pool:
        turns = list(pool.map(once, range(4)))
    record_property("calls_count", sum(calls for calls, _ in turns))
    record_property("differences_count", sum(len(differences) for _, differences in turns))
    assert [differences for _, differences in turns if differences] == []
