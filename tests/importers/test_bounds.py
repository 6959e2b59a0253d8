"""What a file of another tool may cost is bounded, and whatever is in it, only a StashtraceError comes out.

Limits are counted, never timed; the timeout of a test only keeps a defect from hanging the others.
"""

from __future__ import annotations

import dataclasses
import gzip
import pickle
import random
import re
import sqlite3
import warnings
import zlib
from pathlib import Path
from typing import Any

import pytest
import test_flight_recorder
from everything import fault_of, faults_of_everything, summarize
from kineto_files import rank_of_two
from mutations import SEEDS, mutated
from nsys_exports import Export

from stashtrace.cli import main
from stashtrace.exporters.registry import export
from stashtrace.importers import import_limits
from stashtrace.importers.darshan import Moved, sums_of
from stashtrace.importers.source import Source
from stashtrace.loading.load import load_trace
from stashtrace.schema.trace import Trace

pytestmark = pytest.mark.filterwarnings("ignore::stashtrace.errors.DataLossWarning")


#: Formats that are not text.
NOT_TEXT = ("nsys", "chakra protobuf", "flight_recorder pickle")


def shared(levels: int) -> list[Any]:
    """A list that holds the same list twice, which holds the same list twice: 2^levels values when written out."""
    value: list[Any] = ["x"]
    for _ in range(levels):
        value = [value, value]
    return value


def dump(**more: Any) -> dict[str, Any]:
    return test_flight_recorder._dump([test_flight_recorder._entry(n) for n in (1, 2)], **more)


