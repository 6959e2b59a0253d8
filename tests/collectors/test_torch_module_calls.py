"""What programs do to modules and to `nn.Module.__call__`, with and without the recorder: the same results.

Both runs end with one line of JSON; each part of it is a test. Compilers are those that need no C++ compiler.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from installed import needs_torch
from traced import TracedRun, run_traced

pytestmark = pytest.mark.torch
needs_torch()

SCRIPT = """
    import copy, io, json, pickle, threading
    from collections import Counter
    import torch
    import torch.utils.checkpoint
    from torch import fx, nn

    results = {}

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
        def forward(self, x):
            return torch.relu(self.linear(x)) + x

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block(), Block()])
        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x.sum()

    def made():
        torch.manual_seed(0)
        return Model()

    rows = torch.arange(8.0).reshape(2, 4) / 8

    def losses(model, call=None, steps=3):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        for _ in range(steps):
            loss = (model if call is None else call)(rows)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(float(loss.detach()).hex())
        return found

    results["eager"] = losses(made())

    # Compiled: the losses, how many graphs, and what stands in them.
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model = made()
        found = losses(model, torch.compile(model, backend=backend, fullgraph=True))
        counted = torch._dynamo.utils.counters
        results["compiled_" + backend] = [found, dict(counted["stats"]), dict(counted["graph_break"])]
    torch._dynamo.reset()
    graphs = []
    def keeps(graph, inputs):
        graphs.append([[node.op, getattr(node.target, "__name__", str(node.target))] for node in graph.graph.nodes])
        return graph
    model = made()
    torch.compile(model, backend=keeps)(rows)
    model.compile(backend=keeps)
    model(rows)
    explained = torch._dynamo.explain(made())(rows)
    results["graphs"] = [graphs, explained.graph_count, explained.graph_break_count]

    traced = fx.symbolic_trace(made())
    results["fx"] = [str(traced.graph), losses(traced)]
    class Leaves(fx.Tracer):
        def is_leaf_module(self, module, name):
            return isinstance(module, Block)
    results["fx_leaves"] = str(Leaves().trace(made()))
    results["export"] = str(torch.export.export(made(), (rows,)).graph)

    scripted = torch.jit.script(Block())
    results["script"] = [[node.kind() for node in scripted.graph.nodes()], scripted.code]
    recorded = torch.jit.trace(made(), rows)
    results["trace"] = [recorded.code, float(recorded(rows).detach()).hex()]
    kept = io.BytesIO()
    torch.jit.save(recorded, kept)
    kept.seek(0)
    results["trace_saved"] = torch.jit.load(kept).code

    # Copies, also of what refers to the function itself.
    results["deepcopy"] = losses(copy.deepcopy(made()))
    results["pickled"] = losses(pickle.loads(pickle.dumps(made())))
    call = nn.Module.__call__
    results["function_copies"] = [
        copy.copy(call) is call, copy.deepcopy(call) is call, len(pickle.dumps(nn.Module)),
        call.__qualname__, call.__module__, sorted(vars(nn.Module)), sorted(vars(call)),
    ]
    kept = io.BytesIO()
    torch.save(made(), kept)
    kept.seek(0)
    results["saved"] = losses(torch.load(kept, weights_only=False))

    # Replicas on threads, as nn.DataParallel runs them.
    def replica(model, into, index):
        with torch.enable_grad():
            into[index] = float(model(rows).detach()).hex()
    replicas, values = [copy.deepcopy(made()) for _ in range(4)], [None] * 4
    threads = [threading.Thread(target=replica, args=(m, values, i)) for i, m in enumerate(replicas)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    results["threads"] = values
    results["parallel_apply"] = float(nn.DataParallel(made())(rows).detach()).hex()

    class Checkpointed(Model):
        def forward(self, x, reentrant):
            for block in self.blocks:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=reentrant)
            return x.sum()
    for reentrant in (False, True):
        torch.manual_seed(0)
        model = Checkpointed()
        given = rows.clone().requires_grad_()
        model(given, reentrant).backward()
        results["checkpoint_" + str(reentrant)] = [
            [p.grad.tolist() for p in model.parameters()], given.grad.tolist()]

    # Hooks of every kind, in their order, with what they change and what they raise.
    seen = []
    model = made()
    block = model.blocks[0]
    block.register_forward_pre_hook(lambda m, args: seen.append("pre") or (args[0] * 2,))
    block.register_forward_pre_hook(lambda m, args, kwargs: seen.append("pre kw"), with_kwargs=True)
    block.register_forward_hook(lambda m, args, out: seen.append("post") or out + 1)
    block.register_full_backward_pre_hook(lambda m, grads: seen.append("backward pre"))
    block.register_full_backward_hook(lambda m, into, out: seen.append("backward"))
    every = nn.modules.module.register_module_forward_hook(lambda m, args, out: seen.append(type(m).__name__))
    given = rows.clone().requires_grad_()
    model(given).backward()
    every.remove()
    def always(m, args, out):
        seen.append("always")
    block.register_forward_hook(always, always_call=True)
    def refuses(m, args):
        raise ValueError("refused by a hook")
    handle = block.register_forward_pre_hook(refuses)
    try:
        model(rows)
    except ValueError as error:
        seen.append(str(error))
        frames, at = [], error.__traceback__
        while at is not None:
            frames.append(at.tb_frame.f_code.co_name)
            at = at.tb_next
        seen.append(frames)
    results["hooks"] = seen

    # Subclasses and instances with a call of their own.
    class Calls(Block):
        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs) * 2
    class Ignores(Block):
        def __call__(self, x):
            return self.forward(x)
    class Hidden(Block):
        pass
    Hidden.__call__ = lambda self, x: nn.Module.__call__(self, x) + 3
    torch.manual_seed(0)
    results["overridden"] = [kind()(rows).tolist() for kind in (Calls, Ignores, Hidden)]

    # A patch of the user's on top, and one that is taken off again, compiled and not.
    ours, counted = nn.Module.__call__, Counter()
    def patched(self, *args, **kwargs):
        counted[type(self).__name__] += 1
        return ours(self, *args, **kwargs)
    nn.Module.__call__ = patched
    results["patched_after"] = [losses(made()), dict(counted)]
    nn.Module.__call__ = ours
    results["unpatched"] = [losses(made()), dict(counted), nn.Module.__call__ is ours]
    print(json.dumps(results))
