"""Synthetic data of torchdata's StatefulDataLoader: the tests of torch's loader, and what is saved of its state.

Skipped where torchdata is not installed; see ``test_torchdata_loader``.
"""

from __future__ import annotations

from typing import Any

import pytest
from installed import needs_torch
from test_torch_replay import (  # noqa: F401
    EPOCHS,
    SCRIPT,
    test_a_moved_batch_stays_where_it_was_moved,
    test_an_iterable_of_unknown_length_goes_on_and_says_so,
    test_an_iterator_of_another_kind_is_left_alone_and_named,
    test_epochs_are_as_long_as_the_real_ones,
    test_replayed_batches_have_waits_with_their_number,
    test_samples_without_batches,
    test_steps_are_shorter_by_the_wait_for_data,
    test_the_thread_that_pins_ends_too,
    test_what_the_script_does_to_a_batch_does_not_reach_the_next,
    test_workers_end_with_the_last_batch_that_is_kept,
    test_workers_that_die_when_asked_to_end_take_nothing_with_them,
)
from test_torchdata_loader import needs_torchdata
from traced import TracedRun, run_traced

pytestmark = pytest.mark.torch
needs_torch()

_IMPORT = """import stashtrace
    from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader, stateful_dataloader as stateful_loaders
"""
_STATEFUL = (
    SCRIPT.replace("import stashtrace\n", _IMPORT)
    .replace("torch_loaders._Single", "stateful_loaders._StatefulSingle")
    .replace("return [values, ended()]", "return [values, ended(real_s=0.5)]")
    .replace("return OwnIterator(self)", "return OwnIterator(self, None)")
    .replace(
        "torch.accelerator.current_device_index =",
        "torch.cuda.current_device = torch.accelerator.current_device_index =",
    )
)
_STATES = """
    import copy, json, multiprocessing, sys, time
    from importlib.metadata import version
    import torch
    from torch.utils.data import Dataset, IterableDataset
    from torchdata.stateful_dataloader import StatefulDataLoader

    MADE = multiprocessing.Value("l", 0)
    # Before 0.11 torchdata itself cannot go on from the snapshot with which a later epoch begins.
    RELEASE = tuple(int(part) for part in version("torchdata").split(".")[:2])
    EPOCHS_SAVED = 3 if RELEASE >= (0, 11) else 1

    def collate(samples):
        with MADE.get_lock():
            MADE.value += 1
        return torch.tensor(samples)

    class Numbers(Dataset):
        def __len__(self):
            return 40
        def __getitem__(self, i):
            return i

    class Sized(IterableDataset):
        def __iter__(self):
            worker = torch.utils.data.get_worker_info()
            return iter(range(0 if worker is None else worker.id, 40, 1 if worker is None else worker.num_workers))
        def __len__(self):
            return 40

    class Remembering(Sized):
        at = 0
        def __iter__(self):
            while self.at < 40:
                self.at += 1
                yield self.at - 1
            self.at = 0
        def state_dict(self):
            return {"at": self.at}
        def load_state_dict(self, state):
            self.at = state["at"]

    class Backwards:
        def __len__(self):
            return 40
        def __iter__(self):
            return iter(range(39, -1, -1))

    KINDS = {
        "alone": (Numbers, {}), "shuffled": (Numbers, {"shuffle": True}), "workers": (Numbers, {"num_workers": 2}),
        "shuffled workers": (Numbers, {"num_workers": 2, "shuffle": True}),
        "persistent": (Numbers, {"num_workers": 2, "persistent_workers": True, "shuffle": True}),
        "seldom": (Numbers, {"num_workers": 2, "snapshot_every_n_steps": 4}),
        "own sampler": (Numbers, {"num_workers": 1, "sampler": Backwards()}),
        "iterable": (Sized, {}), "iterable workers": (Sized, {"num_workers": 2}),
        "iterable persistent": (Sized, {"num_workers": 2, "persistent_workers": True}),
        "remembering": (Remembering, {}), "remembering worker": (Remembering, {"num_workers": 1}),
    }

    def loader_of(kind):
        data, options = KINDS[kind]
        generator = torch.Generator()
        generator.manual_seed(5)
        return StatefulDataLoader(data(), batch_size=2, generator=generator, collate_fn=collate, **options)

    def counters(state):
        if "_snapshot" not in state:
            names = ("_num_yielded", "_sampler_iter_yielded", "_iterator_finished")
            index = state["_index_sampler_state"] or state["_sampler_iter_state"]
            return [*(state[name] for name in names), index and index.get("samples_yielded")]
        snapshot = state["_snapshot"]
        main = snapshot["_main_snapshot"]
        workers = len(snapshot["_worker_snapshots"])
        return [snapshot["_snapshot_step"] + state["_steps_since_snapshot"], state["_iterator_finished"],
                main["_num_workers"], workers, 0 <= snapshot["_last_yielded_worker_id"] < workers]

    def go_on(kind, state):
        # The rest of an epoch, as a loader of another process would return it.
        loader = loader_of(kind)
        loader.load_state_dict(state)
        return [batch.tolist() for batch in loader]

    def save(kind):
        MADE.value = 0
        loader, states, told, slowest = loader_of(kind), [], [], 0.0
        first = counters(loader.state_dict())
        for epoch in range(3):
            for number, _ in enumerate(loader):
                begin = time.perf_counter()
                state = loader.state_dict()
                slowest = max(slowest, time.perf_counter() - begin)
                told.append(counters(state))
                if number in (0, 8) and epoch < EPOCHS_SAVED:
                    states.append(copy.deepcopy(state))
            told.append(counters(loader.state_dict()))
        workers = len(multiprocessing.active_children())
        return {"first": first, "told": told, "slowest": slowest, "made": MADE.value, "workers": workers}, states

    def resume(kind, states):
        found, begins = [], []
        for state in states[:4]:
            loader = loader_of(kind)
            loader.load_state_dict(state)
            first, *others = [batch.tolist() for batch in loader]
            begins.append(first)
            found.append([1 + len(others), *(sum(1 for _ in loader) for _ in range(2))])
        # One that replays already goes on where it is told to.
        loader.load_state_dict(states[1])
        found.append(sum(1 for _ in loader))
        loader.load_state_dict({})
        found.append(sum(1 for _ in loader))
        return {"resumed": found, "begins": begins}

    def rest(kind, state):
        loader = loader_of(kind)
        loader.load_state_dict(state)
        return [batch.tolist() for batch in loader]

    def main():
        results, saved = {}, {}
        others = torch.load(sys.argv[1]) if len(sys.argv) > 1 else None
        for kind in KINDS:
            results[kind], saved[kind] = save(kind)
            results[kind].update(resume(kind, saved[kind]))
            if others is not None:
                results[kind]["rest"] = [[rest(kind, state) for state in states[kind]] for states in (saved, others)]
        torch.save(saved, "states.pt")
        print(json.dumps(results))

    if __name__ == "__main__":
        main()
"""
#: Data sets that save a state themselves; without workers it is the last real one.
_OWN_STATE = "remembering"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    needs_torchdata()
    return run_traced(_STATEFUL, tmp_path_factory.mktemp("replay"), args=["0"], synthetic_batches=2)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    needs_torchdata()
    return run_traced(_STATEFUL, tmp_path_factory.mktemp("real"), args=["0"])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    needs_torchdata()
    return run_traced(_STATES, tmp_path_factory.mktemp("saved"), synthetic_batches=2)


