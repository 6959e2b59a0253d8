"""What is said of a child that a signal ended."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from builders import TraceBuilder

from stashtrace import analyze
from stashtrace.analysis.findings import summarize
from stashtrace.probes import child_ends, native, recorder
from stashtrace.summary.style import Style
from stashtrace.summary.summary_text import render

V2 = {"/proc/self/cgroup": "0::/job", "/sys/fs/cgroup/job/memory.events": "low 0\noom 3\noom_kill {}\n"}
V1 = {
    "/proc/self/cgroup": "4:cpu,memory:/job\n0::/\n",
    "/sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n",
}
HOST = {"/proc/vmstat": "nr_free_pages 12\noom_kill {}\n"}


@pytest.fixture
def sentence(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, dict[str, str], int], str]:
    """The line of the summary about a child that ended by a signal, where the files of the kernel count ``kills``."""

    def recorded(number: int, files: dict[str, str], kills: int) -> str:
        facts: list[tuple[str, str]] = []
        monkeypatch.setattr(child_ends, "_noted", set())
        monkeypatch.setattr(child_ends, "_read", lambda path: files.get(path, "").format(kills))
        monkeypatch.setattr(child_ends, "_KILLS_BEFORE", 2)
        monkeypatch.setattr(recorder, "record_fact", lambda key, value: facts.append((key, value)))
        for name in ("collector_code", "code"):
            monkeypatch.setattr(recorder, name, lambda *_: 0)
        for name in ("report_loss", "flush"):
            monkeypatch.setattr(native, name, lambda *_: None)
        child_ends.note("torch_dataloader", 4711, -number, "worker 0")
        ((key, value),) = facts
        build = TraceBuilder()
        build.rank(0)
        key_code, value_code = build.strings.code(key), build.strings.code(value)
        build.add("metadata", process_id=0, key_code=key_code, value_code=value_code)
        trace = build.trace()
        assert analyze(trace, "killed")["sender"].tolist() == [value.split()[1]]
        (line,) = [
            line
            for line in " ".join(render(summarize(trace), Style(), "x").split()).split("  ")
            if "(pid 4711)" in line
        ]
        return line

    return recorded


@pytest.mark.parametrize("files", [V2, V1, HOST, V1 | HOST])
def test_memory_is_named_where_the_kernel_has_ended_processes_for_it(
    sentence: Callable[[int, dict[str, str], int], str], files: dict[str, str]
) -> None:
    assert "SIGKILL; the kernel ended a process for want of memory meanwhile" in sentence(signal.SIGKILL, files, 3)
    assert "memory" not in sentence(signal.SIGKILL, files, 2), "those were before"
    assert "memory" not in sentence(signal.SIGSEGV, files, 3), "the kernel does not send that"


def test_without_the_kernels_files_nothing_is_said_of_memory(
    sentence: Callable[[int, dict[str, str], int], str],
) -> None:
    assert "was killed by SIGKILL" in sentence(signal.SIGKILL, {}, 9)
    assert "memory" not in sentence(signal.SIGKILL, {}, 9)


def test_the_kills_in_this_group_count_and_not_those_of_the_host(
    sentence: Callable[[int, dict[str, str], int], str],
) -> None:
    own = {**V2, "/sys/fs/cgroup/job/memory.events": "oom_kill 2\n"}
    assert "memory" not in sentence(signal.SIGKILL, own | HOST, 3)
