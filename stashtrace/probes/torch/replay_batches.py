"""A batch that is kept and handed out many times: new containers around the same tensors.

What a script does to a batch must not affect the next step. Containers are copied each time. A tensor is handed out as
an alias of the kept one, so that ``requires_grad`` and gradients stay with the alias. If its version counter shows that
a tensor was changed in place, it is restored from a second copy.

Each alias has, as its attributes, the methods by which a script moves it to a device, so that other tensors of the
job are not affected. The first result of such a call is kept on the device, and later calls get an alias of it. A call
that makes another tensor on the host (``x.float()``, ``x.unsqueeze(1)``) is done as always, and its result gets such
methods too. A tensor that is changed before it is moved is copied again, and a note says so.
"""

from __future__ import annotations

import copy
import functools
import sys
import weakref
from collections import UserDict
from collections.abc import Callable
from typing import Any

from stashtrace.probes import annotations as marks
from stashtrace.probes import native, patching, recorder
from stashtrace.probes.recorder import failed

#: Methods that move or pin a tensor; their result is kept.
_MOVES = ("to", "cuda", "xpu", "npu", "hpu", "mlu", "musa", "type", "pin_memory")
#: Methods that scripts call before they move a tensor; done as always, but their results have methods that keep, too.
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
#: Results that are kept of one tensor; those of a script whose calls differ in each step would fill the device.
_MOST_RESULTS = 32
#: Bytes of an array that are compared each time it is handed out.
_SAMPLED_BYTES = 251


class Notes:
    """What is reported of the batches of one loader, each reason once.

    ``host_bytes``: of tensors that the loader returned in host memory. ``moved_bytes``: of those whose copy on a device
    is kept.
    """

    __slots__ = ("_collector", "_reasons", "host_bytes", "moved_bytes")

    def __init__(self, collector: str) -> None:
        self._collector = collector
        self._reasons: set[str] = set()
        self.host_bytes = 0
        self.moved_bytes = 0

    def warn(self, reason: str, detail: str) -> None:
        """Report that the replay differs from the real data, as an error."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            recorder.unavailable(self._collector, reason, detail)

    def inform(self, reason: str, detail: str) -> None:
        """Report something about the replay, as information."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            code = recorder.collector_code(self._collector)
            native.report_loss(code, reason, 0, detail[:300], recorder.code("Severity", "info"))

    def failed(self, error: BaseException) -> None:
        """Report an exception of the replay."""
        failed(self._collector, "replay", error)


class KeptBatch:
    """A batch of the real loader.

    ``batch``: anything a collate function returns. ``notes``: of its loader. ``shapes``: shapes of its tensors, in
    their order in the batch.
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
        """Return the batch as the loader made it: new containers, and aliases of its tensors."""
        if self._renew is None:
            return self._batch
        try:
            return self._renew()
        except Exception as error:
            self._notes.failed(error)
            return self._batch


class _Keeper:
    """Takes a batch apart once, into functions that make its parts again."""

    def __init__(self, notes: Notes, shapes: list[Any]) -> None:
        self._notes, self._shapes = notes, shapes
        torch: Any = sys.modules["torch"]
        self._tensor = torch.Tensor
        self._seen: dict[int, Any] = {}
        # A batch may be moved inside a region that Dynamo compiles whole.
        patching.look_like(_call, torch.nn.Module._call_impl)

    def keep(self, part: Any, depth: int) -> Callable[[], Any] | None:
        """Return the function that makes a part of a batch again; None if the part may be handed out as it is."""
        if isinstance(part, self._tensor):
            self._shapes.append(part.numel() if part.is_nested else tuple(part.size()))
            kept = self._seen.get(id(part))
            if kept is None:
                kept = self._seen[id(part)] = KeptTensor(part, self._notes)
            return kept.hand_out
        if depth >= _DEEPEST or isinstance(part, (str, bytes, int, float, type(None), type)) or id(part) in self._seen:
            return None
        self._seen[id(part)] = None
        if isinstance(part, (dict, UserDict)):
            return self._container(part, part.items(), depth)
        if isinstance(part, list):
            return self._container(part, enumerate(part), depth)
        if isinstance(part, tuple):
            return self._tuple(part, depth)
        if (getattr(part, "__dict__", None) or hasattr(part, "__slots__")) and not callable(part):
            return self._object(part, depth)
        return self._array(part)

    def _within(self, items: Any, depth: int) -> list[tuple[Any, Callable[[], Any]]]:
        parts = ((key, self.keep(value, depth + 1)) for key, value in items)
        return [(key, renew) for key, renew in parts if renew is not None]

    def _container(self, part: Any, items: Any, depth: int) -> Callable[[], Any]:
        """A mapping or list, with its ``items``: keys or indices, and values."""
        inner = self._within(items, depth)
        pristine = copy.copy(part)

        def renew() -> Any:
            made = copy.copy(pristine)
            for key, renew_value in inner:
                made[key] = renew_value()
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
        """An object of the user's class: its attributes are made again if they hold a tensor."""
        before = len(self._shapes)
        inner = self._within(getattr(part, "__dict__", {}).items(), depth)
        slots = self._within(_slots_of(part), depth)
        if len(self._shapes) == before:
            return None  # without a tensor it is not copied, which may be costly, as for an image
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
        """An array of numpy or the like: sampled bytes show whether it was changed in place."""
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
    """Return names and values of the attributes that an object has in slots."""
    declared = [vars(kind).get("__slots__", ()) for kind in type(part).__mro__]
    names = [name for slots in declared for name in ([slots] if isinstance(slots, str) else slots)]
    return [(name, getattr(part, name)) for name in names if name[:2] != "__" and hasattr(part, name)]


