"""Phases of a real training script: recorded as they happened, and its results untouched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from installed import needs_torch
from traced import TracedRun, run_traced

from stashtrace import analyze
from stashtrace.schema.kinds import BatchPhase, Phase, PhaseFlag, SpanKind, ThreadRole

pytestmark = pytest.mark.torch
needs_torch()

# Each part is named by an annotation, so that a test can cut its rows out of the one run.
SCRIPT = """
    import gc, io, json, os, pickle, sys, threading, time
    import torch
    from torch.utils.checkpoint import checkpoint
    import stashtrace

    torch.manual_seed(1)
    torch.set_num_threads(1)
    results = {}

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(8, 8)
        def forward(self, x):
            return torch.relu(self.inner(x))

    def make():
        torch.manual_seed(2)
        model = torch.nn.Sequential(Block(), Block(), torch.nn.Linear(8, 1))
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def part(function):
        # What compiles is a run of its own.
        if (function.__name__ == "compiled") != ("compiled" in sys.argv):
            return
        with stashtrace.annotate(function.__name__):
            results[function.__name__] = function()

    @part
    def train():
        model, optimizer = make()
        losses = []
        for step in range(4):
            optimizer.zero_grad()
            for micro in range(2):
                loss = torch.nn.functional.mse_loss(model(torch.randn(4, 8)), torch.zeros(4, 1))
                loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        return losses

    @part
    def validate():
        model, _ = make()
        model.eval()
        with torch.no_grad():
            return model(torch.ones(1, 8)).item().hex()

    @part
    def gradients():
        x = torch.ones(3, requires_grad=True)
        first, = torch.autograd.grad((x ** 3).sum(), x, create_graph=True)
        second, = torch.autograd.grad(first.sum(), x)
        return second.tolist()

    @part
    def recompute():
        model, _ = make()
        x = torch.ones(2, 8, requires_grad=True)
        checkpoint(model, x, use_reentrant=False).sum().backward()
        return x.grad.sum().item().hex()

    @part
    def scaler():
        model, optimizer = make()
        scale = torch.amp.GradScaler("cpu", init_scale=4.0)
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scale.scale(model(torch.ones(2, 8)).sum() * factor).backward()
            scale.step(optimizer)
            scale.update()
        return [p.sum().item().hex() for p in model.parameters()]

    @part
    def closure():
        model, _ = make()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
        def evaluate():
            optimizer.zero_grad()
            loss = model(torch.ones(2, 8)).pow(2).sum()
            loss.backward()
            return loss
        return float(optimizer.step(evaluate)).hex()

    @part
    def failing():
        class Bad(torch.nn.Module):
            def forward(self, x):
                raise ValueError("mine")
        model, optimizer = make()
        try:
            torch.nn.Sequential(Bad())(torch.ones(1))
        except ValueError as error:
            message = str(error)
        def refuse():
            raise RuntimeError("no step")
        try:
            optimizer.step(refuse)
        except RuntimeError:
            message += ", no step"
        return message

    @part
    def save():
        model, _ = make()
        torch.save(model.state_dict(), "model.pt")
        return sorted(torch.load("model.pt"))

    @part
    def pickled():
        return pickle.loads(pickle.dumps(torch.ones(4))).tolist()

    @part
    def distributed_checkpoint():
        import torch.distributed.checkpoint as dcp
        model, _ = make()
        state = {"model": model.state_dict()}
        dcp.save(state, checkpoint_id="dcp")
        dcp.load(state, checkpoint_id="dcp")
        return sorted(os.listdir("dcp"))[0]

    @part
    def collect():
        rubbish = [[i] for i in range(200_000)]
        for item in rubbish:
            item.append(item)
        del rubbish, item
        gc.collect()
        return None

    @part
    def second_thread():
        model, _ = make()
        seen = []
        thread = threading.Thread(target=lambda: seen.append(model(torch.ones(1, 8)).item().hex()))
        thread.start(); thread.join()
        return seen

    @part
    def pickling():
        return [pickle.loads(pickle.dumps(f)) is f for f in (torch.save, torch.load)]

    @part
    def scripting():
        model, _ = make()
        traced = torch.jit.trace(model, torch.ones(1, 8))
        from torch.fx import symbolic_trace
        graph = symbolic_trace(model)
        x = torch.ones(1, 8)
        return [traced(x).item().hex(), [n.op for n in graph.graph.nodes], graph(x).item().hex()]

    @part
    def compiled():
        from torch._dynamo.utils import counters
        out = []
        def breaks(x):
            y = x.sin()
            torch._dynamo.graph_break()
            with stashtrace.annotate("inside a graph"):
                return y.cos()
        for kind in ("module", "function", "optimizer", "inner"):
            torch._dynamo.reset(); counters.clear()
            model, optimizer = make()
            if kind == "module":
                run = torch.compile(model, backend="aot_eager")
            elif kind == "function":
                run = torch.compile(lambda x: breaks(model(x)), backend="eager")
            elif kind == "inner":
                model.compile(backend="eager")
                run = model
            else:
                run = model
                optimizer.step = torch.compile(optimizer.step, backend="eager")
            for size in (2, 2, 3, 5):
                optimizer.zero_grad()
                loss = run(torch.ones(size, 8)).sum()
                loss.backward()
                optimizer.step()
                out.append(loss.item().hex())
            stats = counters["stats"]
            out.append([kind, dict(counters["graph_break"]), stats["unique_graphs"], stats["calls_captured"]])
        return out

    results["version"] = torch.__version__
    print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    return run_traced(SCRIPT, tmp_path_factory.mktemp("step"))