"""

# The user's patch of torch's module comes first: before `import torch` is done, and so before the probes.
BEFORE = """
    import builtins, json, sys
    from collections import Counter

    counted = Counter()
    class Waits:
        def find_spec(self, name, path=None, target=None):
            module = sys.modules.get("torch.nn.modules.module")
            if module is not None and hasattr(module, "Module") and not counted:
                counted["patched"] = 1
                theirs = module.Module.__call__
                def call(self, *args, **kwargs):
                    counted[type(self).__name__] += 1
                    return theirs(self, *args, **kwargs)
                module.Module.__call__ = call
            return None
    sys.meta_path.insert(0, Waits())
    import torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    out = model(torch.ones(1, 3)).tolist()
    print(json.dumps({"out": out, "counted": counted, "name": torch.nn.Module.__call__.__name__}))
"""

# What the results of SCRIPT are called.
PARTS = [
    "eager",
    "compiled_eager",
    "compiled_aot_eager",
    "graphs",
    "fx",
    "fx_leaves",
    "export",
    "script",
    "trace",
    "trace_saved",
    "deepcopy",
    "pickled",
    "function_copies",
    "saved",
    "threads",
    "parallel_apply",
    "checkpoint_False",
    "checkpoint_True",
    "hooks",
    "overridden",
    "patched_after",
    "unpatched",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    return run_traced(SCRIPT, tmp_path_factory.mktemp("traced"), compiles=True)


@pytest.fixture(scope="module")
def untraced(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    return run_traced(SCRIPT, tmp_path_factory.mktemp("untraced"), compiles=True, traced=False)


@pytest.mark.thorough
@pytest.mark.parametrize("part", PARTS)
def test_the_program_sees_no_difference(run: TracedRun, untraced: TracedRun, part: str) -> None:
    assert run.results()[0][part] == untraced.results()[0][part]


@pytest.mark.thorough
def test_all_parts_are_compared(untraced: TracedRun) -> None:
    assert sorted(untraced.results()[0]) == sorted(PARTS)


def test_copies_and_compiled_models_train_the_same_way(run: TracedRun) -> None:
    results = run.results()[0]
    assert (
        results["eager"] == results["deepcopy"] == results["pickled"] == results["saved"] == results["patched_after"][0]
    )
    assert len(set(results["threads"])) == 1
    assert results["patched_after"][1]["Block"] == 6


def test_the_recorder_stands_below_and_sees_them(run: TracedRun) -> None:
    assert run.losses() == []
    assert "stashtrace[" not in run.stderr[0], "no message of ours; paths of a checkout may hold the word"
    names = run.texts(run.trace.phases, "name_code")
    # Three steps each: eager, copied, pickled, saved, patched and not, at the least.
    assert names.count("Model") >= 18


@pytest.mark.thorough
def test_a_patch_before_ours_is_what_we_watch(tmp_path: Path) -> None:
    run, untraced = run_traced(BEFORE, tmp_path / "traced"), run_traced(BEFORE, tmp_path / "untraced", traced=False)
    assert run.results() == untraced.results()
    assert untraced.results()[0]["counted"]["Sequential"] == 1, "the patch was in place before the probes"
    assert run.texts(run.trace.phases, "name_code") == ["Sequential"]
