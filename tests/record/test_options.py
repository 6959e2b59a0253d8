"""RecordOptions: what the help, the pages and the code of traced processes say of an option is what it declares."""

from __future__ import annotations

import argparse
import importlib
import re
from pathlib import Path

import pytest

from stashtrace.errors import FormatError, UsageError
from stashtrace.record.options import DECLARATIONS, SETTINGS, RecordOptions
from stashtrace.record.staged_files import write_staged_list

ROOT = Path(__file__).resolve().parents[2]
PARSED_BY_HAND = set(re.findall(r'"(STASHTRACE_\w+)"', (ROOT / "csrc/core/config.cpp").read_text(encoding="utf-8")))
READ_BY_PROBES = {
    name
    for path in (ROOT / "stashtrace/probes").rglob("*.py")
    for name in re.findall(r'environ\b.{0,8}"(STASHTRACE_\w+)"', path.read_text(encoding="utf-8"))
}
#: Options that only ``env`` has, or ``run``.
OWN_DESTINATIONS = {
    "deeper",
    "deeper_budget",
    *(
        "help",
        "help_all",
        "out",
        "overwrite",
        "run_id",
        "scratch",
        "no_merge",
        "grace",
        "log",
        "format",
        "verbose",
        "debug",
    ),
    "history",
    *("live", "keep_last", "keep_bytes", "metrics_file", "metrics_port", "otlp"),  # of the process that follows the run
    *("on_trigger", "into"),
}
named = pytest.mark.parametrize("name", DECLARATIONS)


def flags(command: str) -> dict[str, argparse.Action]:
    actions = importlib.import_module(f"stashtrace.cli.commands.{command}").parser()._actions
    return {action.dest: action for action in actions}


@named
def test_the_help_shows_each_flag(name: str) -> None:
    declared = DECLARATIONS[name]
    run, env = flags("run").get(name), flags("env").get(name)
    assert (run is not None) == bool(declared.flag)
    assert (env is not None) == bool(declared.flag and not declared.needs_launcher)
    for action in filter(None, (run, env)):
        assert list(action.option_strings) == [declared.flag]
        assert action.help is not None
        assert action.help.startswith(declared.help.partition("{")[0])


@pytest.mark.parametrize("command", ["run", "env"])
def test_no_flag_of_a_recording_is_declared_elsewhere(command: str) -> None:
    assert set(flags(command)) <= set(DECLARATIONS) | OWN_DESTINATIONS


@named
def test_the_environment_page_has_each_variable_and_its_default(name: str) -> None:
    page = (ROOT / "docs/reference/environment.md").read_text(encoding="utf-8")
    rows = {row[1].strip(" `"): row[-2].strip() for row in (line.split("|") for line in page.splitlines()) if row[3:]}
    assert rows[DECLARATIONS[name].variable] == DECLARATIONS[name].default


@named
def test_somebody_reads_each_variable(name: str) -> None:
    assert DECLARATIONS[name].variable in PARSED_BY_HAND | SETTINGS.keys() | READ_BY_PROBES


def read(command: str, *words: str) -> RecordOptions:
    parser = importlib.import_module(f"stashtrace.cli.commands.{command}").parser()
    return RecordOptions.from_arguments(parser.parse_args(words))


EXAMPLES = {
    "steps": "5:",
    "collectors": ("waits", "proc"),
    "stack_hz": 0,
    "nvml_hz": 0,
    "nvml_links": True,
    "kernels": True,
    "kernels_steps": "2:4",
    "event_budget": 0,
    "lookup_hook": True,
    "nccl_source": "events",
    "share": True,
    "idle": True,
    "until_step": 3,
    "staged": "/tmp/list",
    "synthetic_batches": 2,
}


def test_command_lines_say_what_the_options_say() -> None:
    assert EXAMPLES.keys() == {name for name, declared in DECLARATIONS.items() if declared.flag}
    options = RecordOptions(**EXAMPLES)  # type: ignore[arg-type]
    assert read("run", *options.to_arguments()) == options
    assert read("run") == RecordOptions()
    assert RecordOptions().to_arguments() == []
    assert RecordOptions(steps="1:2", share=True).to_arguments() == ["--steps", "1:2", "--share"]


@pytest.mark.parametrize("options", [RecordOptions(kernels="graphs"), RecordOptions(drainer="self")])
def test_what_no_command_line_can_say(options: RecordOptions) -> None:
    with pytest.raises(ValueError, match="cannot be given on a command line"):
        options.to_arguments()


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"nvml_hz": 1001}, "--nvml-hz 1001 is out of range"),
        ({"event_budget": -1}, "--event-budget -1 is out of range"),
        ({"event_budget": 2_000_000_000}, "--event-budget 2000000000 is out of range"),
        ({"until_step": 0}, "--until-step 0 is out of range"),
        ({"sample_ms": 0}, "STASHTRACE_SAMPLE_MS 0 is out of range"),
        ({"nccl_source": "nccl"}, "--nccl-source cannot be 'nccl'"),
        ({"kernels_steps": "7"}, "steps '7' is not a range A:B"),
    ],
)
def test_refuses_impossible_values(option: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)) as error:
        RecordOptions(**option)  # type: ignore[arg-type]
    assert error.value.hint


def test_deep_mode_has_two_ways_in() -> None:
    assert RecordOptions(kernels=True).kernels_steps == "10:13"
    assert RecordOptions(kernels_steps="1:2").kernels is True
    assert RecordOptions(kernels="graphs", kernels_steps="1:2").to_environment({})["STASHTRACE_KERNELS"] == "graphs"
    assert RecordOptions().kernels_steps is None


def test_staged_files_need_a_list_and_a_collector(tmp_path: Path) -> None:
    path = tmp_path / "list"
    options = RecordOptions(staged=str(path))
    with pytest.raises(UsageError, match="no list of staged files"):
        options.to_environment({})
    path.write_bytes(b"nonsense")
    with pytest.raises(FormatError, match="not a list of staged files"):
        options.to_environment({})
    write_staged_list(path, {})
    assert options.to_environment({})["STASHTRACE_STAGED"] == str(path)
    with pytest.raises(UsageError, match="needs the collector posix_io"):
        RecordOptions(staged=str(path), collectors=("waits",)).to_environment({})


def test_run_file_records_what_changes_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert RecordOptions(nvml_hz=5).to_run_facts() == {}
    assert RecordOptions(stack_hz=0).to_run_facts() == {"stack_hz": 0}
    assert RecordOptions(steps="1:2", staged="list", synthetic_batches=2, kernels=True).to_run_facts() == {
        "steps": "1:2",
        "staged": str(tmp_path / "list"),
        "synthetic_batches": 2,
        "kernels_steps": "10:13",
    }