@pytest.fixture(scope="module")
def untraced(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    return run_traced(SCRIPT, tmp_path_factory.mktemp("untraced"), traced=False)


@pytest.fixture(scope="module")
def compiled_run(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    return run_traced(SCRIPT, tmp_path_factory.mktemp("compiled"), args=["compiled"], compiles=True)


def phases(run: TracedRun, part: str) -> list[dict[str, Any]]:
    """Phases inside one part of the script, in order."""
    spans = run.trace.spans
    at = run.texts(spans, "name_code").index(part)
    table = run.trace.phases
    inside = (table["begin_ns"] >= spans["begin_ns"][at]) & (table["end_ns"] <= spans["end_ns"][at])
    rows = list(table.take(inside).sort_by("begin_ns").rows())
    for row in rows:
        row["name"] = run.trace.text(row["name_code"])
    return rows


def codes(rows: list[dict[str, Any]]) -> list[Phase]:
    return [Phase(row["phase_code"]) for row in rows]


F, B, OPT = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER


@pytest.mark.parametrize(
    "part",
    [
        "train",
        "validate",
        "gradients",
        "recompute",
        "scaler",
        "closure",
        "failing",
        "save",
        "distributed_checkpoint",
        "second_thread",
        "pickling",
        "scripting",
    ],
)
def test_results_are_equal_to_the_last_bit(run: TracedRun, untraced: TracedRun, part: str) -> None:
    assert run.results()[0][part] == untraced.results()[0][part]


def test_nothing_was_lost(run: TracedRun) -> None:
    assert run.losses() == []
    assert "stashtrace[" not in run.stderr[0], "no message of ours; paths of a checkout may hold the word"


def test_a_step_of_two_micro_batches(run: TracedRun) -> None:
    rows = phases(run, "train")
    assert codes(rows) == [F, B, F, B, OPT] * 4
    assert {row["name"] for row in rows} == {"Sequential", "backward", "AdamW"}
    assert all(row["phase_flags"] == PhaseFlag.TRAINING for row in rows if row["phase_code"] == F)
    ends = np.array([[row["begin_ns"], row["end_ns"]] for row in rows])
    assert (ends[1:, 0] >= ends[:-1, 1]).all(), "phases of one thread follow each other"


def test_cpu_and_run_queue_time_grow_with_the_phases(run: TracedRun) -> None:
    rows = phases(run, "train")
    # The two clocks are read one after the other; an interrupt between the readings is charged to the thread.
    apart_ns = 1_000_000
    for row in rows:
        assert 0 <= row["end_cpu_ns"] - row["begin_cpu_ns"] <= (row["end_ns"] - row["begin_ns"]) + apart_ns
        assert row["end_runqueue_ns"] >= row["begin_runqueue_ns"] >= 0
    begins = [row["begin_cpu_ns"] for row in rows]
    assert begins == sorted(begins)


def test_validation_is_a_forward_without_gradients(run: TracedRun) -> None:
    (row,) = phases(run, "validate")
    assert (row["phase_code"], row["phase_flags"]) == (F, PhaseFlag.NO_GRAD)


def test_autograd_grad_is_backward_too(run: TracedRun) -> None:
    assert codes(phases(run, "gradients")) == [B, B]


def test_recomputed_forward_lies_inside_backward(run: TracedRun) -> None:
    rows = phases(run, "recompute")
    outer = next(row for row in rows if row["phase_code"] == B)
    nested = [row for row in rows if row["phase_flags"] & PhaseFlag.NESTED]
    assert codes(rows)[0] == F
    assert nested
    assert all(row["phase_code"] == F and outer["begin_ns"] <= row["begin_ns"] < outer["end_ns"] for row in nested)


def test_an_update_that_the_scaler_skips_is_recorded(run: TracedRun) -> None:
    assert codes(phases(run, "scaler")) == [F, B, OPT, F, B, Phase.UPDATE_SKIPPED, F, B, OPT]


def test_a_closure_runs_inside_its_optimizer_step(run: TracedRun) -> None:
    rows = phases(run, "closure")
    assert codes(rows)[0] == OPT
    assert codes(rows).count(OPT) == 1
    assert set(codes(rows)[1:]) == {F, B}
    assert max(row["end_ns"] for row in rows) == rows[0]["end_ns"]


def test_what_raises_is_recorded_and_leaves_nothing_open(run: TracedRun) -> None:
    rows = phases(run, "failing")
    assert codes(rows) == [F], "an optimizer step that raises never ends"
    assert rows[0]["phase_flags"] & PhaseFlag.FAILED


def test_checkpoints(run: TracedRun) -> None:
    assert codes(phases(run, "save")) == [Phase.CHECKPOINT, Phase.CHECKPOINT_LOAD]
    assert codes(phases(run, "pickled")) == [], "torch pickles storages with torch.save"
    rows = phases(run, "distributed_checkpoint")
    assert [row["name"] for row in rows] == ["dcp.save", "dcp.load"], "torch.save inside dcp.save is part of it"


def test_a_collection_is_a_span_with_its_generation(run: TracedRun) -> None:
    table = run.trace.spans
    pauses = table.take(table["kind_code"] == SpanKind.GC)
    assert 2 in pauses["value"].tolist()
    assert (pauses["end_ns"] - pauses["begin_ns"]).min() >= 100_000


def test_forward_on_another_thread_has_a_separate_track(run: TracedRun) -> None:
    (row,) = phases(run, "second_thread")
    assert row["track_id"] != phases(run, "train")[0]["track_id"]


def test_the_thread_of_the_optimizer_is_the_step_thread(run: TracedRun) -> None:
    tracks = run.trace.tracks
    steps = tracks["track_id"][tracks["role_code"] == ThreadRole.STEP]
    assert steps.tolist() == [phases(run, "train")[0]["track_id"]]


@pytest.mark.thorough
def test_results_of_a_compiled_model_are_equal(compiled_run: TracedRun, tmp_path: Path) -> None:
    untraced = run_traced(SCRIPT, tmp_path, args=["compiled"], compiles=True, traced=False)
    assert compiled_run.results()[0]["compiled"] == untraced.results()[0]["compiled"]


@pytest.mark.thorough
def test_compiled_calls_are_phases_like_others(compiled_run: TracedRun) -> None:
    rows = phases(compiled_run, "compiled")
    own = [row for row in rows if not row["phase_flags"] & PhaseFlag.NESTED]  # compiling calls autograd itself
    assert codes(own).count(B) == 16
    assert codes(own).count(F) >= 12, "a module called inside a compiled function may be no call any more"
    assert codes(own).count(OPT) == 12, "a compiled optimizer step has no hooks any more"
    graphs = [entry for entry in compiled_run.results()[0]["compiled"] if isinstance(entry, list)]
    assert [entry[0] for entry in graphs] == ["module", "function", "optimizer", "inner"]
    assert all(entry[2] > 0 for entry in graphs), "something must have been compiled for the comparison to mean a thing"


def test_facts_about_the_process(run: TracedRun) -> None:
    facts = run.facts()
    assert facts["torch_version"] == run.results()[0]["version"]
    assert facts["omp_num_threads"] == "1"
    assert facts["torch_threads_set"] == "1", "the last number that the script sets"
    assert int(facts["probe_cost_ns"]) > 0


def test_a_window_of_steps_whose_work_is_in_closures_begins_and_ends_with_whole_ones(tmp_path: Path) -> None:
    run = run_traced(
        """
        import json, torch
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def evaluate():
            optimizer.zero_grad()
            loss = model(torch.ones(1, 2)).sum()
            loss.backward()
            return loss
        for step in range(6):
            optimizer.step(evaluate)
        print(json.dumps("done"))
        """,
        tmp_path,
        steps="2:4",
        collectors=["torch_step"],
    )
    table = run.trace.phases.sort_by("begin_ns")
    assert [Phase(code) for code in table["phase_code"]] == [OPT, F, B] * 2
    steps = analyze(run.trace, "steps")
    assert len(steps) == 2
    assert run.losses() == []


@pytest.mark.parametrize(
    ("workers", "closures"),
    [(1, False), *(pytest.param(*case, marks=pytest.mark.thorough) for case in ((0, False), (0, True), (1, True)))],
)
def test_a_window_holds_whole_steps_with_their_batches(tmp_path: Path, workers: int, closures: bool) -> None:
    """Steps outside are counted; workers, which know of no step, record all batches."""
    run = run_traced(
        f"""
        import json, torch
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def train(batch):
            optimizer.zero_grad()
            loss = model(batch).sum()
            loss.backward()
            return loss
        def main():
            for batch in torch.utils.data.DataLoader(torch.ones(12, 2), batch_size=2, num_workers={workers}):
                if {closures}:
                    optimizer.step(lambda: train(batch))
                else:
                    train(batch)
                    optimizer.step()
            print(json.dumps("done"))
        main()
        """,
        tmp_path,
        steps="2:4",
        collectors=["torch_step", "torch_dataloader"],
    )
    phases = run.trace.phases.sort_by("begin_ns")
    assert codes(list(phases.rows())) == ([OPT, F, B] if closures else [F, B, OPT]) * 2
    batches = run.trace.batches
    assert (batches["phase_code"] == BatchPhase.FETCH).sum() == (6 if workers else 2)
    waits = batches.take(batches["phase_code"] == BatchPhase.WAIT)
    assert waits["batch_index"].tolist() == [2, 3]
    steps = analyze(run.trace, "steps")
    assert len(steps) == 2
    assert steps["begin_ns"].tolist() == waits["begin_ns"].tolist()[:1] + steps["end_ns"].tolist()[:1]
    assert run.losses() == []