class KeptTensor:
    """A tensor that is handed out many times, and the results of its methods.

    ``tensor``: kept, never handed out itself; None for a tensor that is made again in each step, of which only results
    are kept. ``notes``: of its loader. ``source``: the tensor of the batch that this one was made from.
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
        """Return an alias; ``again`` makes the tensor again if the script has changed it in place."""
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
            # The script will do so in each step, so from now on it gets a copy, made on the tensor's device.
            self._tensor = again()
            self._clones = True
        elif self._pristine is not None:
            self._tensor.copy_(self._pristine)
        self._version = _version_of(self._tensor)

    def _methods_of(self, twin: Any) -> dict[str, Any]:
        """Return the attributes of an alias. ``twin`` is not the alias itself, since that would be a cycle."""
        names = [name for name in (*_MOVES, *_STEPS_BEFORE) if hasattr(type(twin), name)]
        made: dict[str, Any] = {name: functools.partial(_call, self, twin, name) for name in names}
        # A copied or pickled batch has ordinary tensors.
        made["__deepcopy__"] = functools.partial(_deepcopy, twin)
        made["__reduce_ex__"] = functools.partial(_reduce, twin)
        return made

    def call(self, twin: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Call a method of an alias, or return its earlier result."""
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
        kept = self._results.get(key)
        if kept is not None and kept._tensor is not None:
            return kept.hand_out(again)
        result = again()
        if result is twin:  # there was nothing to do
            return self._equipped(twin) if live is None else live
        if type(result) is not type(twin) or (kept is None and len(self._results) >= _MOST_RESULTS):
            return result
        source = self._source or self
        if result.device != twin.device or name == "pin_memory":
            self._results[key] = moved = KeptTensor(result, self._notes, source)
            source.note_move(result)
            return moved.hand_out(again)
        if kept is None:
            kept = self._results[key] = KeptTensor(None, self._notes, source)
        kept._version = _version_of(result)
        result.__dict__.update(kept._methods_of(_alias(result)))
        return result

    def note_move(self, result: Any) -> None:
        """Count the bytes of this tensor as moved if ``result`` is its copy on a device."""
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
    """Return another tensor with the same memory and version counter; ``tensor`` itself if that loses its class."""
    made = tensor.detach()
    return made if type(made) is type(tensor) else tensor


def _version_of(tensor: Any) -> int:
    """Return the number of changes in place, by any alias; -1 for tensors of inference mode, which do not count."""
    return -1 if tensor.is_inference() else int(tensor._version)


def _is_on_host(tensor: Any) -> bool:
    return bool(tensor.device.type == "cpu")


def _bytes_of(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _key(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the key of a call's result, None if the call cannot be distinguished from others."""
    torch = sys.modules["torch"]
    if any(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values())):
        return None
    device = torch._C._cuda_getDevice() if torch.cuda.is_initialized() else -1  # "cuda" is the current device
    key = (name, device, args, tuple(kwargs.items()))
    try:
        hash(key)
    except TypeError:
        return None
    return key
