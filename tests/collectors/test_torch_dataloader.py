"""The life of batches through real DataLoaders of every kind, and what the job sees of us: nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from installed import needs_torch
from traced import TracedRun, run_traced

from stashtrace.schema.kinds import BatchPhase, ProcessRole, SpanKind, ThreadRole, WaitOp
from stashtrace.schema.table import Table

pytestmark = pytest.mark.torch
needs_torch()

SCRIPT = """
    import gc, json, os, random, sys, time, weakref
    import torch
    from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler
    import stashtrace

    class Squares(Dataset):
        def __len__(self):
            return 12
        def __getitem__(self, i):
            if i == 7:
                time.sleep(0.02)
            return torch.tensor([i * i, random.randrange(1000), int(torch.randint(1000, ()))])

    class Uneven(IterableDataset):
        def __iter__(self):
            info = torch.utils.data.get_worker_info()
            return iter(range(3 if info is None else 2 + 5 * info.id))

    class Broken(Squares):
        def __getitem__(self, i):
            if i == 5:
                raise ValueError("mine")
            return i

    class Nested(Squares):
        def __getitem__(self, i):
            return sum(int(x.sum()) for x in DataLoader([i, i + 1], batch_size=1))

    def slow_collate(samples):
        time.sleep(0.005)
        return torch.stack(samples)

    def listed(loader):
        return [batch.tolist() if hasattr(batch, "tolist") else batch for batch in loader]

    def main():
        results = {}
        def part(name, function):
            torch.manual_seed(3); random.seed(3)
            with stashtrace.annotate(name):
                results[name] = function()
            gc.collect()

        part("alone", lambda: listed(DataLoader(Squares(), batch_size=4)))
        # Each worker but a forked one imports torch.
        for context, workers in {"fork": 2, "spawn": 1, "forkserver": 1}.items():
            part(context, lambda: listed(DataLoader(Squares(), batch_size=4, num_workers=workers,
                                                    collate_fn=slow_collate, multiprocessing_context=context)))
        def epochs():
            loader = DataLoader(Squares(), batch_size=4, num_workers=2, persistent_workers=True, shuffle=True)
            return [listed(loader) for _ in range(3)]
        part("persistent", epochs)
        def same_seed():
            out = []
            for _ in range(2):
                torch.manual_seed(5)
                out.append(listed(DataLoader(Squares(), batch_size=6, num_workers=1)))
                torch.manual_seed(5)
                out.append(listed(DataLoader(Squares(), batch_size=6)))
            return out
        part("same_seed", same_seed)
        part("iterable", lambda: listed(DataLoader(Uneven(), batch_size=2, num_workers=2)))
        part("no_batches", lambda: listed(DataLoader(Squares(), batch_size=None, num_workers=1)))
        part("sampler", lambda: listed(DataLoader(Squares(), num_workers=1,
                                                  batch_sampler=BatchSampler(SequentialSampler(range(9)), 4, False))))
        def broken_off():
            for batch in DataLoader(Squares(), batch_size=2, num_workers=2):
                return batch.tolist()
        part("broken_off", broken_off)
        def broken():
            try:
                listed(DataLoader(Broken(), batch_size=4, num_workers=2))
            except ValueError as error:
                return str(error).splitlines()[-1]
        part("broken", broken)
        part("nested", lambda: listed(DataLoader(Nested(), batch_size=6, num_workers=1)))
        if "in_order" in DataLoader.__init__.__annotations__:
            # Which worker draws the random columns is a race here.
            part("unordered", lambda: sorted(row[0] for batch in listed(
                DataLoader(Squares(), batch_size=2, num_workers=2, in_order=False)) for row in batch))
        class Pinnable(list):
            def pin_memory(self):
                return Pinnable(f"pinned {x}" for x in self)
        def pinned():
            # What a loader with pin_memory=True does on a machine that has an accelerator.
            iterator = iter(DataLoader(list("abcd"), batch_size=2, collate_fn=Pinnable))
            iterator._pin_memory, iterator._pin_memory_device = True, None
            return [list(batch) for batch in iterator]
        part("pinned", pinned)
        def released():
            data, gone = Squares(), []
            watch = weakref.finalize(data, gone.append, True)
            gc.disable()
            listed(DataLoader(data, batch_size=4))
            listed(DataLoader(data, batch_size=4, num_workers=1))
            del data
            gc.enable()
            return gone
        part("released", released)
        def descriptors():
            before = len(os.listdir("/proc/self/fd"))
            gc.disable()
            for _ in range(5):
                listed(DataLoader(Squares(), batch_size=6, num_workers=1))
            after = len(os.listdir("/proc/self/fd"))
            gc.enable()
            return after - before
        part("descriptors", descriptors)
        results["replay"] = [name for name in sys.modules if "torch_replay" in name or "torch.replay" in name]
        print(json.dumps(results))

    if __name__ == "__main__":
        main()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    return run_traced(SCRIPT, tmp_path_factory.mktemp("loader"))


