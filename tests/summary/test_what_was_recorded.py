"""The screen claims nothing that was not recorded: no zero, no source, no step that nobody marked, no rank twice."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
from builders import MS, TraceBuilder, trace_from_text
from corpus import corpus
from importers.kineto_files import device, host, launch, rank_of_two, step, write
from summary.scenes import verdicts, worded

import stashtrace
from stashtrace.analysis.findings import summarize
from stashtrace.analysis.findings.claim_rows import Claim
from stashtrace.analysis.findings.rules.files import files_claims
from stashtrace.analysis.findings.rules.headline import doubt_claims
from stashtrace.analysis.findings.rules.losses import loss_claims
from stashtrace.analysis.findings.stall_claims import phrases_of, step_words
from stashtrace.analysis.findings.summary_input import gather
from stashtrace.schema.kinds import IoOp
from stashtrace.schema.trace import PROCESSES, Trace
from stashtrace.summary.summary_document import document
from stashtrace.summary.summary_text import summary

EVENTS = [
    host("aten::mm", 0, 400),
    launch(1, 10),
    device("gemm", 20, 100, correlation=1),
    launch(2, 300),
    device("gemm", 320, 80, correlation=2),
]


def words(trace: Trace) -> str:
    return " ".join(summary(trace).split())


def head_of_table(trace: Trace) -> list[str]:
    return next(line.split() for line in summary(trace).splitlines() if line.split()[:2] == ["rank", "step"])


def test_a_recording_without_steps_is_called_one(tmp_path: Path) -> None:
    text = words(stashtrace.load(write(tmp_path / "one.json", EVENTS)))
    assert "1 rank, no step is marked; the whole recording of 390 us counts as one" in text
    assert "marked step" not in text


def test_marked_steps_keep_their_name(tmp_path: Path) -> None:
    assert "2 marked steps" in words(stashtrace.load(rank_of_two(tmp_path / "rank0.json", 0)))


def test_a_column_of_what_was_not_recorded_is_left_out(tmp_path: Path) -> None:
    assert head_of_table(stashtrace.load(write(tmp_path / "one.json", EVENTS))) == [
        "rank",
        "step",
        "compute",
        "host",
        "other",
    ]
    assert head_of_table(trace_from_text("rank 0 loader : 0...1\nrank 0 phase : .FBO.FBO")) == [
        "rank",
        "step",
        "compute",
        "data",
        "other",
    ]


def test_who_is_late_is_not_measured_where_ranks_are_missing(tmp_path: Path) -> None:
    rank_of_two(tmp_path / "rank1.json", 1)
    assert "measured: data, link and late together," in words(stashtrace.load(tmp_path))
    rank_of_two(tmp_path / "rank0.json", 0)
    assert "measured: data, link, late," in words(stashtrace.load(tmp_path))


@pytest.mark.parametrize(("after_ms", "tail"), [(5, "5.00 ms each in other calls on their files"), (0, "on average$")])
def test_a_checkpoint_goes_on_after_its_call(after_ms: int, tail: str) -> None:
    build = TraceBuilder()
    rank, now = build.rank(0), 0
    for _ in range(8):
        rank.phase("forward", now, now + 4 * MS).phase("backward", now + 4 * MS, now + 8 * MS)
        rank.phase("checkpoint", now + 8 * MS, now + 12 * MS)
        rank.io(now + 9 * MS, now + 11 * MS, op=IoOp.WRITE, path="/model.pt")
        rank.io(now + 12 * MS, now + (12 + after_ms) * MS, op=IoOp.FSYNC, path="/model.pt", blocked=True)
        now += (12 + after_ms) * MS
        rank.phase("optimizer", now, now + MS)
        now += MS
    save = next(v for v in verdicts(build.trace()) if v.kind == "save")
    (sentence,) = save.evidence
    assert sentence.endswith(tail) if tail[-1] != "$" else sentence.endswith(tail[:-1])


UNLIKE_RANKS = f"""
    rank 0 phase : {"FFB.........O" * 8}
    rank 0 cpu   : {"xxx.........x" * 8}
    rank 1 phase : {"FFBBBBBBBBBBO" * 8}
    rank 1 cpu   : {"xxxxxxxxxxxxx" * 8}
