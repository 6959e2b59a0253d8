"""The user's line of a stack, and the call of a library below it."""

from __future__ import annotations

import pytest
from builders import MS, TraceBuilder
from stack_rows import FORKED, TORCH, stack_of

from stashtrace.analysis.intervals import int64
from stashtrace.analysis.lines.user_frames import place_of, places

MAIN = "main /jobs/train.py:9"
PACKAGES = "/venv/lib/python3.11/site-packages"
BACKWARD, HOOK = f"backward {TORCH}/_tensor.py:6", "hook /jobs/train.py:4"
OURS, CLONE = f"{PACKAGES}/stashtrace", "/home/me/stashtrace"
PROBE = f"wrapper {CLONE}/stashtrace/probes/stacks.py:65"


def place(*calls: str, worker: bool = False, also: tuple[str, ...] = ()) -> tuple[str, str]:
    """Words for the place of a stack, and its leaf. ``also``: another stack of the same process."""
    build = TraceBuilder()
    process = build.rank(0).phase("optimizer", 0, MS)
    process = process.worker(0) if worker else process
    stack_of(process, *also)
    stack = stack_of(process, *calls)
    trace = build.trace()
    found = places(trace)
    at = found.of(int64([process.process_id]), int64([stack]))[0]
    if at < 0:
        return "", ""
    function, path, leaf = (trace.text(c[at]) for c in (found.function_code, found.path_code, found.leaf_code))
    return place_of(function, path, int(found.line[at])), leaf


CALLS_AND_PLACES = [
    ((MAIN,), "main (train.py:9)", ""),
    ((MAIN, "decode /jobs/images.py:67"), "decode (images.py:67)", ""),
    ((MAIN, f"Image.convert {PACKAGES}/PIL/Image.py:1067"), "main (train.py:9)", "PIL Image.convert"),
    ((MAIN, BACKWARD, HOOK, "loads /usr/lib/python3.11/json/__init__.py:346"), "hook (train.py:4)", "json loads"),
    ((MAIN, "realpath <frozen posixpath>:416"), "main (train.py:9)", "posixpath realpath"),
    ((MAIN, "iter /usr/lib/python3/dist-packages/six.py:3"), "main (train.py:9)", "six iter"),
    ((MAIN, "forward <eval_with_key>.5:3"), "main (train.py:9)", "eval_with_key forward"),
    (("<module> <string>:1", "read /usr/lib/python3.11/gzip.py:5"), "<string>:1", "gzip read"),
    (("cell <ipython-input-3-9f1c>:2",), "cell (<ipython-input-3-9f1c>:2)", ""),
    (("fit /venv/bin/train:8", f"fit {TORCH}/loop.py:3"), "fit (loop.py:3)", ""),
    ((MAIN, f"wrapper {OURS}/probes/torch/step.py:144"), "main (train.py:9)", ""),
    ((MAIN, BACKWARD, f"wrapper {OURS}/callbacks.py:4"), "main (train.py:9)", "torch backward"),
    ((MAIN, PROBE), "main (train.py:9)", ""),
    ((f"main {CLONE}/examples/train.py:9", PROBE), "main (train.py:9)", ""),
    ((f"main {CLONE}/train.py:9", f"step {CLONE}/stashtrace/__init__.py:65"), "main (train.py:9)", ""),
    ((f"begin {OURS}/probes/recorder.py:1",), "", ""),
]


@pytest.mark.parametrize(("calls", "line", "leaf"), CALLS_AND_PLACES)
def test_place_and_leaf(calls: tuple[str, ...], line: str, leaf: str) -> None:
    assert place(*calls) == (line, leaf)


def test_the_folder_that_holds_torch_holds_libraries() -> None:
    """It may be any, as with `pip --target`; a script of the job next to a checkout of torch is the job's."""
    module, solver = "Module._call_impl /opt/deps/torch/nn/modules/module.py:1790", "solve /opt/deps/sympy/solvers.py:5"
    assert place(MAIN, module) == ("main (train.py:9)", "torch Module._call_impl")
    assert place(MAIN, solver, also=(MAIN, module)) == ("main (train.py:9)", "sympy solve")
    script = "<module> /opt/deps/jobs/train.py:3"
    assert place(script, "fit /opt/deps/jobs/loop.py:7", module) == ("fit (loop.py:7)", "torch Module._call_impl")


def test_all_files_of_a_package_that_has_our_probes_are_ours() -> None:
    assert place(MAIN, f"callback {CLONE}/stashtrace/callbacks.py:7", also=(MAIN, PROBE)) == ("main (train.py:9)", "")


def test_a_wrapper_that_has_the_file_of_what_it_calls_is_ours() -> None:
    backward, engine = f"backward {TORCH}/_tensor.py:6", f"run {TORCH}/graph.py:9"
    wrapper = f"make.<locals>.run {TORCH}/graph.py:9"
    assert place(MAIN, backward, wrapper, also=(MAIN, backward, wrapper, engine)) == (
        "main (train.py:9)",
        "torch backward",
    )


def test_a_worker_is_cut_at_its_loop() -> None:
    item = "ImageSet.__getitem__ /jobs/images.py:88"
    assert place(*FORKED, item, worker=True) == ("ImageSet.__getitem__ (images.py:88)", "")
    assert place(*FORKED, worker=True) == ("_MapDatasetFetcher.fetch (fetch.py:54)", "")
    assert place(*FORKED[:4], worker=True) == ("_worker_loop (worker.py:374)", "")
    assert place(*FORKED) == ("main (train.py:80)", "torch _MapDatasetFetcher.fetch"), "of a rank all frames count"


def test_an_unreadable_stack_has_no_place() -> None:
    build = TraceBuilder()
    rank = build.rank(0).phase("optimizer", 0, MS)
    stack_of(rank, MAIN)
    assert places(build.trace()).of(int64([0, 0]), int64([0, 77])).tolist() == [-1, -1]
    assert places(TraceBuilder().trace()).of(int64([0]), int64([5])).tolist() == [-1]


def test_frames_that_call_each_other_in_a_circle_have_no_place() -> None:
    build = TraceBuilder()
    rank = build.rank(0).phase("optimizer", 0, MS)
    stack = stack_of(rank, f"a {OURS}/probes/a.py:1", f"b {OURS}/probes/a.py:2")
    build.rows["frames"][0]["caller_key"] = stack
    assert places(build.trace()).of(int64([0]), int64([stack])).tolist() == [-1]