@pytest.fixture(scope="module")
def untraced(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    return run_traced(SCRIPT, tmp_path_factory.mktemp("untraced"), traced=False)


def part(run: TracedRun, name: str) -> Table:
    """Batch rows that begin inside one part of the script, in order of time."""
    spans = run.trace.spans
    at = run.texts(spans, "name_code").index(name)
    table = run.trace.batches
    inside = (table["begin_ns"] >= spans["begin_ns"][at]) & (table["begin_ns"] <= spans["end_ns"][at])
    return table.take(inside).sort_by("begin_ns")


def of(table: Table, phase: BatchPhase, **where: Any) -> Table:
    mask = table["phase_code"] == phase
    for name, value in where.items():
        mask &= table[name] == value
    return table.take(mask)


def assert_joined(rows: Table, batches: int, workers: int) -> None:
    """Each batch has its whole life, in order, under one loader id, made by the worker the wait names."""
    waits = of(rows, BatchPhase.WAIT)
    waits = waits.take(waits["batch_index"] >= 0)
    assert waits["batch_index"].tolist() == list(range(batches))
    (loader,) = set(waits["loader_id"].tolist())
    for index, worker in zip(range(batches), waits["worker_id"].tolist(), strict=True):
        assert worker == index % workers
        life = {}
        for phase in (
            BatchPhase.INDEX_WAIT,
            BatchPhase.FETCH,
            BatchPhase.COLLATE,
            BatchPhase.PUT,
            BatchPhase.SERIALIZE,
            BatchPhase.RECEIVE,
            BatchPhase.WAIT,
        ):
            found = of(rows, phase, batch_index=index, loader_id=loader)
            assert len(found) == 1, (phase, index)
            life[phase] = (int(found["begin_ns"][0]), int(found["end_ns"][0]))
            if phase not in (BatchPhase.RECEIVE, BatchPhase.WAIT):
                assert found["worker_id"][0] == worker
        fetch, collate = life[BatchPhase.FETCH], life[BatchPhase.COLLATE]
        assert life[BatchPhase.INDEX_WAIT][1] <= fetch[0] <= collate[0] < collate[1] <= fetch[1]
        assert fetch[1] <= life[BatchPhase.PUT][0]
        # Handed over between the moment it was put and the moment it was unpickled.
        assert life[BatchPhase.PUT][0] <= life[BatchPhase.SERIALIZE][0] <= life[BatchPhase.SERIALIZE][1]
        assert life[BatchPhase.SERIALIZE][0] <= life[BatchPhase.RECEIVE][1] <= life[BatchPhase.WAIT][1]


PARTS = [
    "alone",
    "fork",
    "spawn",
    "forkserver",
    "persistent",
    "same_seed",
    "iterable",
    "no_batches",
    "sampler",
    "broken_off",
    "broken",
    "nested",
    "unordered",
    "pinned",
    "released",
]


@pytest.mark.thorough
@pytest.mark.parametrize("name", PARTS)
def test_batches_are_the_same_with_and_without_us(run: TracedRun, untraced: TracedRun, name: str) -> None:
    assert run.results()[0].get(name) == untraced.results()[0].get(name)


def test_nothing_was_lost_and_nothing_said(run: TracedRun) -> None:
    assert run.losses() == []
    assert "stashtrace[" not in run.stderr[0], "no message of ours; paths of a checkout may hold the word"


def test_without_workers_the_main_process_makes_the_batch_inside_its_wait(run: TracedRun) -> None:
    rows = part(run, "alone")
    waits, fetches = of(rows, BatchPhase.WAIT), of(rows, BatchPhase.FETCH)
    assert waits["batch_index"].tolist() == [-1, 0, 1, 2, -1], "making the iterator and its end are waits too"
    assert fetches["batch_index"].tolist() == [0, 1, 2]
    assert set(rows["worker_id"].tolist()) == {-1}
    assert (fetches["begin_ns"] >= waits["begin_ns"][1:4]).all()
    assert (fetches["end_ns"] <= waits["end_ns"][1:4]).all()
    slow = fetches["end_ns"][1] - fetches["begin_ns"][1]
    assert slow >= 20_000_000, "sample 7 sleeps 20 ms"
    assert fetches["cpu_ns"][1] < slow / 2, "asleep, so not on the CPU"


@pytest.mark.parametrize(("context", "workers"), [("fork", 2), ("spawn", 1), ("forkserver", 1)])
def test_main_process_and_workers_agree(run: TracedRun, context: str, workers: int) -> None:
    rows = part(run, context)
    assert_joined(rows, 3, workers)
    collate = of(rows, BatchPhase.COLLATE)
    assert (collate["end_ns"] - collate["begin_ns"]).min() >= 5_000_000
    fetch = of(rows, BatchPhase.FETCH)
    assert (fetch["cpu_ns"] >= 0).all()
    assert (fetch["runqueue_ns"] >= 0).all()


def test_waits_of_a_worker_are_recorded_while_it_makes_a_batch(run: TracedRun) -> None:
    """A loader that sleeps is not one that computes; what a worker waits for between batches is not business."""
    trace = run.trace
    made = trace.batches.take((trace.batches["phase_code"] == BatchPhase.FETCH) & (trace.batches["worker_id"] >= 0))
    waits = trace.waits.take(np.isin(trace.waits["track_id"], made["track_id"]))
    asleep = waits.take(waits["wait_code"] == WaitOp.SLEEP)
    assert (asleep["end_ns"] - asleep["begin_ns"]).max() >= 20_000_000, "an item sleeps for 20 ms"
    for wait in waits.rows():
        own = made.take(made["track_id"] == wait["track_id"])
        assert ((own["begin_ns"] <= wait["begin_ns"]) & (wait["end_ns"] <= own["end_ns"])).any(), wait


def test_persistent_workers_have_another_loader_id_in_each_epoch(run: TracedRun) -> None:
    rows = part(run, "persistent")
    ids = list(dict.fromkeys(rows["loader_id"].tolist()))
    assert len(ids) == 3
    for loader in ids:
        assert_joined(rows.take(rows["loader_id"] == loader), 3, 2)


def test_loaders_of_one_seed_are_distinguished(run: TracedRun) -> None:
    rows = part(run, "same_seed")
    assert len(set(rows["loader_id"].tolist())) == 4


def test_workers_of_an_iterable_that_end_early(run: TracedRun) -> None:
    rows = part(run, "iterable")
    waits = of(rows, BatchPhase.WAIT)
    waited = waits.take(waits["batch_index"] >= 0)
    fetched = {
        (i, w)
        for i, w in zip(
            of(rows, BatchPhase.FETCH)["batch_index"].tolist(),
            of(rows, BatchPhase.FETCH)["worker_id"].tolist(),
            strict=True,
        )
    }
    assert len(waited) == len(run.results()[0]["iterable"])
    assert set(zip(waited["batch_index"].tolist(), waited["worker_id"].tolist(), strict=True)) <= fetched


def test_samples_without_batches_are_batches_of_one(run: TracedRun) -> None:
    waits = of(part(run, "no_batches"), BatchPhase.WAIT)
    assert [i for i in waits["batch_index"].tolist() if i >= 0] == list(range(12))


def test_batch_sampler(run: TracedRun) -> None:
    assert_joined(part(run, "sampler"), 3, 1)


def test_a_loop_that_is_left_early(run: TracedRun) -> None:
    waits = of(part(run, "broken_off"), BatchPhase.WAIT)
    assert waits["batch_index"].tolist() == [-1, 0]


def test_an_error_in_a_worker_is_a_batch_that_was_made_and_never_returned(run: TracedRun) -> None:
    rows = part(run, "broken")
    assert run.results()[0]["broken"] == "ValueError: mine"
    assert of(rows, BatchPhase.WAIT)["batch_index"].tolist() == [-1, 0, -1]
    assert 1 in of(rows, BatchPhase.FETCH)["batch_index"].tolist()


def test_a_loader_inside_a_dataset_does_not_take_the_outer_batch(run: TracedRun) -> None:
    rows = part(run, "nested")
    waits = of(rows, BatchPhase.WAIT)
    outer = int(waits["loader_id"][0])
    assert_joined(rows.take(rows["loader_id"] == outer), 2, 1)
    assert len(set(rows["loader_id"].tolist())) == 13


def test_out_of_order_batches_keep_their_index(run: TracedRun) -> None:
    if "unordered" not in run.results()[0]:
        pytest.skip("this torch returns batches in order only")
    waits = of(part(run, "unordered"), BatchPhase.WAIT)
    assert sorted(i for i in waits["batch_index"].tolist() if i >= 0) == list(range(6))


def test_pinning_is_a_phase_inside_the_wait(run: TracedRun) -> None:
    rows = part(run, "pinned")
    pins, waits = of(rows, BatchPhase.PIN), of(rows, BatchPhase.WAIT)
    assert run.results()[0]["pinned"][0] == ["pinned a", "pinned b"]
    assert pins["batch_index"].tolist() == [0, 1]
    assert (pins["begin_ns"] >= waits["begin_ns"][1:3]).all()
    assert (pins["end_ns"] <= waits["end_ns"][1:3]).all()


def test_pipes_of_a_finished_loader_are_closed_at_once(run: TracedRun) -> None:
    # Five loaders without a garbage collection: each held back would show its pipes and semaphores.
    assert run.results()[0]["descriptors"] < 5


def test_without_the_variable_nothing_of_the_replay_is_loaded(run: TracedRun) -> None:
    assert run.results()[0]["replay"] == []


def test_roles_of_processes_and_threads(run: TracedRun) -> None:
    processes, tracks = run.trace.processes, run.trace.tracks
    workers = processes.take(processes["role_code"] == ProcessRole.WORKER)
    assert set(workers["worker_id"].tolist()) == {0, 1}
    assert set(workers["rank"].tolist()) == {0}, "a worker serves the rank of its parent"
    of_workers = np.isin(tracks["process_id"], workers["process_id"]) & (tracks["role_code"] == ThreadRole.WORKER)
    assert of_workers.sum() == len(workers)
    fetch_tracks = set(of(run.trace.batches, BatchPhase.FETCH)["track_id"].tolist())
    assert set(tracks["track_id"][of_workers].tolist()) <= fetch_tracks | set(tracks["track_id"][of_workers].tolist())


def test_life_of_an_iterator_is_a_span(run: TracedRun) -> None:
    spans = run.trace.spans
    lives = spans.take(spans["kind_code"] == SpanKind.LOADER)
    loader = int(of(part(run, "fork"), BatchPhase.WAIT)["loader_id"][0])
    (at,) = np.flatnonzero(lives["correlation_id"].astype(np.uint64) == np.uint64(loader))
    assert lives["value"][at] == 3