@pytest.fixture(scope="module")
def saved_real(saved: TracedRun, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same without us, which then goes on from what the replayed loaders have saved, too."""
    states = str(saved.directory.parent / "states.pt")
    return run_traced(_STATES, tmp_path_factory.mktemp("saved_real"), args=[states], traced=False).results()[0]


def test_a_loop_that_is_left_early_keeps_a_batch_each_time(run: TracedRun, real: TracedRun) -> None:
    values, workers = real.results()[0]["left_early"]
    assert workers == 1, "torchdata holds the last iterator"
    assert run.results()[0]["left_early"] == [values, 0]


def test_a_state_can_be_saved_after_each_batch(saved: TracedRun, saved_real: Any) -> None:
    found = saved.results()[0]
    assert len(found) == 12
    for kind, result in found.items():
        assert result["told"] == saved_real[kind]["told"], kind
        assert result["first"] == saved_real[kind]["first"], kind
        assert result["slowest"] < 1, "nobody waits for workers that have ended"
        assert result["made"] < 10 < saved_real[kind]["made"], kind
        assert result["workers"] == 0, kind


def test_what_a_replayed_loader_saved_is_the_real_position(saved_real: Any) -> None:
    for kind, result in saved_real.items():
        real, replayed = result["rest"]
        assert [len(batches) for batches in real] in ([19, 11], [19, 11] * 3)
        if kind != _OWN_STATE:
            assert replayed == real, kind


def test_a_loader_goes_on_from_a_state_and_then_replays(saved: TracedRun, saved_real: Any) -> None:
    for kind, result in saved.results()[0].items():
        assert result["resumed"] == saved_real[kind]["resumed"], kind
        if kind != _OWN_STATE:
            assert result["begins"] == saved_real[kind]["begins"], "what is skipped is not kept"
    assert [loss for loss in saved.losses() if loss[1] != "batches_restored"] == []
