"""docs/symptoms.md quotes what summaries say, and its commands can be typed; the gallery has the words of today."""

from __future__ import annotations

import re
import shlex
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from builders import MS, TraceBuilder
from replay.loader_jobs import Job
from scenes import verdicts
from test_compilations import job as compiling_job
from test_device_summary import job as device_job
from test_progress import hanging

from stashtrace.analysis.registry import ANALYSES
from stashtrace.cli import command_module
from stashtrace.replay.causes import summary as with_first_changes
from stashtrace.replay.changes import Change
from stashtrace.summary.summary_text import summary

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "architecture"))

from source_tree import docs_script  # noqa: E402

PAGE = (ROOT / "docs/symptoms.md").read_text(encoding="utf-8")
#: (what a person sees, the text below that heading)
SYMPTOMS = re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE)
QUOTES = re.findall(r"^> (.+)$", PAGE, re.MULTILINE)
TUTORIAL = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
TYPED = re.findall(r"`stashtrace ([^`]+)`", PAGE)
#: Lines of the tutorial that a reader types: (program, arguments)
LESSON = re.findall(r"^\$ (\S+) *(.*)$", TUTORIAL, re.MULTILINE)


def words(text: str) -> str:
    return " ".join(text.split())


def with_slow_reads() -> TraceBuilder:
    """200 steps of 10 ms, in three of which the loop reads a file for 120 ms."""
    build, at = TraceBuilder(), 0
    rank = build.rank(0)
    for step in range(200):
        if step in (60, 101, 150):
            rank.io(at, at + 120 * MS, path="/data/shard-0017.tar", blocked=True, result_bytes=1 << 20)
            at += 120 * MS
        rank.phase("forward", at, at + 8 * MS).phase("backward", at + 8 * MS, at + 9 * MS)
        rank.phase("optimizer", at + 9 * MS, at + 10 * MS)
        at += 10 * MS
    return build


def on_a_gpu_of_another_job() -> TraceBuilder:
    """Job 4710 on a GPU that is job 4711's by the account of the site."""
    build = TraceBuilder()
    code, process = build.strings.code, build.rank(0).process_id
    build.add("devices", process_id=process, rank=0, device_index=0, uuid_code=code("GPU-a0"), name_code=code("H100"))
    for key, value in {"gpu_job GPU-a0": "4711", "env.SLURM_JOB_ID": "4710"}.items():
        build.say(key, value, process)
    return build


@pytest.fixture(scope="module")
def printed() -> str:
    """What summaries say of the recordings of the gallery, of devices and loaders made up, and of a job that hangs."""
    gallery = docs_script("generate_gallery")
    shown = [gallery.summary_of(one.name) for one in gallery.GALLERY]
    build = hanging((2,))
    build.say("exit_code", "1")
    shown.append(summary(build.trace("./run")))
    stepless = TraceBuilder()
    stepless.rank(0)
    shown.append(summary(stepless.trace("./run")))
    full = TraceBuilder(("node00",))
    full.rank(0)
    full.loss("no_space", 1200, collector="core", advice="what the recorder said")
    shown.append(summary(full.trace("./run")))
    shown.append(summary(on_a_gpu_of_another_job().trace("./run")))
    slower = TraceBuilder()
    at = 0
    for step in range(200):
        end = at + (10 if step < 118 else 35) * MS
        slower.rank(0).phase("forward", at, end - 2 * MS).phase("backward", end - 2 * MS, end - MS)
        slower.rank(0).phase("optimizer", end - MS, end)
        at = end
    shown.append(summary(slower.trace("./run")))
    shown.append(summary(with_slow_reads().trace("./run")))
    loaders = Job(1, 2 * MS, 22 * MS, 58 * MS, steps=90), Job(2, 40 * MS, 10 * MS, steps=90, cpus=2.0)
    shown += [with_first_changes(job.run().trace()) for job in loaders]
    made_up = device_job(starved=True, sync=True), device_job(copy_ms=20), compiling_job(inside_forward=True)
    for trace in made_up:
        shown += [sentence for found in verdicts(trace) for sentence in (found.text, *found.evidence)]
    return words(" ".join(shown))


def test_summaries_on_pages_are_fresh() -> None:
    gallery = docs_script("generate_gallery")
    for path, make in gallery.FILES.items():
        assert path.read_text(encoding="utf-8") == make(), "run python scripts/docs/generate_gallery.py"


def test_facts_are_kept_whole_and_shown() -> None:
    gallery = docs_script("generate_gallery")
    kept = {path.relative_to(gallery.FACTS).with_suffix("").as_posix() for path in gallery.FACTS.rglob("*.json")}
    in_tutorial = {name for _, name, _ in gallery.MARK.findall(gallery.TUTORIAL.read_text(encoding="utf-8"))}
    assert kept == {one.name for one in gallery.GALLERY} | in_tutorial
    for name in kept:
        text = (gallery.FACTS / f"{name}.json").read_text(encoding="utf-8")
        read = gallery.json.loads(text)
        facts = gallery.facts_of(gallery.tables_from(read), gallery.first_from(read))
        assert gallery.facts_text(facts) == text


@pytest.mark.parametrize("quote", QUOTES)
def test_quoted_sentence_is_one_that_a_summary_prints(quote: str, printed: str) -> None:
    assert quote in printed


def test_page_has_its_parts() -> None:
    assert len(SYMPTOMS) > 20
    for title, text in SYMPTOMS:
        counts = {mark: text.count(mark) for mark in ("\n> ", "- **Look:** ", "- **Do:** ")}
        assert min(counts.values()) > 0, f"{title}: {counts}"
        assert len(set(counts.values())) == 1, f"{title}: {counts}"


def test_each_symptom_names_findings_and_each_claim_has_a_symptom() -> None:
    rules = docs_script("generate_findings")
    symptoms = rules.codes_of_symptoms()
    assert [title for title, codes in symptoms.items() if not codes] == []
    named = {code for codes in symptoms.values() for code in codes}
    assert named - {code for path in rules.rule_files() for code in rules.said_by(path)} == set()
    assert {code for path in rules.rule_files() for code in rules.said_by(path, ("claim", "verdict"))} - named == set()


def check_command(command: str) -> None:
    """Parse a command line of stashtrace as the command does, without running it."""
    name, *arguments = shlex.split(command)
    if not arguments:
        return
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    command_module(name).parser().read(own)
    if name == "analyze":
        assert arguments[0] in {analysis for analysis, _, _ in ANALYSES}
    for before, value in pairwise(arguments):
        if before == "--set":
            assert Change.parse(value).text


@pytest.mark.parametrize("command", sorted(set(TYPED)))
def test_command_can_be_typed(command: str) -> None:
    check_command(command)


@pytest.mark.parametrize(("program", "arguments"), sorted(set(LESSON)))
def test_line_of_the_tutorial_can_be_typed(program: str, arguments: str) -> None:
    script = (ROOT / "examples/train_ddp.py").read_text(encoding="utf-8")
    faults = (ROOT / "examples/plain_clock.py").read_text(encoding="utf-8")
    known = {*re.findall(r'add\("(--[\w-]+)"', script)}
    known |= {f"--inject-{name}" for name in re.findall(r'add\("([\w-]+)", \d', faults)}
    assert {*re.findall(r" (--[\w-]+)", arguments.partition("train_ddp.py")[2])} <= known
    if program == "stashtrace":
        check_command(arguments)
    elif program == "make":
        assert re.search(rf"^{arguments}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    else:
        assert program in ("git", "cd", "source", "python")