def refusal(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which a file is refused, which has a hint."""
    assert main(["analyze", "summary", str(path)]) == 4
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1
    assert "bug in stashtrace" not in errors[0]
    assert any(line.startswith("hint: ") for line in lines)
    return errors[0]


# Pickles ------------------------------------------------------------------------------------------------


def in_itself() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        (pickle.dumps(dump(pg_status={"0": {"ranks": shared(60)}})), "shared over and over"),
        (pickle.dumps(dump(pg_config={"0": {"ranks": shared(60)}})), "shared over and over"),
        (pickle.dumps(dump(version=shared(60))), "shared over and over"),
        (pickle.dumps(dump(version=in_itself())), "part of itself"),
        # Without SETITEMS and STOP at its end.
        (pickle.dumps(dump())[:-2] + b"X\x03\0\0\0bad" + b"]" * 5000 + b"a" * 4999 + b"u.", "lists inside lists"),
        (pickle.dumps(dump(version=10**4000 * 10**1000)), "digits"),
    ],
    ids=["shared status", "shared configuration", "shared version", "a list in itself", "deep", "5000 digits"],
)
def test_hostile_pickles(content: bytes, reported: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(content)
    assert reported in refusal(tmp_path / "nccl_trace_rank_0", capsys)


def test_keys_that_are_lists_in_lists_are_not_hashed(tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    key: Any = ("x",)
    for _ in range(60):
        key = (key, key)
    head = pickle.dumps({"profiling_name": 1, "time_created_ns": 2})[:-2]
    path.write_bytes(head + pickle.dumps(key)[2:-1] + b"K\x01u.")
    assert fault_of(lambda: load_trace(path)) == ""


# JSON ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["7" * 5000, "[" * 100_000, '{"a":' * 100_000, "[" * 5000 + "]" * 5000])
def test_numbers_and_depth_of_json(text: str) -> None:
    with pytest.raises(ValueError):
        import_limits.parse_json(text)
    with pytest.raises(ValueError):
        import_limits.parse_json(text.encode())
    with pytest.raises(ValueError):
        import_limits.parse_next(text, 0)


@pytest.mark.parametrize("name", [n for n in sorted(SEEDS) if n not in NOT_TEXT])
@pytest.mark.parametrize("odd", [b"7" * 5000, b"[" * 5000 + b"]" * 5000, b"[" * 100_000])
def test_each_number_of_a_file_in_turn(name: str, odd: bytes, tmp_path: Path) -> None:
    path = SEEDS[name](tmp_path)
    data = path.read_bytes()
    spots = list(re.finditer(rb"(?<=[:\[, ])-?\d+(?=[,}\]])", data))
    assert spots
    for spot in spots[:: max(1, len(spots) // 12)]:
        path.write_bytes(data[: spot.start()] + odd + data[spot.end() :])
        assert fault_of(lambda: load_trace(path)) == ""


# Compression --------------------------------------------------------------------------------------------


def bomb(begin: bytes, unpacked_bytes: int) -> bytes:
    """A gzip file that begins like a trace and goes on with spaces."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    piece = b" " * (1 << 20)
    return b"".join(
        [packer.compress(begin), *(packer.compress(piece) for _ in range(unpacked_bytes >> 20)), packer.flush()]
    )


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_gzip_bomb(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_limits, "FREE_BYTES", 4 << 20)
    plain = SEEDS[name](tmp_path)
    data = plain.read_bytes()
    begin = data if name == "nsys" else data[: len(data) * 2 // 3]
    packed = plain.with_name(plain.name + (".gz" if plain.suffix != ".et" else ""))
    packed.write_bytes(bomb(begin, 16 << 20))
    if packed != plain:
        plain.unlink()
    assert "times its size" in refusal(packed, capsys)


def test_how_much_is_unpacked_of_a_bomb(tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(bomb(b"", 256 << 20))
    seen: list[int] = []
    with pytest.raises(import_limits.OutOfBoundsError):
        seen.extend(map(len, Source(path).chunks()))
    assert sum(seen) <= 2 * import_limits.FREE_BYTES


def test_what_shrinks_well_is_no_bomb(tmp_path: Path) -> None:
    plain = rank_of_two(tmp_path / "rank0.json", 0)
    path = tmp_path / "packed" / "rank0.json.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(plain.read_bytes() + b"\n" * (8 << 20), 9))
    assert len(load_trace(path).kernels) == len(load_trace(plain).kernels) > 0


# SQLite -------------------------------------------------------------------------------------------------


def test_work_of_sqlite_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_limits, "_FREE_STEPS", 1_000_000)
    export_ = Export(tmp_path / "x.sqlite")
    export_.close()
    connection = sqlite3.connect(tmp_path / "x.sqlite")
    import_limits.bound_queries(connection, 0)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        connection.execute(endless).fetchall()


# Darshan ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", [float("inf"), float("nan"), 1e300, -1e300, 2**63, 2**70])
def test_numbers_of_darshan_that_64_bits_do_not_hold(odd: float) -> None:
    names = ("OPENS", "READS", "BYTES_READ", "CONSEC_READS")
    times = ("READ_TIME", "META_TIME", "READ_START_TIMESTAMP", "READ_END_TIMESTAMP", "SLOWEST_RANK_TIME")
    for chosen in (*names, *times):
        moved = Moved()
        record = {
            "id": 1,
            "rank": -1,
            "counters": {f"POSIX_{n}": odd if n == chosen else 3 for n in names},
            "fcounters": {f"POSIX_F_{n}": odd if n == chosen else 1.5 for n in times},
        }
        sums = sums_of("POSIX", record, moved)
        assert sums is not None
        assert all(
            abs(number) < import_limits.HIGHEST
            for number in dataclasses.asdict(sums).values()
            if isinstance(number, int)
        )
        assert moved.impossible_count + moved.negative_count >= 1 or odd == -1e300


# Everything ---------------------------------------------------------------------------------------------


def fault_of_file(path: Path, folder: Path, *, thorough: bool) -> list[str]:
    """What came out that should not have: of load, summary and timeline, or of all that there is."""
    traces: list[Trace] = []

    def load() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traces.append(load_trace(path))

    found = [fault_of(load)]
    for trace in traces:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            if thorough:
                found += faults_of_everything(trace, folder)
            else:
                found.append(fault_of(lambda trace=trace: summarize(trace)))  # type: ignore[misc]
                found.append(fault_of(lambda trace=trace: export(trace, "perfetto", folder / "t.pftrace")))  # type: ignore[misc]
    return [each for each in found if each]


def try_mutations(name: str, seed: int, count: int, folder: Path, *, thorough: bool) -> list[str]:
    """Faults of ``count`` mutations of a format's small file."""
    rng = random.Random(f"{name} {seed}")
    path = SEEDS[name](folder)
    data = path.read_bytes()
    found = []
    for number in range(count):
        path.write_bytes(mutated(data, rng))
        found += [f"{name} {seed} {number}: {each}" for each in fault_of_file(path, folder, thorough=thorough)]
    return found


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_mutations(name: str, tmp_path: Path) -> None:
    assert try_mutations(name, 0, 30, tmp_path, thorough=False) == []


@pytest.mark.trust
@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("name", sorted(SEEDS))
def test_many_mutations(name: str, seed: int, tmp_path: Path) -> None:
    assert try_mutations(name, seed, 100, tmp_path, thorough=True) == []
