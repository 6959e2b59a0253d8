"""Execution traces: nodes with sizes and collectives, both JSON schemas and protobuf, cut files, and no times."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from corpus import corpus, reference

import stashtrace
from stashtrace.cli import main
from stashtrace.errors import DataLossWarning, ImporterError, MissingDataError
from stashtrace.importers import chakra
from stashtrace.schema.kinds import CollectiveOp

TENSOR = [7, 8, 0, 100, 4, "cuda:0"]


def old(node_id: int, name: str, inputs: list[Any] = [], outputs: list[Any] = []) -> dict[str, Any]:  # noqa: B006
    """A node of schema 1.0.1."""
    return {
        "name": name,
        "id": node_id,
        "rf_id": node_id - 1,
        "parent": 2,
        "seq_id": -1,
        "tid": 1,
        "inputs": inputs,
        "input_shapes": [],
        "outputs": outputs,
    }


def new(node_id: int, name: str, inputs: list[Any] = [], outputs: list[Any] = [], **attrs: Any) -> dict[str, Any]:  # noqa: B006
    """The same of schema 1.0.2 and later."""
    attrs = {"rf_id": node_id - 1, "seq_id": -1, "tid": 1, **attrs}
    return {
        "id": node_id,
        "name": name,
        "ctrl_deps": 2,
        "inputs": {"values": inputs},
        "outputs": {"values": outputs},
        "attrs": [{"name": n, "type": "", "value": v} for n, v in attrs.items()],
    }


COMMS = {
    "1.0.1": (old, [[TENSOR], 148, 0xABC, 0, "allreduce", [], []], ("0xabc", -1)),
    "1.0.2-chakra.0.0.4": (
        new,
        [[TENSOR], 148, ["0", "default_pg"], 0, "allreduce", [], [], 0, 1, 2],
        ("0:default_pg", 2),
    ),
}


def write(path: Path, nodes: list[dict[str, Any]], schema: str = "1.0.1") -> Path:
    path.write_text(json.dumps({"schema": schema, "pid": 42, "time": "now", "nodes": nodes, "finish_ts": 3}, indent=1))
    return path


@pytest.mark.parametrize("schema", COMMS)
def test_nodes_of_both_schemas(tmp_path: Path, schema: str) -> None:
    make, comm, (group, size) = COMMS[schema]
    nodes = [
        make(3, "aten::mm", [TENSOR, [[1, 2, 0, 10, 8, "cpu"], 5], "x"], [TENSOR]),
        make(4, "record_param_comms", comm, [[TENSOR]]),
        make(5, "record_param_comms", [148, 0, 0, "wait", [], []]),
    ]
    trace = stashtrace.load(write(tmp_path / "et_3.json", nodes, schema))
    rows = trace.execution_nodes
    assert rows["input_bytes"].tolist() == [480, 400, 0]
    assert rows["output_bytes"].tolist() == [400, 400, 0]
    assert rows["parent_node_id"].tolist() == [2, 2, 2]
    assert rows["record_function_id"].tolist() == [2, 3, 4]
    assert rows["op_code"].tolist() == [-1, CollectiveOp.ALL_REDUCE, -1]
    assert rows["collective_sequence"].tolist() == [-1, 148, 148]
    assert [trace.text(code) for code in rows["group_code"]] == ["", group, ""]
    assert rows["group_size"].tolist() == [-1, size, -1]
    assert rows["rank"].tolist() == [3, 3, 3]
    assert trace.processes["pid"].tolist() == [42]


def test_operators_are_counted(tmp_path: Path) -> None:
    nodes = [old(i, "aten::add", [TENSOR], [TENSOR]) for i in range(3, 6)]
    nodes += [old(i, "record_param_comms", COMMS["1.0.1"][1], [TENSOR]) for i in range(6, 8)]
    found = stashtrace.analyze(stashtrace.load(write(tmp_path / "rank1.json", nodes)), "operators").to_pandas()
    assert found["name"].tolist() == ["aten::add", "all_reduce"]
    assert found["calls_count"].tolist() == [3, 2]
    assert found["input_bytes"].tolist() == [1200, 800]
    assert found["first_node_id"].tolist() == [3, 6]
    assert found["rank"].tolist() == [1, 1]


def test_stalls_say_that_there_are_no_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "et.json", [old(3, "aten::add")])
    assert main(["analyze", "stalls", str(path)]) == MissingDataError.exit_code
    assert "an execution trace holds operators, sizes and their order, and no times" in capsys.readouterr().err


def test_operators_of_another_trace_say_what_to_give(tmp_path: Path) -> None:
    line = '[\n{"name":"read","cat":"POSIX","pid":1,"tid":1,"ph":"X","ts":5,"dur":1,"args":{"ret":1,"fname":"/a"}}\n'
    (tmp_path / "x.pfw").write_text(line)
    with pytest.raises(MissingDataError, match="no execution trace"):
        stashtrace.analyze(stashtrace.load(tmp_path / "x.pfw"), "operators")


def test_cut_file_gives_the_nodes_before(tmp_path: Path) -> None:
    text = write(tmp_path / "et.json", [old(i, "aten::add") for i in range(50)]).read_text()
    (tmp_path / "et.json").write_text(text[: len(text) // 2])
    with pytest.warns(DataLossWarning, match="file_cut"):
        trace = stashtrace.load(tmp_path / "et.json")
    assert 20 <= len(trace.execution_nodes) < 30


def test_unknown_schema_is_reported_and_used(tmp_path: Path) -> None:
    with pytest.warns(DataLossWarning, match="damaged_nodes"):
        trace = stashtrace.load(write(tmp_path / "et.json", [old(3, "aten::add"), {"id": "no"}], "9.9"))
    assert len(trace.execution_nodes) == 1
    assert {trace.text(c) for c in trace.losses["name_code"]} >= {"schema_unknown", "damaged_nodes"}


def test_file_without_nodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImporterError, match="holds no node"):
        stashtrace.load(write(tmp_path / "et.json", []))


@pytest.mark.parametrize(
    ("name", "rank"),
    [("resnet_2gpu_et_rank1.json", 1), ("et_5.json", 5), ("eg.rank_2.pt.trace.json", 2), ("plain.json", -1)],
)
def test_rank_is_read_from_the_name(tmp_path: Path, name: str, rank: int) -> None:
    assert stashtrace.load(write(tmp_path / name, [old(3, "aten::add")])).processes["rank"].tolist() == [rank]


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def text(number: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def integer(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def sized(message: bytes) -> bytes:
    return varint(len(message)) + message


def protobuf() -> bytes:
    compute = integer(1, 10) + text(2, "matmul") + integer(3, 4) + integer(7, 25) + text(5, b"\x01\x02") + b"\x75abcd"
    attrs = text(10, text(1, "comm_type") + integer(9, 2)) + text(10, text(1, "comm_size") + integer(9, 1 << 40))
    attrs += text(10, text(1, "pg_name") + text(29, "tp")) + text(10, text(1, "is_cpu_op") + integer(27, 1))
    comm = integer(1, 11) + text(2, "ag") + integer(3, 7) + text(4, varint(10)) + attrs
    send = integer(1, 12) + text(2, "s") + integer(3, 5)
    return sized(text(1, "0.0.4")) + sized(compute) + sized(comm) + sized(send)


def test_protobuf(tmp_path: Path) -> None:
    (tmp_path / "workload.3.et").write_bytes(protobuf())
    trace = stashtrace.load(tmp_path / "workload.3.et")
    rows = trace.execution_nodes
    assert rows["node_id"].tolist() == [10, 11, 12]
    assert rows["duration_ns"].tolist() == [25_000, -1, -1]
    assert rows["op_code"].tolist() == [-1, CollectiveOp.ALL_GATHER, CollectiveOp.SEND]
    assert rows["input_bytes"].tolist() == [0, 1 << 40, 0]
    assert rows["parent_node_id"].tolist() == [-1, 10, -1]
    assert trace.text(int(rows["group_code"][1])) == "tp"
    assert rows["rank"].tolist() == [3, 3, 3]


def test_data_dependencies_are_kept(tmp_path: Path) -> None:
    """Packed, as writers of proto3 do, and one by one."""
    (tmp_path / "workload.3.et").write_bytes(
        sized(text(1, "0.0.4"))
        + sized(integer(1, 7) + text(2, "a"))
        + sized(integer(1, 8) + text(2, "b") + text(5, varint(7) + varint(300)))
        + sized(integer(1, 300) + text(2, "c") + integer(5, 7) + integer(5, 8))
    )
    rows = stashtrace.load(tmp_path / "workload.3.et").execution_dependencies
    assert rows["node_id"].tolist() == [8, 8, 300, 300]
    assert rows["needed_node_id"].tolist() == [7, 300, 7, 8]
    assert rows["rank"].tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize("damaged", [None, 7, "x", {"values": 1}])
def test_dependencies_that_are_no_list_are_none(tmp_path: Path, damaged: object) -> None:
    nodes = [new(3, "a"), {**new(4, "b"), "data_deps": damaged}, {**new(5, "c"), "data_deps": [3, "x", 1 << 70]}]
    trace = stashtrace.load(write(tmp_path / "et_0.json", nodes))
    assert trace.execution_nodes["node_id"].tolist() == [3, 4, 5]
    assert trace.execution_dependencies["node_id"].tolist() == [5, 5, 5]
    assert trace.execution_dependencies["needed_node_id"].tolist() == [3, -1, -1]


def test_a_duration_that_is_text_is_none_and_not_a_thousand_times_the_text(tmp_path: Path) -> None:
    (tmp_path / "workload.0.et").write_bytes(
        sized(text(1, "0.0.4")) + sized(integer(1, 7) + text(2, "a") + text(7, "x" * 50_000))
    )
    stashtrace.load(tmp_path / "workload.0.et")  # what is imported with it
    tracemalloc.start()
    try:
        durations = stashtrace.load(tmp_path / "workload.0.et").execution_nodes["duration_ns"].tolist()
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert durations == [-1]
    assert most_bytes < 25_000_000


@pytest.mark.parametrize("version", ["", "0.0.4"])
def test_a_first_message_with_attributes(tmp_path: Path, version: str) -> None:
    """Converters write the facts of the trace that they read, longer than 127 bytes, with or without a version."""
    facts = text(2, text(1, "schema") + text(29, "1.0.2-chakra.0.0.4")) + text(2, text(1, "time") + text(29, "x" * 150))
    head = (text(1, version) if version else b"") + facts
    (tmp_path / "workload.0.et").write_bytes(sized(head) + sized(integer(1, 7) + text(2, "a")))
    assert stashtrace.load(tmp_path / "workload.0.et").execution_nodes["node_id"].tolist() == [7]


FIRST_NODE_END = len(sized(text(1, "0.0.4"))) + 1 + protobuf()[len(sized(text(1, "0.0.4")))]


@pytest.mark.parametrize("kept", range(8, FIRST_NODE_END, 5))
def test_protobuf_cut_in_its_first_node_is_refused(tmp_path: Path, kept: int) -> None:
    (tmp_path / "w.et").write_bytes(protobuf()[:kept])
    with pytest.raises(ImporterError, match="holds no node"):
        stashtrace.load(tmp_path / "w.et")


@pytest.mark.parametrize("kept", range(FIRST_NODE_END + 1, len(protobuf()) - 1, 9))
def test_protobuf_cut_later_gives_what_came_before(tmp_path: Path, kept: int) -> None:
    (tmp_path / "w.et").write_bytes(protobuf()[:kept])
    with pytest.warns(DataLossWarning, match="file_cut"):
        assert len(stashtrace.load(tmp_path / "w.et").execution_nodes) in (1, 2)


def test_sniff() -> None:
    assert chakra.sniff(b'{"schema": "1.0.1", "pid": 1,\n "nodes": [', Path("a.json"))
    assert not chakra.sniff(b'{"schemaVersion": 1, "traceEvents": [', Path("a.json"))
    assert not chakra.sniff(b"", Path("a.et"))
    assert not chakra.sniff(protobuf(), Path("a.bin"))
    for damaged in (
        b"\xff" * 20,
        b"\x07\x0a\x05",
        b"\x07\x0a\x7f0.0.4",
        b"\x07\x1a\x050.0.4",
        b"\x07\x0a\x05hello",
        b"\x00",
    ):
        assert not chakra.sniff(damaged, Path("a.et"))


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("et/resnet_2gpu_et_rank0.json.gz", "eg.rank_0.pt.trace.json"),
        ("et/resnet_2gpu_et_rank1.json.gz", "eg.rank_1.pt.trace.json"),
        ("kineto/dlrm8_v100/et_7.json.gz", "dlrm_eg_7.json"),
        ("kineto/one_gpu/param_resnet_et.json.gz", "resnet_et.json.gz"),
    ],
)
def test_corpus_matches_reference(file: str, name: str) -> None:
    wanted = reference("et.json")[name]
    trace = stashtrace.load(corpus(file))
    rows = trace.execution_nodes
    assert len(rows) == wanted["nodes"]
    comms = rows["name_code"] == trace.strings.find("record_param_comms")
    assert int(comms.sum()) == wanted["record_param_comms"]
    for operator, count in wanted["top"].items():
        assert int((rows["name_code"] == trace.strings.find(operator)).sum()) == count
    assert not len(trace.losses)
