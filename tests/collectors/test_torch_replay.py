"""Synthetic data: loaders that return their first batches again and again, as the job and the trace see it."""

from __future__ import annotations

import numpy as np
import pytest
from installed import needs_torch
from traced import TracedRun, run_traced

from stashtrace.analysis.stalls.budget import stalls
from stashtrace.analysis.steps.steps import steps
from stashtrace.lab.characterize import run_figures
from stashtrace.probes.torch.replay import FACT, wanted_batches
from stashtrace.schema.kinds import BatchPhase

pytestmark = pytest.mark.torch
needs_torch()

SCRIPT = """
    import gc, json, multiprocessing, os, resource, sys, threading, time
    import torch
    from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler
    from torch.utils.data import dataloader as torch_loaders
    import stashtrace

    MADE = multiprocessing.Value("l", 0)

    class Numbers(Dataset):
        def __init__(self, count=22, sleep_s=0.0):
            self.count, self.sleep_s = count, sleep_s
        def __len__(self):
            return self.count
        def __getitem__(self, i):
            time.sleep(self.sleep_s)
            with MADE.get_lock():
                MADE.value += 1
            return torch.full((3,), float(i))

    class Stream(IterableDataset):
        def __init__(self, count):
            self.count = count
        def __iter__(self):
            return iter(range(self.count))

    class Sized(Stream):
        def __len__(self):
            return self.count

    class Broken(Numbers):
        def __getitem__(self, i):
            if i == 1:
                raise ValueError("mine")
            return i

    class Nested(Numbers):
        def __getitem__(self, i):
            return sum(int(x.sum()) for x in DataLoader([i, i + 1, i + 2], batch_size=1))

    def collate(samples):
        return {"x": torch.stack(samples), "sizes": [len(samples)], "pair": (torch.ones(2), "text")}

    class OwnIterator(torch_loaders._SingleProcessDataLoaderIter):
        def _next_data(self):
            return super()._next_data()

    class OwnLoader(DataLoader):
        def _get_iterator(self):
            return OwnIterator(self)

    class Pinnable(list):
        def pin_memory(self, device=None):
            return Pinnable(f"pinned {x}" for x in self)

    def count(loader):
        return sum(1 for _ in loader)

    def alive():
        threads = [t.name for t in threading.enumerate() if "pin" in t.name.lower() or "_pin_memory_loop" in str(t)]
        return len(multiprocessing.active_children()) + len(threads)

    def ended(real_s=60.0):
        # Without replay some never end, which is not waited for long.
        limit = time.monotonic() + (60.0 if os.environ.get("STASHTRACE_SYNTHETIC") else real_s)
        while alive() and time.monotonic() < limit:
            time.sleep(0.01)
        return alive()

    def main():
        results = {}
        def part(name, function):
            torch.manual_seed(3)
            MADE.value = 0
            with stashtrace.annotate(name):
                results[name] = function()
            gc.collect()

        def lengths(epochs=3, **options):
            loader = DataLoader(Numbers(), batch_size=4, collate_fn=collate, **options)
            return [len(loader), [count(loader) for _ in range(epochs)]]
        part("alone", lambda: lengths())
        part("shuffled", lambda: lengths(shuffle=True, drop_last=True))
        part("fork", lambda: lengths(num_workers=2, multiprocessing_context="fork"))
        # Each worker imports torch, in each epoch of the real one.
        part("spawn", lambda: lengths(epochs=2, num_workers=1, multiprocessing_context="spawn"))
        part("persistent", lambda: lengths(num_workers=2, persistent_workers=True))
        if "in_order" in DataLoader.__init__.__annotations__:
            part("unordered", lambda: lengths(num_workers=2, in_order=False))
        def distributed():
            sampler = DistributedSampler(Numbers(), num_replicas=3, rank=1, shuffle=True)
            loader = DataLoader(Numbers(), batch_size=2, sampler=sampler)
            out = []
            for epoch in range(2):
                sampler.set_epoch(epoch)
                out.append(count(loader))
            return out
        part("distributed", distributed)
        def uneven():
            class Growing(list):
                epoch = 0
                def __iter__(self):
                    self.epoch += 1
                    return iter([[0]] * self.epoch)
            loader = DataLoader(Numbers(), batch_sampler=Growing())
            return [count(loader) for _ in range(4)]
        part("uneven", uneven)
        part("samples", lambda: [count(DataLoader(Numbers(7), batch_size=None, num_workers=1)), MADE.value])
        def sized():
            out = []
            for workers in (0, 1):
                loader = DataLoader(Sized(10), batch_size=4, num_workers=workers, persistent_workers=workers > 0)
                out.append([count(loader) for _ in range(3)])
            return out
        part("sized", sized)
        def short(workers):
            loader = DataLoader(Stream(2 * max(1, workers)), batch_size=2, num_workers=workers)
            return [count(loader) for _ in range(3)]
        part("short", lambda: [short(0), short(1)])
        def endless():
            return [sum(1 for _, batch in zip(range(50), DataLoader(Stream(20), batch_size=2)))]
        part("endless", endless)
        part("empty", lambda: [count(DataLoader([], batch_size=2)) for _ in range(2)])

        def workers_end():
            train = DataLoader(Numbers(400), batch_size=4, num_workers=2, prefetch_factor=4)
            held = DataLoader(Numbers(400), batch_size=4, num_workers=2, persistent_workers=True)
            first, second = iter(train), iter(held)
            out = [alive()]
            for _ in range(3):
                next(first), next(second)
            out.append(ended(real_s=0.5))
            made = MADE.value
            for _ in range(20):
                next(first), next(second)
            time.sleep(0.1)
            return [*out, MADE.value - made, count(first), count(second), count(held), ended(real_s=0.5)]
        part("workers_end", workers_end)
        def pinned():
            # A machine without an accelerator, and what torch asks it before it starts the thread that pins.
            torch.accelerator.is_available = lambda *_: True
            torch.accelerator.current_accelerator = lambda *_: torch.device("cpu")
            torch.accelerator.current_device_index = lambda: 0
            torch.accelerator.set_device_index = torch.accelerator.set_device_idx = lambda index: None
            iterator = iter(DataLoader(list("abcdefgh"), batch_size=2, num_workers=1, pin_memory=True,
                                       persistent_workers=True, collate_fn=Pinnable))
            before, batches = alive(), [list(next(iterator)) for _ in range(3)]
            return [before, batches, ended(real_s=0.5), iterator._data_queue.qsize()]
        if hasattr(torch, "accelerator"):
            part("pinned", pinned)
        def aborted():
            def abort_at_the_end(_):
                multiprocessing.queues.Queue.cancel_join_thread = lambda self: os.abort()
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            loader = DataLoader(Numbers(80), batch_size=4, num_workers=2, worker_init_fn=abort_at_the_end,
                                persistent_workers=True)
            return [[count(loader) for _ in range(2)], ended()] if os.environ.get("STASHTRACE_SYNTHETIC") else None
        part("aborted", aborted)
        def left_early():
            loader = DataLoader(Numbers(), batch_size=2, num_workers=1)
            values = [next(iter(loader)).sum().item() for _ in range(5)]
            return [values, ended()]
        part("left_early", left_early)
        def broken():
            try:
                count(DataLoader(Broken(), batch_size=2, num_workers=1))
            except ValueError as error:
                return str(error).splitlines()[-1]
        part("broken", broken)
        def nested():
            return [batch.tolist() for batch in DataLoader(Nested(4), batch_size=2)]
        part("nested", nested)
        part("own", lambda: [count(OwnLoader(Numbers(), batch_size=4)), MADE.value])

        def training(workers):
            model = torch.nn.Linear(3, 1)
            update = torch.optim.SGD(model.parameters(), lr=1e-6)
            loader = DataLoader(Numbers(80, sleep_s=0.01), batch_size=4, num_workers=workers)
            for epoch in range(2):
                for x in loader:
                    update.zero_grad()
                    model(x).sum().backward()
                    update.step()
            return MADE.value
        def untouched():
            loader = DataLoader(Numbers(40), batch_size=4, collate_fn=collate)
            seen = []
            for batch in loader:
                seen.append([float(batch["x"].sum()), batch["sizes"][:], batch["pair"][0].tolist()])
                batch["x"].add_(1)
                batch["x"].requires_grad_()
                batch["pair"][0].zero_()
                batch["sizes"].clear()
                del batch["x"]
            return seen
        part("untouched", untouched)
        def moved():
            storages = {}
            for x in DataLoader(Numbers(40), batch_size=4, num_workers=1):
                y = x.to("meta", non_blocking=True)
                storages[y.untyped_storage()._cdata] = y
                assert y.device.type == "meta" and y.shape == x.shape and not y.requires_grad
                y.requires_grad_()
            return len(storages)
        part("moved", moved)
        part("training", lambda: training(int(sys.argv[1])))
        print(json.dumps(results))

    if __name__ == "__main__":
        main()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    return run_traced(SCRIPT, tmp_path_factory.mktemp("replay"), args=["0"], synthetic_batches=2)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    return run_traced(SCRIPT, tmp_path_factory.mktemp("real"), args=["0"])


EPOCHS = [
    "alone",
    "shuffled",
    "fork",
    "spawn",
    "persistent",
    "unordered",
    "distributed",
    "uneven",
    "sized",
    "short",
    "empty",
    "broken",
    "nested",
]


@pytest.mark.parametrize("name", ["alone", "shuffled", "fork", "spawn", "persistent", "unordered"])
def test_epochs_are_as_long_as_their_loader(run: TracedRun, name: str) -> None:
    if name not in run.results()[0]:
        pytest.skip("this torch returns batches in order only")
    length, batches = run.results()[0][name]
    assert length >= 5
    assert set(batches) == {length}


@pytest.mark.thorough
@pytest.mark.parametrize("name", EPOCHS)
def test_epochs_are_as_long_as_the_real_ones(run: TracedRun, real: TracedRun, name: str) -> None:
    if name not in real.results()[0]:
        pytest.skip("this torch returns batches in order only")
    assert run.results()[0][name] == real.results()[0][name]


def test_samples_without_batches(run: TracedRun) -> None:
    count, made = run.results()[0]["samples"]
    assert count == 7
    assert made < 7


def test_an_iterable_of_unknown_length_goes_on_and_says_so(run: TracedRun) -> None:
    assert run.results()[0]["endless"] == [50]
    names = run.texts(run.trace.losses, "name_code")
    assert names.count("replayed_epoch_does_not_end") == 1


def test_workers_end_with_the_last_batch_that_is_kept(run: TracedRun) -> None:
    begun, after_three, made, *counts, at_end = run.results()[0]["workers_end"]
    assert begun == 4
    assert after_three == 0, "two loaders, one of them with persistent workers"
    assert made == 0, "samples made while 20 batches were replayed"
    assert counts == [77, 77, 100]
    assert at_end == 0


def test_the_thread_that_pins_ends_too(run: TracedRun) -> None:
    if "pinned" not in run.results()[0]:
        pytest.skip("this torch knows no accelerators")
    before, batches, after, waiting = run.results()[0]["pinned"]
    first, second = ["pinned a", "pinned b"], ["pinned c", "pinned d"]
    assert batches == [first, second, first]
    assert (before, after, waiting) == (2, 0, 0), "one worker and one thread"


@pytest.mark.thorough
def test_loaders_that_are_not_replayed_go_on_as_they_would(real: TracedRun) -> None:
    found = real.results()[0]
    assert found["endless"] == [10]
    assert found["workers_end"][1] == 4
    assert found["workers_end"][3:6] == [77, 77, 100]
    assert found["left_early"] == [[1.0 * 3] * 5, 0]
    if "pinned" in found:
        assert found["pinned"][2] == 2
    assert FACT[0] not in real.facts()
    untold = run_figures.synthetic_data(real.trace)
    assert (untold.ranks, untold.missing, untold.complete) == ((), (0,), False)
    assert untold.sentence.startswith("no synthetic data: no DataLoader")


def test_workers_that_die_when_asked_to_end_take_nothing_with_them(run: TracedRun) -> None:
    assert run.results()[0]["aborted"] == [[20, 20], 0]
    losses = run.trace.losses
    names, advice = (run.texts(losses, column) for column in ("name_code", "advice_code"))
    # Torch does not notice an end that it has waited for already: none of them need be reported.
    ends = [text for name, text in zip(names, advice, strict=True) if name == "worker_ended_by_signal"]
    assert all("killed by signal: Aborted" in text for text in ends)


def test_a_loop_that_is_left_early_keeps_a_batch_each_time(run: TracedRun) -> None:
    assert run.results()[0]["left_early"] == [[1.0 * 3] * 5, 0]


def test_what_the_script_does_to_a_batch_does_not_reach_the_next(run: TracedRun) -> None:
    seen = run.results()[0]["untouched"]
    assert seen == [seen[0], seen[1]] * 5
    assert seen[0] == [3.0 * 6, [4], [1.0, 1.0]]
    assert seen[1][0] == 3.0 * 22
    assert "replayed_batches_restored" in run.texts(run.trace.losses, "name_code")


def test_a_moved_batch_stays_where_it_was_moved(run: TracedRun) -> None:
    assert run.results()[0]["moved"] == 2, "each of the two batches is moved once"


def test_an_iterator_of_another_kind_is_left_alone_and_named(run: TracedRun) -> None:
    assert run.results()[0]["own"] == [6, 22]
    lost = [reason for collector, reason, _ in run.losses() if collector == "torch_dataloader"]
    # The job has a worker abort.
    assert [reason for reason in lost if reason not in ("batches_restored", "child_killed")] == ["batches_not_replayed"]


def test_the_run_says_that_its_data_is_synthetic(run: TracedRun) -> None:
    key, value = FACT
    assert run.facts()[key] == value == "batches replayed"
    trace = run.trace
    advice = run.texts(trace.losses, "advice_code")
    assert "synthetic data: 2 batches replayed" in advice
    assert run_figures.FACT == FACT
    fact = run_figures.synthetic_data(trace)
    assert (fact.ranks, fact.missing, fact.complete) == ((0,), (), True)
    assert fact.doubts == ("__main__.OwnIterator makes its batches in a way that is not known here",)
    assert fact.sentence == f"synthetic data: batches replayed; {fact.doubts[0]}"


def _training(run: TracedRun) -> tuple[int, int, float]:
    """Steps inside the training part, their median length, and the median time of fetch and prep in them."""
    trace = run.trace
    at = run.texts(trace.spans, "name_code").index("training")
    begin, end = trace.spans["begin_ns"][at], trace.spans["end_ns"][at]
    found = steps(trace)
    found = found.take((found["begin_ns"] >= begin) & (found["end_ns"] <= end))
    length = int(np.median(found["end_ns"] - found["begin_ns"]))
    table = stalls(trace, warmup=True)
    wanted = np.isin(table["kind"], ["fetch", "prep"])
    waiting = [int(table["stall_ns"][wanted & (table["step"] == step)].sum()) for step in found["step"][5:]]
    return len(found), length, float(np.median(waiting))


def test_steps_are_found_whose_data_nobody_makes(run: TracedRun) -> None:
    assert run.results()[0]["training"] == 2 * 4, "samples made"
    count, _, _ = _training(run)
    assert count == 39, "of 40 the first has no update before it"


@pytest.mark.thorough
def test_steps_are_shorter_by_the_wait_for_data(run: TracedRun, real: TracedRun) -> None:
    assert real.results()[0]["training"] == 160
    count, length, waiting = _training(run)
    real_count, real_length, real_waiting = _training(real)
    assert count == real_count
    assert real_length > 40_000_000, "four samples of 10 ms"
    assert length < real_length / 10
    assert real_waiting > 40_000_000
    assert waiting < real_waiting / 100


def test_replayed_batches_have_waits_with_their_number(run: TracedRun) -> None:
    trace = run.trace
    at = run.texts(trace.spans, "name_code").index("fork")
    table = trace.batches
    inside = (table["begin_ns"] >= trace.spans["begin_ns"][at]) & (table["begin_ns"] <= trace.spans["end_ns"][at])
    rows = table.take(inside)
    waits = rows.take((rows["phase_code"] == BatchPhase.WAIT) & (rows["batch_index"] >= 0))
    assert len(waits) == 18
    pairs = set(zip(waits["loader_id"].tolist(), waits["batch_index"].tolist(), strict=True))
    assert len(pairs) == 18
    made = rows.take(rows["phase_code"] == BatchPhase.FETCH)
    joined = pairs & set(zip(made["loader_id"].tolist(), made["batch_index"].tolist(), strict=True))
    assert len(joined) == 2, "only what was really made has a maker"


@pytest.mark.parametrize(("text", "count"), [("", 0), ("0", 0), ("1", 1), ("12", 12), ("yes", 0), ("-1", 0)])
def test_values_of_the_variable(text: str, count: int) -> None:
    assert wanted_batches(text) == count