"""


def test_an_average_of_unlike_ranks_says_which_one_it_is_of() -> None:
    said = words(trace_from_text(UNLIKE_RANKS))
    assert "LOW CONFIDENCE: 35 % unexplained, the mean of all ranks (69 % on rank 0)" in said


def test_a_mean_of_what_is_unexplained_is_no_lower_bound() -> None:
    facts = gather(trace_from_text(UNLIKE_RANKS))
    crowded = tuple(replace(rank, contention_ratio=0.1) for rank in facts.ranks)
    (text,) = worded(*doubt_claims(replace(facts, ranks=crowded)))
    mean = "LOW CONFIDENCE: 35 % unexplained, the mean of all ranks (69 % on rank 0)"
    assert text == f"{mean}; it may be more, since CPUs were scarce"


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/data/a.bin", "/data/a.bin"),
        (
            "/opt/lib/python3.11/site-packages/numpy/__pycache__/core.pyc",
            "/opt/lib/python3.11/site-packages/nump…/core.pyc",
        ),
        ("/data/" + 60 * "x", "/data/" + 29 * "x" + "…" + 12 * "x"),
        ("3710437467", "file number 3710437467 (its path is not in the recording)"),
        ("", "(path not known)"),
    ],
)
def test_files_can_be_distinguished(path: str, named: str) -> None:
    build = TraceBuilder()
    build.rank(0).io(0, MS, path=path)
    (claim,) = files_claims(build.trace())
    assert [row.text for row in claim.evidence[1:]] == [f"1 call, 1.00 ms, on {named}"]


def test_many_ranks_are_cut() -> None:
    named = "0,64,66,68,70,72,74,76,78,80,82,84,86,88,126"
    lost = dict.fromkeys(("stall_ns", "low_ns", "high_ns", "least_ns"), 1e6)
    claim = Claim("verdict", "save", ranks=named, items_count=15, share_ratio=0.1, least_ratio=0.1, confidence="exact")
    words = phrases_of(replace(claim, **lost), step_words(TraceBuilder().trace()))
    assert (str(words["who"]), words["lost"]) == ("15 ranks (0, 64, 66 … 126)", "1.00 ms a step (10 %)")


@pytest.mark.parametrize(("count", "said"), [(1, "1 impossible number"), (3, "3 impossible numbers")])
def test_one_loss_is_no_several(count: int, said: str) -> None:
    (text,) = worded(*loss_claims(TraceBuilder().loss("impossible_numbers", count, collector="darshan").trace()))
    assert text == f"{said} (darshan)"


def test_of_a_recording_without_steps_nothing_is_said_of_a_step() -> None:
    shown = document(summarize(stashtrace.load(corpus("kineto/one_gpu/alexnet.json.gz"))))
    verdicts = [row for row in shown["findings"] if row["section"] == "verdict"]
    said = [
        shown["headline"],
        *(row["text"] for row in verdicts),
        *(t for row in verdicts for t in row["evidence_text"]),
    ]
    assert verdicts[0]["text"] == "the device of rank 0 has no work in the recording for 30.5 s (70 %) at its begin"
    assert "cudaFree on thread 2869224 (python3.10): 15 in all, during 6.55 s of that" in said
    assert not [text for text in said if " a step" in text]


def _first_line(hosts: list[str], *, stated: int = 0, launcher: str | None = None) -> str:
    build = TraceBuilder(hosts=hosts)
    for rank in range(len(hosts)):
        build.rank(rank).phase("forward", 0, 5 * MS).phase("optimizer", 5 * MS, 6 * MS)
    if launcher is not None:
        process = build.rank(0).worker(0)
        build.rows["processes"][process.process_id]["host_code"] = build.strings.code(launcher)
    if stated:
        codes = {"key_code": build.strings.code(PROCESSES), "value_code": build.strings.code(str(stated))}
        build.add("metadata", process_id=-1, **codes)
    return next(line for line in summary(build.trace()).splitlines() if line.startswith("stashtrace  "))


@pytest.mark.parametrize(
    ("hosts", "launcher", "said"),
    [
        (["a", "a", "b"], None, "3 ranks, 2 hosts"),
        (["a", "a", "b"], "", "3 ranks, 2 hosts"),  # a process that names no host is on one of them, or not
        (["a", "", ""], None, "3 ranks, "),  # and ranks that name none may be on any number of them
        (["", "", ""], None, "3 ranks, "),
    ],
)
def test_hosts_without_a_name_are_not_counted(hosts: list[str], launcher: str | None, said: str) -> None:
    line = _first_line(hosts, launcher=launcher)
    assert line.startswith(f"stashtrace  {said}")
    assert ("host" in line) is ("host" in said)


@pytest.mark.parametrize(("stated", "said"), [(0, "1 rank,"), (1, "1 rank,"), (128, "128 processes,")])
def test_processes_that_share_their_records_are_all_counted(stated: int, said: str) -> None:
    assert _first_line(["a"], stated=stated).startswith(f"stashtrace  {said}")


PACKAGE = Path(stashtrace.__file__).parent
OURS = re.compile(r"stashtrace run|stashtrace\.annotate|--kernels|--stacks")


def test_what_another_tool_recorded_says_so(tmp_path: Path) -> None:
    events = []
    for at in range(0, 5000, 1000):
        events += [step(at // 1000, at, 1000), launch(at + 1, at + 5), device("gemm", at + 10, 100, correlation=at + 1)]
        events += [host("aten::mm", at + 1, 20)]
    trace = stashtrace.load(write(tmp_path / "rank0.json", events))
    said = [text for verdict in verdicts(trace) for text in (verdict.text, *verdict.evidence)]
    assert said
    assert not [text for text in said if OURS.search(text)]


def test_words_of_ours_stand_where_recordings_are_distinguished() -> None:
    """Whatever template comes next: an option of ours in its words would be advised for every recording."""
    found = []
    for path in [*(PACKAGE / "analysis/findings/rules").rglob("*.py"), *(PACKAGE / "summary/words").glob("*.py")]:
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                nodes = list(ast.walk(function))
                texts = [one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)]
                allowed = any(isinstance(one, ast.Attribute) and one.attr == "imported" for one in nodes)
                found += [f"{path.name}: {text}" for text in texts if OURS.search(text) and not allowed]
    assert found == []
