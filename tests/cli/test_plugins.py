"""What other packages add: the example package through CLI and API, and packages that are broken in each way."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from command_line import ROOT, Answer, environment, stashtrace

import stashtrace as package
from stashtrace.analysis.registry import ANALYSES
from stashtrace.cli.synth import main as write_synthetic
from stashtrace.errors import PluginError, PluginWarning, UsageError

EXAMPLE = ROOT / "tests/plugin_package"
#: One step of a rank in a stopwatch file: forward 10 ms, backward 15 ms, optimizer 2 ms.
STEP = "forward,{0},{1}\nbackward,{1},{2}\noptimizer,{2},{3}\n"
MS = 1_000_000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example package, installed into a separate folder, without any network."""
    for tool in ("pip", "setuptools"):  # not imported: setuptools puts its distutils in the place of Python's
        if find_spec(tool) is None:
            pytest.skip(f"{tool} is not installed")
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, folder / "source")  # a build leaves files next to the source
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--no-deps",
            "--no-build-isolation",
            "--disable-pip-version-check",
            "--target",
            folder / "site",
            folder / "source",
        ],
        check=True,
        env=environment(),
        timeout=120,
    )
    return folder / "site"


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Stopwatch files of two ranks and three steps; rank 1 is slower by 1 ms in each backward."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        steps = [(30 * s, 30 * s + 10, 30 * s + 25 + rank, 30 * s + 27 + rank) for s in range(3)]
        text = "".join(STEP.format(*(ms * MS for ms in step)) for step in steps)
        (folder / f"rank{rank}.csv").write_text(f"# stopwatch {rank}\n{text}", encoding="utf-8")
    return folder


def added(name: str, folder: Path, entries: str, **modules: str) -> Path:
    """A folder as pip leaves it, of a package ``NAME-1.0`` with these entry points and modules."""
    information = folder / f"{name}-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (information / "entry_points.txt").write_text(entries, encoding="utf-8")
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text, encoding="utf-8")
    return folder


def with_site(*words: object, site: Path | str, **options: object) -> Answer:
    return stashtrace(*words, path=str(site).split(":"), **options)  # type: ignore[arg-type]


def python(code: str, site: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        env=environment(PYTHONPATH=f"{ROOT}:{site}"),
        capture_output=True,
        text=True,
        timeout=120,
    )


def warnings_of(answer: Answer) -> list[str]:
    lines = answer.err.splitlines()
    assert all(line.startswith("warning: ") for line in lines), answer.err
    return [line.removeprefix("warning: ") for line in lines]


# The example package ----------------------------------------------------------------------------------------------


def test_an_analysis_of_a_package_is_listed(site: Path) -> None:
    answer = with_site("analyze", "--help", site=site)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.endswith("\nFrom stashtrace-stopwatch 1.2\n  phase_totals  Time of each rank in each phase\n")
    assert "phase_totals" not in stashtrace("analyze", "--help").out


def test_it_has_options(site: Path) -> None:
    answer = with_site("analyze", "phase_totals", "--help", site=site)
    assert (answer.code, answer.err) == (0, "")
    assert "phase_totals: Time of each rank in each phase. From stashtrace-stopwatch 1.2." in answer.out
    for option in ("--shortest-ns INT", "--ranks INT,...", "--order {rank,time}", "--no-checkpoints", "--format"):
        assert option in answer.out
    assert "100% of them" in answer.out
    assert "--by" not in answer.out


def test_it_runs_on_files_of_the_package(site: Path, traces: Path) -> None:
    table = with_site("analyze", "phase_totals", traces, site=site)
    assert (table.code, table.err) == (0, "")
    assert table.out.splitlines()[0].split() == ["rank", "phase", "phases_count", "total"]
    assert ["1", "backward", "3", "48.0", "ms"] in [line.split() for line in table.out.splitlines()]

    options = ("--order", "time", "--shortest-ns", 3 * MS, "--ranks", "1,7")
    answer = with_site("analyze", "phase_totals", traces, *options, "--format", "csv", site=site)
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    assert [(r["rank"], r["phase"], r["phases_count"], r["total_ns"]) for r in rows] == [
        ("1", "backward", "3", str(48 * MS)),
        ("1", "forward", "3", str(30 * MS)),
    ]

    answer = with_site("analyze", "--shortest-ns", 11 * MS, "phase_totals", traces, "--format", "json", site=site)
    assert [row["total_ns"] for row in json.loads(answer.out)] == [45 * MS, 48 * MS]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--order", "size"], "--order cannot be 'size'"),
        (["--shortest-ns", "long"], "--shortest-ns long is not a whole number"),
        (["--ranks", "0,x"], "'0,x' is not a list with commas"),
        (["--by", "rank"], "no option --by"),
    ],
)
def test_a_wrong_option_of_it(site: Path, traces: Path, words: list[str], said: str) -> None:
    answer = with_site("analyze", "phase_totals", traces, *words, site=site)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err.splitlines()[0]


