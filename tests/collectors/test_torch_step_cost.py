"""What the torch probes run in the user's process, counted in Python frames: of a module call, of a step."""

from __future__ import annotations

import json
from typing import Any

import pytest
from installed import needs_torch
from traced import TracedRun, run_traced

pytestmark = pytest.mark.torch
needs_torch()

# Wrappers of the probes carry the file of what they wrap, so all frames are counted, ours and torch's, and compared
# with those of the same script without the recorder.
SCRIPT = """
    import gc, json, os, pickle, sys, threading
    import torch

    gc.disable()
    results = {}

    class Leaf(torch.nn.Module):
        def forward(self, x):
            return x

    class Deep(torch.nn.Module):
        def __init__(self, leaves):
            super().__init__()
            self.leaves = torch.nn.ModuleList(Leaf() for _ in range(leaves))
        def forward(self, x):
            for leaf in self.leaves:
                x = leaf(x)
            return x

    def frames(function):
        count = 0
        def seen(frame, event, arg):
            nonlocal count
            count += event == "call"
        function()
        sys.setprofile(seen)
        try:
            function()
        finally:
            sys.setprofile(None)
        return count

    x = torch.ones(1)
    results["forward"] = {leaves: frames(lambda m=Deep(leaves): m(x)) for leaves in (0, 100, 300)}

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def step():
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    results["step"] = frames(step)

    call = vars(torch.nn.Module)["__call__"]
    results["same_function"] = call is torch.nn.Module._wrapped_call_impl
    results["attributes"] = sorted(vars(call))
    results["code"] = [call.__code__.co_name, call.__code__.co_filename == torch.nn.modules.module.__file__]

    # A forward that forks: the child's next calls are outermost again, and so are the parent's.
    class Forks(torch.nn.Module):
        def forward(self, x):
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            return x
    Forks()(x)

    class Super(torch.nn.Module):
        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs)
        def forward(self, x, scale=1):
            return x * scale
    results["super"] = [Super()(x).item(), Super()(x, scale=3).item(), Super()(x=x, scale=4).item()]

    class Inner(torch.nn.Module):
        def forward(self, x):
            raise KeyError("mine")
    class Catches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()
        def forward(self, x):
            try:
                return self.inner(x)
            except KeyError as error:
                return error.__context__ is None and str(error)
    results["caught"] = Catches()(x)
    try:
        Inner()(x)
    except KeyError as error:
        results["raised"] = [str(error), error.__context__ is None, error.__traceback__.tb_next is not None]
    try:
        torch.nn.Module.__call__()
    except TypeError as error:
        results["nothing"] = str(error)

    class Generates(torch.nn.Module):
        def forward(self, x):
            yield from (x, x)
    results["generated"] = len(list(Generates()(x)))

    threads = [threading.Thread(target=Deep(5), args=(x,)) for _ in range(3)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    return run_traced(SCRIPT, tmp_path_factory.mktemp("traced"))


@pytest.fixture(scope="module")
def untraced(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    return run_traced(SCRIPT, tmp_path_factory.mktemp("untraced"), traced=False)


def both(run: TracedRun, untraced: TracedRun, name: str) -> tuple[Any, Any]:
    return run.results()[0][name], untraced.results()[0][name]


def test_an_inner_module_call_runs_no_python_frame_of_ours(run: TracedRun, untraced: TracedRun) -> None:
    ours, plain = both(run, untraced, "forward")
    added = {leaves: ours[leaves] - plain[leaves] for leaves in plain}
    assert added["0"] > 0, "the outermost call is not seen at all"
    assert added["100"] == added["300"] == added["0"], json.dumps({"traced": ours, "untraced": plain})


def test_a_step_runs_few_python_frames_of_ours(run: TracedRun, untraced: TracedRun) -> None:
    ours, plain = both(run, untraced, "step")
    # Forward, backward, optimizer: begins and ends and its name, the step window, and what they ask torch; no frame per
    # operator.
    assert 0 < ours - plain <= 21


@pytest.mark.parametrize(
    "name", ["same_function", "attributes", "code", "super", "caught", "raised", "nothing", "generated"]
)
def test_a_module_call_looks_as_if_it_were_not_watched(run: TracedRun, untraced: TracedRun, name: str) -> None:
    ours, plain = both(run, untraced, name)
    assert ours == plain


def test_outermost_calls_of_every_kind_are_forwards(run: TracedRun) -> None:
    phases = run.trace.phases
    names = [run.trace.text(code) for code in phases["name_code"]]
    expected = {"Forks": 1, "Super": 3, "Catches": 1, "Inner": 1, "Generates": 1, "Leaf": 0, "Deep": 3 * 2 + 3}
    assert {name: names.count(name) for name in expected} == expected
    assert len(set(phases["track_id"].tolist())) == 4, "the main thread and three others"
    assert run.losses() == []
