"""Batches that are kept and handed out again: what comes back, and what stays on a device."""

from __future__ import annotations

import collections
import copy
import io
import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from installed import needs_torch

torch = needs_torch()

from stashtrace.probes.torch.replay import Replay  # noqa: E402
from stashtrace.probes.torch.replay_batches import KeptBatch, Notes  # noqa: E402

pytestmark = pytest.mark.torch


class Heard(Notes):
    """Notes that are kept in place of being recorded."""

    __slots__ = ("errors", "said")

    def __init__(self) -> None:
        super().__init__("torch_dataloader")
        self.said: list[str] = []
        self.errors: list[BaseException] = []

    def warn(self, what: str, why: str) -> None:
        self.said.append(what)

    inform = warn

    def failed(self, error: BaseException) -> None:
        self.errors.append(error)


@pytest.fixture
def notes() -> Any:
    heard = Heard()
    yield heard
    assert heard.errors == []


class Pair(NamedTuple):
    x: Any
    name: str


@dataclass
class Own:
    x: Any
    names: list[str]

    def to(self, device: str) -> Own:
        self.x = self.x.to(device)
        return self


def storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def copied_to_meta(kept: KeptBatch, change: Any = lambda x: x, times: int = 3) -> int:
    """How many copies of a batch that is one tensor are made in some steps."""
    held = [change(kept.hand_out()).to("meta") for _ in range(times)]
    return len({storage(tensor) for tensor in held})


def test_every_part_comes_back_in_new_containers(notes: Heard) -> None:
    x, y = torch.arange(6.0).reshape(2, 3), torch.arange(4)
    batch = {
        "dict": collections.OrderedDict(a=x, b=1),
        "list": [x, [y, "text"]],
        "pair": Pair(y, "name"),
        "user": collections.UserDict({"y": y}),
        "own": Own(x, ["a"]),
        "none": None,
        "tuple": (x, (1, 2)),
    }
    kept = KeptBatch(batch, notes)
    for _ in range(2):
        got = kept.hand_out()
        assert type(got["dict"]) is collections.OrderedDict
        assert torch.equal(got["dict"]["a"], torch.arange(6.0).reshape(2, 3))
        assert isinstance(got["pair"], Pair)
        assert torch.equal(got["pair"].x, torch.arange(4))
        assert torch.equal(got["user"]["y"], torch.arange(4))
        assert got["own"].x.shape == (2, 3)
        assert got["tuple"][1] == (1, 2)
        # What a script may do to its batch.
        got["dict"].clear()
        got["list"][1].pop()
        got["list"].append(0)
        got["own"].x = None
        got["own"].names.append("b")
        got["user"]["more"] = 1
        got["tuple"][0].zero_()
        got["pair"].x.add_(1)
    got = kept.hand_out()
    assert got["list"][1][1] == "text"
    assert len(got["list"]) == 2
    assert got["own"].names == ["a"]
    assert dict(got["user"]).keys() == {"y"}
    assert set(notes.said) == {"replayed_batches_restored"}


@dataclass(frozen=True, slots=True)
class Slotted:
    x: Any
    names: list[str]


class Below(Slotted):
    """Slots above, a dictionary here."""

    __slots__ = ("__dict__", "__weakref__", "y")


@pytest.mark.parametrize("kind", [Slotted, Below])
def test_an_object_without_a_dictionary_comes_back_as_a_new_one(notes: Heard, kind: Any) -> None:
    batch = kind(torch.ones(2), ["a"])
    if kind is Below:
        object.__setattr__(batch, "y", torch.ones(3))
        vars(batch)["z"] = torch.ones(4)
    kept = KeptBatch(batch, notes)
    assert kept.shapes == ([(2,)] if kind is Slotted else [(4,), (3,), (2,)])
    for _ in range(3):
        got = kept.hand_out()
        assert type(got) is kind
        assert got.names == ["a"]
        for name in ("x", "y", "z"):
            if hasattr(got, name):
                assert float(getattr(got, name)[0]) == 1.0
                getattr(got, name).add_(1)
        got.names.append("b")
        object.__setattr__(got, "x", None)


def test_batches_of_another_shape_are_reported(notes: Heard) -> None:
    replay = Replay(3, False, -1, lambda: None)
    replay.notes = notes
    for length in (4, 4, 5):
        assert notes.said == []
        replay.keep({"x": torch.zeros(2, length), "n": length})
    assert replay.complete
    assert notes.said == ["replayed_batches_differ"]
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)
    assert KeptBatch(nested, notes).shapes == [5]


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.to(torch.float64),
        lambda x: x.float(),
        lambda x: x.half().contiguous(),
        lambda x: x.view(-1, 2).unsqueeze(1),
        lambda x: x.to(memory_format=torch.contiguous_format),
    ],
)
def test_one_copy_to_a_device_serves_all_steps(notes: Heard, change: Any) -> None:
    kept = KeptBatch(torch.arange(6.0).reshape(2, 3), notes)
    assert copied_to_meta(kept, change) == 1
    assert notes.moved_bytes == notes.host_bytes == 24
    assert notes.said == []