def test_a_near_name_is_suggested(site: Path, traces: Path) -> None:
    answer = with_site("analyze", "phase_total", traces, site=site)
    assert answer.code == 2
    assert answer.err == ("error: no analysis named 'phase_total'\n\nhint: did you mean 'phase_totals'?\n")


def test_every_command_that_takes_paths_reads_its_files(site: Path, traces: Path, tmp_path: Path) -> None:
    summary = with_site("summary", traces, site=site)
    assert "\nstashtrace  2 ranks, 1 host, 3 steps of " in summary.out
    assert with_site("analyze", "summary", traces, site=site).out == summary.out
    facts = json.loads(with_site("info", traces, "--format", "json", site=site).out)
    assert (facts["importers"], facts["ranks"], facts["records"]) == ("2 stopwatch", [0, 1], {"phases": 18})
    steps = json.loads(with_site("analyze", "steps", traces, "--format", "json", site=site).out)
    assert len(steps) == 6
    diff = with_site("diff", traces / "rank0.csv", traces / "rank1.csv", "--format", "json", site=site)
    assert (diff.code, diff.err) == (0, "")
    store = tmp_path / "store"
    assert with_site("export", "store", traces, "-o", store, site=site).code == 0
    totals = with_site("analyze", "phase_totals", store, site=site)
    assert totals == with_site("analyze", "phase_totals", traces, site=site)
    exported = with_site("export", "csv", traces, "--table", "phase_totals", "-o", tmp_path / "out.csv", site=site)
    assert exported.code == 0
    assert len((tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()) == 7
    assert with_site("export", "perfetto", traces, "-o", tmp_path / "out.pftrace", site=site).code == 0
    # Without the package the same files are what they were: strangers.
    without = stashtrace("summary", traces)
    assert without.code == 4
    assert without.err.startswith(f"error: {traces} holds no trace")


def test_damage_of_its_files_is_a_loss(site: Path, traces: Path) -> None:
    with (traces / "rank0.csv").open("a", encoding="utf-8") as file:
        file.write("sideways,1,2\nforward,one,2\n")
    (traces / "rank2.csv").write_text("# stopwatch two\n", encoding="utf-8")
    facts = json.loads(with_site("info", traces, "--format", "json", site=site).out)
    reported = {(row["collector"], row["reason"]): row["lost_count"] for row in facts["losses"]}
    assert reported["stopwatch", "line_damaged"] == 2
    assert reported["importers", "unreadable_file"] == 1
    alone = with_site("summary", traces / "rank2.csv", site=site)
    assert alone.code == 4
    assert "tell the authors of stashtrace-stopwatch 1.2" in alone.err


def test_an_exporter_of_a_package(site: Path, traces: Path, tmp_path: Path) -> None:
    assert "  stopwatch     from stashtrace-stopwatch 1.2\n" in with_site("export", "--help", site=site).out
    out = tmp_path / "again.csv"
    answer = with_site("export", "stopwatch", traces, "--ranks", "1", "-o", out, site=site)
    assert (answer.code, answer.out) == (0, "")
    assert out.read_text(encoding="utf-8") == (traces / "rank1.csv").read_text(encoding="utf-8")
    unknown = with_site("export", "stopwach", traces, "-o", out, site=site)
    assert unknown.code == 2
    assert unknown.err.endswith("chakra, stopwatch\n")


def test_the_api_finds_them(site: Path, traces: Path) -> None:
    code = """
import sys, stashtrace
trace = stashtrace.load(sys.argv[1])
table = stashtrace.analyze(trace, "phase_totals", order="time", shortest_ns=11_000_000)
print(type(table) is stashtrace.Table, table["rank"].tolist(), table["total_ns"].tolist())
try:
    stashtrace.analyze(trace, "phase_totals", shortest=1)
except stashtrace.errors.UsageError as error:
    print(error)
"""
    done = python(code, site, traces)
    assert done.stdout.splitlines() == [
        "True [1, 0] [48000000, 45000000]",
        "analysis 'phase_totals' has no option 'shortest'",
    ], done.stderr


def test_entry_points_are_read_only_when_they_are_needed(site: Path, traces: Path) -> None:
    code = """
import sys
sys.argv[1:] = sys.argv[1].split(" ")
from stashtrace.cli import main
assert main() == 0
assert "stashtrace.registry" in sys.modules or sys.argv[1] == "--help"
print("read" if "importlib.metadata" in sys.modules else "not read", file=sys.stderr)
"""
    run = traces.parent / "run"
    assert write_synthetic([str(run), "--ranks", "2", "--steps", "4"]) == 0
    for words, expected in (
        ("--help", "not read"),
        (f"analyze stalls {run}", "not read"),
        (f"analyze stalls {run} --by rank --format csv", "not read"),
        (f"analyze phase_totals {run}", "read"),
    ):
        done = python(code, site, words)
        assert done.stderr.splitlines()[-1:] == [expected], (words, done.stderr)


# Packages that are broken -----------------------------------------------------------------------------------------

BROKEN = """
[stashtrace.analyses]
stalls = mine:table
summary = mine:table
missing = gone:table
nothing = mine:nothing
leaving = leaving:table
number = mine:number
listing = mine:listing
raising = mine:raising
coded = mine:coded
format_taken = mine:format_taken
with_columns = mine:with_columns
needs_callback = mine:needs_callback
[stashtrace.importers]
kineto = mine
missing = gone
half = half
curious = curious
"""
MODULES = {
    "mine": """
from stashtrace.plugins import Column, Schema, Table
number = 7
def table(trace): ...
def listing(trace):
    "A list."
    return [1, 2]
def raising(trace):
    raise ValueError("first line\\nsecond line")
def coded(trace):
    schema = Schema("coded", (Column("name_code", "i8", unit="", doc="", role="text"),), "")
    return Table(schema, {"name_code": [10**6]})
def format_taken(trace, *, format: str = "a"): ...
def needs_callback(trace, *, callback: "Callable"): ...
def with_columns(trace, *, columns: int = 1):
    schema = Schema("with_columns", (Column("asked_count", "i8", unit="", doc=""),), "")
    return Table(schema, {"asked_count": [columns]})
""",
    "leaving": "raise SystemExit('no licence')\n",
    "half": "def sniff(head, path):\n    return head.startswith(b'# half')\n",
    "curious": "def sniff(head, path):\n    raise KeyError(head[:1])\ndef load(source, context): ...\n",
}


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return added("broken", tmp_path / "broken", BROKEN, **MODULES)


@pytest.fixture(scope="module")
def run_of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    assert write_synthetic([str(folder), "--ranks", "2", "--steps", "4"]) == 0
    return folder


def test_broken_packages_are_warnings_in_the_list(broken: Path, site: Path) -> None:
    answer = with_site("analyze", "--help", site=f"{broken}:{site}")
    assert answer.code == 0
    listed = {line.split()[0] for line in answer.out.splitlines() if line.strip()}
    assert {name for name, _, _ in ANALYSES} <= listed
    assert {"phase_totals", "listing", "raising"} <= listed
    assert {"missing", "leaving", "number", "nothing"}.isdisjoint(listed)
    said = warnings_of(answer)
    for name, why in (
        ("stalls", "is left out: stashtrace has an analysis of this name"),
        ("summary", "is left out: stashtrace has an analysis of this name"),
        ("missing", "cannot be loaded from 'gone:table': ModuleNotFoundError: No module named"),
        ("nothing", "cannot be loaded from 'mine:nothing': AttributeError: "),
        ("leaving", "cannot be loaded from 'leaving:table': SystemExit: no licence"),
        ("number", "is not a function but a int"),
    ):
        assert sum(line.startswith(f"analysis {name!r} of broken 1.0 {why}") for line in said) == 1, (name, said)
    assert len(said) == 6


def test_broken_packages_leave_ours_alone(broken: Path, run_of_two: Path) -> None:
    for words in (("stalls", "--by", "rank"), ("summary",), ("findings", "--format", "csv")):
        plain = stashtrace("analyze", words[0], run_of_two, *words[1:])
        assert plain.code == 0
        assert with_site("analyze", words[0], run_of_two, *words[1:], site=broken) == plain


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing", "cannot be loaded from 'gone:table': ModuleNotFoundError: No module named 'gone'"),
        ("leaving", "cannot be loaded from 'leaving:table': SystemExit: no licence"),
        ("number", "is not a function but a int"),
        ("listing", "returned a list, not a stashtrace.Table"),
        ("raising", "failed: ValueError: first line"),
        ("coded", "returned codes in 'name_code' that stand for no text of the trace"),
        ("format_taken", "has a parameter 'format', and every analysis has an option of this name"),
        ("needs_callback", "needs 'callback', of a type that no option can have"),
    ],
)
def test_a_broken_analysis_is_an_error_when_used(broken: Path, run_of_two: Path, name: str, said: str) -> None:
    answer = with_site("analyze", name, run_of_two, site=broken)
    assert (answer.code, answer.out) == (4, "")
    # Discovery says of the names that are ours; the error is one line with a hint.
    lines = [line for line in answer.err.splitlines() if not line.startswith("warning: ")]
    assert lines == [
        f"error: analysis {name!r} of broken 1.0 {said}",
        "",
        "hint: --debug shows where; tell the authors of broken 1.0, or uninstall it",
    ]


