"""The timeline read by Perfetto's Python package: its protobuf classes, and its trace processor."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trace_processor
import trace_processor_shell

import stashtrace
from stashtrace.cli.synth import main as write_synthetic
from stashtrace.errors import StashtraceError, UsageError
from stashtrace.schema.trace import Trace

_INCREMENTAL_CLOCK = 64


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Two ranks of four steps."""
    folder = tmp_path_factory.mktemp("made") / "run"
    assert write_synthetic([str(folder), "--ranks", "2", "--steps", "4", "--late-rank", "1", "--late", "5"]) == 0
    return stashtrace.load(str(folder))


@pytest.fixture(scope="module")
def timeline(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("timeline") / "timeline.pftrace"
    stashtrace.export(trace, "perfetto", path)
    return path


def unknown_fields(message: Any) -> list[str]:
    """Names of the messages that hold a field which Perfetto's schema does not have."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    found = [f"{message.DESCRIPTOR.name}: {field.field_number}" for field in UnknownFieldSet(message)]
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for one in value if field.is_repeated else [value]:
                found += unknown_fields(one)
    return found


def slices(packets: Any) -> Counter[tuple[int, int, str]]:
    """(begin, length, name) of each slice, read as Perfetto's documentation of its messages says."""
    now: dict[int, int] = {}
    names: dict[tuple[int, int], str] = {}
    opened: dict[int, list[tuple[int, str]]] = {}
    found: Counter[tuple[int, int, str]] = Counter()
    for packet in packets:
        sequence = packet.trusted_packet_sequence_id
        for clock in packet.clock_snapshot.clocks:
            if clock.clock_id == _INCREMENTAL_CLOCK:
                assert clock.is_incremental
                now[sequence] = clock.timestamp
        for name in packet.interned_data.event_names:
            names[sequence, name.iid] = name.name
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        now[sequence] += packet.timestamp
        stack = opened.setdefault(event.track_uuid, [])
        if event.type == event.TYPE_SLICE_BEGIN:
            stack.append((now[sequence], names[sequence, event.name_iid] if event.name_iid else event.name))
        elif event.type == event.TYPE_SLICE_END:
            begin, name = stack.pop()
            found[begin, now[sequence] - begin, name] += 1
        elif event.type == event.TYPE_INSTANT:
            found[now[sequence], 0, names[sequence, event.name_iid] if event.name_iid else event.name] += 1
    assert not any(opened.values()), "each slice that begins ends"
    return found


def test_perfettos_classes_know_every_field_and_read_the_slices_that_its_processor_reads(timeline: Path) -> None:
    pytest.importorskip("perfetto")
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as Packets

    trace_processor.require()
    packets = Packets()
    packets.ParseFromString(timeline.read_bytes())
    assert packets.ByteSize() == timeline.stat().st_size, "no field is written twice, nor longer than it need be"
    assert sorted(set(unknown_fields(packets))) == []
    read = slices(packets.packet)
    processor = trace_processor.TraceProcessor.of(timeline)
    assert processor.errors() == []
    assert read == Counter(processor.rows("select ts, dur, name from slice"))
    assert sum(read.values()) > 500
    described = {packet.track_descriptor.uuid for packet in packets.packet if packet.HasField("track_descriptor")}
    used = {packet.track_event.track_uuid for packet in packets.packet if packet.HasField("track_event")}
    assert used <= described


def test_the_package_answers_queries_about_the_timeline(trace: Trace, tmp_path: Path) -> None:
    pytest.importorskip("perfetto")
    trace_processor.require()
    program = trace_processor_shell.install(tmp_path)
    with trace.perfetto(bin_path=program, ranks=[1]) as processor:
        rows = list(processor.query("select ts, dur, name from slice where name like 'step %' order by ts"))
        names = {row.name for row in processor.query("select name from process where name is not null")}
    steps = stashtrace.analyze(trace, "steps")
    own = steps.take(steps["rank"] == 1)
    assert [row.name for row in rows] == [f"step {step}" for step in own["step"].tolist()]
    assert np.array_equal([row.dur for row in rows], own["end_ns"] - own["begin_ns"])
    assert len(names) == 1
    assert "rank 001" in names.pop()


def test_a_program_that_is_none_gets_one_line(trace: Trace, tmp_path: Path) -> None:
    pytest.importorskip("perfetto")
    with pytest.raises(UsageError, match="nowhere is no file") as caught:
        trace.perfetto(bin_path=tmp_path / "nowhere")
    assert "bin_path" in (caught.value.hint or "")
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
    broken.chmod(0o755)
    with pytest.raises(StashtraceError, match="does not start") as later:
        trace.perfetto(bin_path=broken)
    assert "\n" not in str(later.value)


def test_a_download_that_fails_gets_one_line(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("perfetto")
    from perfetto.trace_processor.platform import PlatformDelegate

    def offline(*_: object, **__: object) -> str:
        raise OSError("Could not resolve host")

    monkeypatch.setattr(PlatformDelegate, "get_shell_path", offline)
    with pytest.raises(StashtraceError, match="does not start: OSError: Could not resolve host") as caught:
        trace.perfetto()
    assert "trace.perfetto(bin_path=FILE)" in (caught.value.hint or "")


def test_options_are_checked_before_anything_starts(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no option 'colour'"):
        trace.perfetto(colour="red")
    with pytest.raises(UsageError, match="both"):
        trace.perfetto(bin_path="x", config=object())  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "perfetto", None)
    with pytest.raises(StashtraceError, match="needs the package perfetto") as caught:
        trace.perfetto()
    assert "stashtrace[perfetto]" in (caught.value.hint or "")