def test_results_are_distinguished_by_what_was_asked_for(notes: Heard) -> None:
    kept = KeptBatch(torch.arange(6.0), notes)
    for _ in range(2):
        x = kept.hand_out()
        assert x.to("meta", torch.float64).dtype is torch.float64
        assert x.to(device="meta").dtype is torch.float32
        assert x.to("meta", non_blocking=True).dtype is torch.float32
        assert x.view(2, 3).to("meta").shape == (2, 3)
        assert x.view(3, 2).to("meta").shape == (3, 2)
        assert x.to(torch.zeros(1, dtype=torch.float16)).dtype is torch.float16
        assert x.type() == "torch.FloatTensor"
        assert x.to("cpu").data_ptr() == x.data_ptr()


def test_a_copy_on_the_device_that_was_changed_is_made_again(notes: Heard) -> None:
    kept = KeptBatch(torch.ones(3), notes)
    values = []
    for _ in range(4):
        y = kept.hand_out().to(torch.float64)
        values.append(y.tolist())
        y.mul_(7)
    assert values == [[1.0] * 3] * 4
    metas = [kept.hand_out().to("meta").mul_(7) for _ in range(4)]
    assert len({storage(tensor) for tensor in metas}) >= 3, "a copy each, made where the tensor lies"
    assert "replayed_batches_restored" in notes.said


def test_gradients_stay_with_the_step(notes: Heard) -> None:
    kept = KeptBatch(torch.ones(3), notes)
    for _ in range(3):
        x = kept.hand_out()
        assert not x.requires_grad
        assert x.grad is None
        x.requires_grad_()
        (x.to(torch.float64) * 2).sum().backward()
        assert x.grad.tolist() == [2.0] * 3
        y = kept.hand_out().to("meta")
        assert not y.requires_grad
        y.requires_grad_()


def test_what_is_changed_before_it_is_moved_is_copied_again(notes: Heard) -> None:
    kept = KeptBatch(torch.ones(3), notes)
    assert copied_to_meta(kept, lambda x: x.add_(1)) == 3
    assert set(notes.said) == {"replayed_batches_copied_again", "replayed_batches_restored"}
    assert kept.hand_out().tolist() == [1.0] * 3
    quiet = Heard()
    assert copied_to_meta(KeptBatch(torch.ones(3), quiet), lambda x: x / 2) == 3
    assert quiet.moved_bytes == 0, "what the loader distinguishes by"


def test_arrays_are_restored(notes: Heard) -> None:
    kept = KeptBatch({"a": np.arange(1000.0), "b": bytearray(b"abc")}, notes)
    for _ in range(3):
        batch = kept.hand_out()
        assert batch["a"].sum() == 499500
        assert batch["b"] == b"abc"
        batch["a"] -= 3
        batch["b"][0] = 0


def test_other_tensors_are_untouched_and_copies_are_plain(notes: Heard) -> None:
    kept = KeptBatch([torch.ones(3)], notes)
    (x,) = kept.hand_out()
    assert "to" not in vars(torch.ones(3))
    assert "to" not in vars(x + 1)
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), torch.load(file), x.clone()):
        assert vars(other) == {}
        assert other.tolist() == [1.0] * 3


def test_odd_tensors_are_handed_out_too(notes: Heard) -> None:
    with torch.inference_mode():
        made = torch.ones(3)
    assert KeptBatch(made, notes).hand_out().tolist() == [1.0] * 3
    sparse = torch.eye(3).to_sparse()
    assert KeptBatch(sparse, notes).hand_out().to_dense().sum() == 3
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    kept = KeptBatch(packed, notes)
    assert type(kept.hand_out()) is type(packed)
    assert kept.hand_out().data.shape == (5,)
    loop: list[Any] = [torch.ones(1)]
    loop.append(loop)
    assert KeptBatch(loop, notes).hand_out()[0].tolist() == [1.0]


def test_objects_without_tensors_are_not_copied(notes: Heard) -> None:
    class Image:
        def __init__(self) -> None:
            self.info = {"a": [1]}

        def __copy__(self) -> Image:
            raise AssertionError("as costly as you like")

    image = Image()
    kept = KeptBatch([image, torch.ones(1)], notes)
    assert kept.hand_out()[0] is image


def test_calls_that_differ_in_each_step_do_not_fill_the_device(notes: Heard) -> None:
    kept = KeptBatch(torch.ones(400), notes)
    many = [kept.hand_out().reshape(4, 100).to(f"meta:{n}") for n in range(100)]
    assert len({storage(tensor) for tensor in many}) == 100
    held = [kept.hand_out().reshape(4, 100).to("meta:99") for _ in range(2)]
    assert len({storage(tensor) for tensor in held}) == 2, "too many are kept already"
    held = [kept.hand_out().reshape(4, 100).to("meta:0") for _ in range(2)]
    assert len({storage(tensor) for tensor in held}) == 1


def test_a_batch_that_cannot_be_taken_apart_is_handed_out_as_it_is() -> None:
    class Stubborn(dict):  # type: ignore[type-arg]
        def __copy__(self) -> Stubborn:
            raise RuntimeError("mine")

    heard = Heard()
    batch = Stubborn(x=torch.ones(1))
    assert KeptBatch(batch, heard).hand_out() is batch
    assert [str(error) for error in heard.errors] == ["mine"]