def test_columns_of_a_package_belong_to_it(broken: Path, run_of_two: Path) -> None:
    """Packages may have had such a parameter before there was an option of this name."""
    answer = with_site("analyze", "with_columns", run_of_two, "--columns", "3", "--format", "csv", site=broken)
    assert (answer.code, answer.out) == (0, "asked_count\n3\n")
    chosen = with_site("analyze", "stalls", run_of_two, "--columns", "kind", "--format", "csv", site=broken)
    assert chosen.out.startswith("kind\n")


def test_the_api_raises_for_a_broken_analysis(broken: Path, run_of_two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(broken)
    trace = package.load(str(run_of_two))
    with pytest.warns(PluginWarning, match=r"of broken 1\.0 is left out"):
        with pytest.raises(PluginError, match=r"failed: ValueError: first line$") as caught:
            package.analyze(trace, "raising")
    assert isinstance(caught.value.__cause__, ValueError)
    assert len(package.analyze(trace, "stalls"))
    with pytest.raises(UsageError, match="astrology") as unknown:
        package.analyze(trace, "astrology")
    assert "listing" in (unknown.value.hint or "")


def test_broken_importers_are_left_out(broken: Path, site: Path, traces: Path) -> None:
    both = f"{broken}:{site}"
    answer = with_site("summary", traces, site=both)
    assert answer.code == 0
    assert answer.out == with_site("summary", traces, site=site).out
    said = warnings_of(answer)
    assert len(said) == 4, said
    assert said[0] == "importer 'kineto' of broken 1.0 is left out: stashtrace has an importer of this name"
    assert said[1].startswith("importer 'missing' of broken 1.0 cannot be loaded from 'gone': ")
    assert said[2] == "importer 'half' of broken 1.0 is left out: it has no function load"
    assert said[3].startswith(f"importer 'curious' of broken 1.0 failed to examine {traces / 'rank0.csv'}: KeyError: ")


def test_two_packages_with_one_name(site: Path, tmp_path: Path) -> None:
    other = added("twin", tmp_path / "twin", "[stashtrace.analyses]\nphase_totals = mine:listing\n", **MODULES)
    answer = with_site("analyze", "--help", site=f"{site}:{other}")
    assert warnings_of(answer) == [
        "analysis 'phase_totals' of twin 1.0 is left out: stashtrace-stopwatch 1.2 has an analysis of this name"
    ]


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("entry_points.txt", b"[stashtrace.analyses]\nno equals sign here\n", "of torn 1.0 cannot be read"),
        ("entry_points.txt", b"\xff\xfe\x00", "of a package cannot be read"),
        ("METADATA", None, "cannot be read"),
    ],
)
def test_unreadable_packages(
    site: Path, traces: Path, tmp_path: Path, file: str, content: bytes | None, said: str
) -> None:
    other = added("torn", tmp_path / "torn", "[stashtrace.analyses]\nmine = mine:listing\n")
    damaged = other / "torn-1.0.dist-info" / file
    damaged.unlink() if content is None else damaged.write_bytes(content)
    answer = with_site("analyze", "phase_totals", traces, site=f"{other}:{site}")
    assert answer.code == 0
    assert answer.out == with_site("analyze", "phase_totals", traces, site=site).out
    warned = warnings_of(answer)
    # Newer Pythons take a package without METADATA for one without a name; its entry points can be read.
    assert warned == [] if content is None and not warned else len(warned) == 1
    assert all(line.startswith("the entry points ") and said in line for line in warned)
