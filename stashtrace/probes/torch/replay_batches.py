"""A batch that is kept and handed out many times: fresh containers around the same tensors.

What a script does to a batch must not reach the next step. Containers are copied at each hand-out; a tensor is handed
out as an alias of the kept one, so that ``requires_grad`` and gradients stay with the alias; a tensor whose version
counter says that it was changed in place is restored from the copy that is kept beside it.

Each alias has the methods by which a script brings it to a device as attributes of its own, so that no other tensor of
the job is touched. The first result of such a call is kept on its device, and later calls get an alias of that. A call
that makes another tensor on the host (``x.float()``, ``x.unsqueeze(1)``) is done as always, and the methods of what
it returns remember in turn. Where a tensor was changed before it is moved, it is copied again, and a note says so.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import functools
import sys
import weakref
from collections import UserDict
from collections.abc import Callable
from typing import Any

from stashtrace import _native
from stashtrace.probes import annotations as marks
from stashtrace.probes import patching, recorder
from stashtrace.probes.recorder import failed

#: Methods whose result is kept: they move a tensor, or pin it.
_MOVES = ("to", "cuda", "xpu", "npu", "hpu", "mlu", "musa", "type", "pin_memory")
#: Methods that scripts call before they move a tensor; done as always, their results remember.
_STEPS_BEFORE = (
    "float",
    "half",
    "bfloat16",
    "double",
    "long",
    "int",
    "contiguous",
    "view",
    "reshape",
    "flatten",
    "unsqueeze",
    "squeeze",
    "permute",
    "transpose",
)
_DEEPEST = 8
#: Results kept of one tensor: a script whose calls differ in each step would fill the device.
_MOST_RESULTS = 32
#: Bytes of an array that are compared at each hand-out.
_SAMPLED_BYTES = 251


class Notes:
    """What is worth saying of the batches of one loader; each thing once.

    Attributes
    ----------
    host_bytes : int
        Of tensors that the loader returned in host memory.
    moved_bytes : int
        Of those whose copy on a device is kept.
    """

    __slots__ = ("_collector", "_said", "host_bytes", "moved_bytes")

    def __init__(self, collector: str) -> None:
        self._collector = collector
        self._said: set[str] = set()
        self.host_bytes = 0
        self.moved_bytes = 0

    def warn(self, what: str, why: str) -> None:
        """Something of the replay is not as it should be."""
        if what not in self._said:
            self._said.add(what)
            recorder.unavailable(self._collector, what, why)

    def inform(self, what: str, why: str) -> None:
        """Something worth knowing."""
        if what not in self._said:
            self._said.add(what)
            code = recorder.collector_code(self._collector)
            _native.report_loss(code, what, 0, why[:300], recorder.code("Severity", "info"))

    def failed(self, error: BaseException) -> None:
        """Report an exception of ours."""
        failed(self._collector, "replay", error)


class KeptBatch:
    """A batch of the real loader.

    Parameters
    ----------
    batch : object
        Anything a collate function returns.
    notes : Notes
        Of its loader.

    Attributes
    ----------
    shapes : list
        Of its tensors, in the order in which they lie in it.
    """

    __slots__ = ("_batch", "_notes", "_renew", "shapes")

    def __init__(self, batch: Any, notes: Notes) -> None:
        self._batch = batch
        self._notes = notes
        self._renew: Callable[[], Any] | None = None
        self.shapes: list[Any] = []
        try:
            self._renew = _Keeper(notes, self.shapes).keep(batch, 0)
        except Exception as error:
            notes.failed(error)

    def hand_out(self) -> Any:
        """The batch as the loader made it; its own containers, aliases of its tensors."""
        if self._renew is None:
            return self._batch
        try:
            return self._renew()
        except Exception as error:
            self._notes.failed(error)
            return self._batch


class _Keeper:
    """Takes a batch apart once; ``keep`` returns how to make a part anew, None for what may be handed out as it is."""

    def __init__(self, notes: Notes, shapes: list[Any]) -> None:
        self._notes, self._shapes = notes, shapes
        torch: Any = sys.modules["torch"]
        self._tensor = torch.Tensor
        self._seen: dict[int, Any] = {}
        # A batch may be moved inside a region that Dynamo compiles whole.
        patching.look_like(_call, torch.nn.Module._call_impl)

    def keep(self, part: Any, depth: int) -> Callable[[], Any] | None:
        """How to make a part of a batch anew."""
        if isinstance(part, self._tensor):
            self._shapes.append(_shape_of(part))
            kept = self._seen.get(id(part))
            if kept is None:
                kept = self._seen[id(part)] = KeptTensor(part, self._notes)
            return kept.hand_out
        if depth >= _DEEPEST or isinstance(part, (str, bytes, int, float, type(None), type)) or id(part) in self._seen:
            return None
        self._seen[id(part)] = None
        if isinstance(part, (dict, UserDict)):
            return self._mapping(part, depth)
        if isinstance(part, list):
            return self._list(part, depth)
        if isinstance(part, tuple):
            return self._tuple(part, depth)
        if (getattr(part, "__dict__", None) or hasattr(part, "__slots__")) and not callable(part):
            return self._object(part, depth)
        return self._array(part)

    def _within(self, items: Any, depth: int) -> list[tuple[Any, Callable[[], Any]]]:
        found = ((key, self.keep(value, depth + 1)) for key, value in items)
        return [(key, renew) for key, renew in found if renew is not None]

    def _mapping(self, part: Any, depth: int) -> Callable[[], Any]:
        inner = self._within(part.items(), depth)
        pristine = copy.copy(part)

        def renew() -> Any:
            made = copy.copy(pristine)
            for key, renew_value in inner:
                made[key] = renew_value()
            return made

        return renew

    def _list(self, part: Any, depth: int) -> Callable[[], Any]:
        inner = self._within(enumerate(part), depth)
        pristine = copy.copy(part)

        def renew() -> Any:
            made = copy.copy(pristine)
            for index, renew_value in inner:
                made[index] = renew_value()
            return made

        return renew

    def _tuple(self, part: Any, depth: int) -> Callable[[], Any] | None:
        inner = self._within(enumerate(part), depth)
        if not inner:
            return None
        build = getattr(type(part), "_make", type(part))

        def renew() -> Any:
            made = list(part)
            for index, renew_value in inner:
                made[index] = renew_value()
            return build(made)

        return renew

    def _object(self, part: Any, depth: int) -> Callable[[], Any] | None:
        """A batch of the user's own class: its attributes are renewed if they hold a tensor."""
        before = len(self._shapes)
        inner = self._within(getattr(part, "__dict__", {}).items(), depth)
        slots = self._within(_slots_of(part), depth)
        if len(self._shapes) == before:
            return None  # anything may be costly to copy, an image for one
        pristine = copy.copy(part)

        def renew() -> Any:
            made = copy.copy(pristine)
            for name, renew_value in inner:
                vars(made)[name] = renew_value()
            for name, renew_value in slots:
                object.__setattr__(made, name, renew_value())  # frozen or not
            return made

        return renew

    def _array(self, part: Any) -> Callable[[], Any] | None:
        """An array of numpy or its like: sampled bytes tell whether it was changed in place."""
        try:
            view = memoryview(part).cast("B")
        except (TypeError, ValueError, NotImplementedError, BufferError):
            return None
        if view.readonly or not view.nbytes:
            return None
        stride = max(1, view.nbytes // _SAMPLED_BYTES)
        pristine = bytes(view)
        sample = bytes(view[::stride])

        def renew() -> Any:
            if bytes(view[::stride]) != sample:
                view[:] = pristine
                self._notes.inform("replayed_batches_restored", "the script changes its arrays in place")
            return part

        return renew


def _slots_of(part: Any) -> list[tuple[str, Any]]:
    """Attributes of an object that has no dictionary for them."""
    found = [vars(kind).get("__slots__", ()) for kind in type(part).__mro__]
    names = [name for slots in found for name in ([slots] if isinstance(slots, str) else slots)]
    return [(name, getattr(part, name)) for name in names if name[:2] != "__" and hasattr(part, name)]


class KeptTensor:
    """A tensor that is handed out as often as wanted, and what its methods returned.

    Parameters
    ----------
    tensor : torch.Tensor or None
        Kept, never handed out itself; None for what is made anew in each step, of which only results are kept.
    notes : Notes
        Of its loader.
    source : KeptTensor, optional
        The tensor of the batch that this one comes from.
    """

    __slots__ = (
        "_clones",
        "_is_moved",
        "_last",
        "_methods",
        "_notes",
        "_pristine",
        "_results",
        "_source",
        "_tensor",
        "_version",
    )

    def __init__(self, tensor: Any, notes: Notes, source: KeptTensor | None = None) -> None:
        self._notes = notes
        self._source = source
        self._tensor: Any = None if tensor is None else _alias(tensor)
        self._pristine: Any = _alias(tensor).clone() if source is None else None
        self._version = -1 if tensor is None else _version_of(tensor)
        self._results: dict[Any, KeptTensor] = {}
        self._clones = False
        self._is_moved = False
        self._last: Callable[[], Any] = _nothing
        self._methods = {} if tensor is None or not _is_on_host(tensor) else self._methods_of(self._tensor)
        if source is None and _is_on_host(tensor):
            notes.host_bytes += _bytes_of(tensor)

    def hand_out(self, again: Callable[[], Any] | None = None) -> Any:
        """An alias; ``again`` makes the tensor anew if the script has changed it in place."""
        if _version_of(self._tensor) != self._version:
            self._undo(again)
        if self._clones:
            return self._tensor.clone()
        if not self._methods:
            return _alias(self._tensor)
        alias = self._equipped(self._tensor)
        self._last = weakref.ref(alias)
        return alias

    def _equipped(self, twin: Any) -> Any:
        alias = _alias(twin)
        alias.__dict__.update(self._methods or self._methods_of(twin))
        return alias

    def _undo(self, again: Callable[[], Any] | None) -> None:
        self._notes.inform("replayed_batches_restored", "the script changes its batches in place")
        if again is not None:
            # It will do so in each step: from now on it gets a copy, made where the tensor lies.
            self._tensor = again()
            self._clones = True
        elif self._pristine is not None:
            self._tensor.copy_(self._pristine)
        self._version = _version_of(self._tensor)

    def _methods_of(self, twin: Any) -> dict[str, Any]:
        """Attributes of an alias. ``twin`` is no alias that was handed out: they would hold each other."""
        names = [name for name in (*_MOVES, *_STEPS_BEFORE) if hasattr(type(twin), name)]
        made: dict[str, Any] = {name: functools.partial(_call, self, twin, name) for name in names}
        # Whoever copies or pickles the batch gets a tensor like any other.
        made["__deepcopy__"] = functools.partial(_deepcopy, twin)
        made["__reduce_ex__"] = functools.partial(_reduce, twin)
        return made

    def call(self, twin: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Call a method of an alias, or give its former result."""
        original = getattr(type(twin), name)
        live = self._last()
        key = _key(name, args, kwargs)
        if live is not None and live.requires_grad:
            return original(live, *args, **kwargs)
        if key is None or _version_of(twin) != self._version:
            result = original(twin, *args, **kwargs)
            if isinstance(result, type(twin)) and result.device != twin.device:
                self._notes.warn("replayed_batches_copied_again", "the script changes its batches before it moves them")
            return result
        again = functools.partial(original, twin, *args, **kwargs)
        found = self._results.get(key)
        if found is not None and found._tensor is not None:
            return found.hand_out(again)
        result = again()
        if result is twin:  # nothing to do
            return self._equipped(twin) if live is None else live
        if type(result) is not type(twin) or (found is None and len(self._results) >= _MOST_RESULTS):
            return result
        source = self._source or self
        if result.device != twin.device or name == "pin_memory":
            self._results[key] = moved = KeptTensor(result, self._notes, source)
            source.note_move(result)
            return moved.hand_out(again)
        if found is None:
            found = self._results[key] = KeptTensor(None, self._notes, source)
        found._version = _version_of(result)
        result.__dict__.update(found._methods_of(_alias(result)))
        return result

    def note_move(self, result: Any) -> None:
        """Count what is on a device from now on."""
        if not self._is_moved and _is_on_host(self._tensor) and not _is_on_host(result):
            self._is_moved = True
            self._notes.moved_bytes += _bytes_of(self._tensor)


def _call(kept: KeptTensor, twin: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    if marks.is_compiling():
        return getattr(twin, name)(*args, **kwargs)
    return kept.call(twin, name, args, kwargs)


def _deepcopy(twin: Any, memo: dict[int, Any]) -> Any:
    return copy.deepcopy(_alias(twin), memo)


def _reduce(twin: Any, protocol: int) -> Any:
    return _alias(twin).__reduce_ex__(protocol)


def _nothing() -> None:
    return None


def _alias(tensor: Any) -> Any:
    """Another tensor of the same memory and version counter; itself, if its class forgets what it is."""
    made = tensor.detach()
    return made if type(made) is type(tensor) else tensor


def _version_of(tensor: Any) -> int:
    """Changes in place so far, by any alias; tensors of inference mode do not count them."""
    return -1 if tensor.is_inference() else int(tensor._version)


def _is_on_host(tensor: Any) -> bool:
    return bool(tensor.device.type == "cpu")


def _shape_of(tensor: Any) -> Any:
    return tensor.numel() if tensor.is_nested else tuple(tensor.size())


def _bytes_of(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _key(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a result is found by; None if the call cannot be told from another one."""
    torch = sys.modules["torch"]
    if any(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values())):
        return None
    device = torch._C._cuda_getDevice() if torch.cuda.is_initialized() else -1  # "cuda" is the current one
    key = (name, device, args, tuple(kwargs.items()))
    try:
        hash(key)
    except TypeError:
        return None
    return key
