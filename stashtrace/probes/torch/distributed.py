"""Every collective of torch.distributed, from Python, DDP's reducer, FSDP and compiled code.

Installed by ``bootstrap`` when ``torch.distributed.distributed_c10d`` has been imported; records from the first
``init_process_group`` on. All collectives pass the dispatcher as ``c10d::*`` operators:

    dist.all_reduce ─┐                    BackendSelect        CPU, CUDA, ...
    reducer, FSDP   ─┼─► c10d::allreduce_ ─► our kernel ─────► gloo, NCCL
    _c10d_functional─┘                        (redispatch)

BackendSelect is in the key set of every call, also below autograd and in inference mode, where the Autograd key is not.
It lies below the modes that trace (fake tensors, functionalisation), which therefore do not see us.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from types import ModuleType
from typing import Any

from stashtrace.probes import clock_ping, patching, process, recorder
from stashtrace.probes.process import thread_state, window
from stashtrace.probes.recorder import cost, failed, intern, now_ticks
from stashtrace.probes.torch import work as torch_work
from stashtrace.probes.torch.groups import Group, Groups
from stashtrace.probes.torch.host_calls.timed_calls import record_call, time_object_collectives

COLLECTOR = "torch_distributed"
_KEY = "BackendSelect"
_emit_call = recorder.RecordWriter("collective_call").emit
_FUNCTIONAL = recorder.code("CollectiveFlag", "functional")
_COALESCED = recorder.code("CollectiveFlag", "coalesced")
_ASYNC = recorder.code("CollectiveFlag", "async_op")
_INFERENCE = recorder.code("CollectiveFlag", "inference")
_IN_BACKWARD = recorder.code("CollectiveFlag", "in_backward")
#: Of the flags of a call: from this bit on they are an ElementType.
_ELEMENT_BIT = 8
_MESSAGES = tuple(recorder.code("CollectiveOp", name) for name in ("send", "receive"))
#: Beginning of an operator's name, and its CollectiveOp; the first match counts.
_OPS = (
    ("_allgather", "all_gather"),
    ("_reduce_scatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("reduce_scatter", "reduce_scatter"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("barrier", "barrier"),
    ("monitored_barrier", "barrier"),
    ("send", "send"),
    ("recv", "receive"),
)
_PAYLOADS = ("input_tensors", "input_tensor", "input_list", "inputs", "input", "tensors")
_PEERS = ("root_rank", "dst", "src")

groups = Groups()
_next_id = itertools.count(1).__next__
_libraries: list[Any] = []
#: Of an idle run.
_sleeping: SleepingOperators | None = None
_world: Any = None
_torch: Any = None
# Looked up once: they are used at every collective, after computations that have filled the caches.
_unbox_group: Any = None
_unbox_work: Any = None
_is_inference: Any = None
#: Type of torch -> its bits in the flags.
_element_bits_of: dict[Any, int] = {}


def install(c10d: ModuleType) -> None:
    """Patch the functions that make and destroy groups; operators are watched from the first group on."""
    global _world
    _world = c10d
    package = sys.modules.get(c10d.__name__.rpartition(".")[0])
    for name, make in (("init_process_group", _init), ("destroy_process_group", _destroy)):
        if patching.replace(COLLECTOR, c10d, name, make) and hasattr(package, name):
            setattr(package, name, getattr(c10d, name))
    patching.replace(COLLECTOR, c10d, "_new_process_group_helper", _new_group, needed=False)
    time_object_collectives(COLLECTOR, [c10d, *([package] if package is not None else [])])
    process.before_end(_end)
    process.in_forked_child(torch_work.forget)
    process.in_forked_child(clock_ping.forget)


# Groups -----------------------------------------------------------------------------------------


def _init(original: Any) -> Any:
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        try:
            process.begin()  # for a rank that was forked after its parent had imported torch
            _watch_operators()
        except Exception as error:
            failed(COLLECTOR, "watch_operators", error)
        begin = now_ticks()
        result = original(*args, **kwargs)
        record_call(COLLECTOR, begin, "init_process_group")
        try:
            recorder.record_fact("rank", _world.get_rank())
            recorder.record_fact("world_size", _world.get_world_size())
            recorder.record_fact("backend", _world.get_backend())
            if "LOCAL_RANK" in os.environ:
                recorder.record_fact("local_rank", os.environ["LOCAL_RANK"])
        except Exception as error:
            failed(COLLECTOR, "init_process_group", error)
        try:
            clock_ping.start(_world)
            groups.note_sockets()  # the ping's belong to no group
        except Exception as error:
            failed(COLLECTOR, "clock_ping", error)
        return result

    return init_process_group


def _new_group(original: Any) -> Any:
    def _new_process_group_helper(*args: Any, **kwargs: Any) -> Any:
        try:
            groups.note_sockets()
        except Exception as error:
            failed(COLLECTOR, "sockets", error)
        result = original(*args, **kwargs)
        try:
            group = result[0] if isinstance(result, tuple) else result
            if hasattr(group, "group_name"):  # which a group of other ranks has not
                groups.made(group.group_name)
        except Exception as error:
            failed(COLLECTOR, "sockets", error)
        return result

    return _new_process_group_helper


def _destroy(original: Any) -> Any:
    def destroy_process_group(group: Any = None, *args: Any, **kwargs: Any) -> Any:
        names: list[str] | None = None
        try:
            torch_work.let_go()
            torch_work.settle()
            world = _world.GroupMember.WORLD
            if group is None or group is world:
                _compare_all()
                clock_ping.repeat(last=False)
            else:
                names = [group.group_name]
                known = groups.named(names[0])
                if known is not None:
                    _compare(known, group)
        except Exception as error:
            failed(COLLECTOR, "destroy_process_group", error)
        result = original(group, *args, **kwargs)
        groups.forget(names)
        return result

    return destroy_process_group


def _compare_all() -> None:
    for process_group in list(_world._world.pg_map):
        group = groups.named(process_group.group_name)
        if group is not None:
            _compare(group, process_group)


def _compare(known: Group, process_group: Any) -> None:
    if _sleeping is not None and _sleeping.asleep:
        known.catch_up(process_group)
    known.compare(process_group)


def _end() -> None:
    if not _libraries:
        return
    torch_work.let_go()
    torch_work.settle()
    _compare_all()
    clock_ping.repeat(last=True)


# Operators --------------------------------------------------------------------------------------


def _watch_operators() -> None:
    """Register our kernels; a second call does nothing."""
    global _torch, _unbox_group, _unbox_work, _is_inference, _sleeping
    if _libraries:
        return
    import torch

    _torch = torch
    _unbox_group = torch._C._distributed_c10d.ProcessGroup.unbox
    _unbox_work = torch._C._distributed_c10d.Work.unbox
    _is_inference = torch.is_inference_mode_enabled
    for name in recorder.code_names("ElementType"):  # some are not in every torch
        element = getattr(torch, "bool" if name == "bool8" else name, None)
        if isinstance(element, torch.dtype):
            _element_bits_of[element] = recorder.code("ElementType", name) << _ELEMENT_BIT
    if window.is_controlled:
        _sleeping = SleepingOperators(torch, _world, groups, _KEY)
        window.on_change(_sleeping.follow)
    make_library: Any = torch.library.Library
    torch_work.install_wait(torch._C._distributed_c10d.Work)
    for namespace, make in (("c10d", _collective_kernel), ("_c10d_functional", _functional_kernel)):
        library = make_library(namespace, "IMPL")
        _libraries.append(library)
        for full_name in torch._C._dispatch_get_all_op_names():
            space, _, name = full_name.partition("::")
            if space != namespace:
                continue
            try:
                _register(library, namespace, name, make)
            except Exception as error:
                recorder.unavailable(COLLECTOR, "operator_not_watched", f"{full_name}: {error!r}")


def _register(library: Any, namespace: str, name: str, make: Any) -> None:
    plain, _, overload = name.partition(".")
    operator = getattr(getattr(getattr(_torch.ops, namespace), plain), overload or "default")
    kernel = make(operator, plain)
    if kernel is not None:
        library.impl(name, kernel, _KEY, with_keyset=True)
        if _sleeping is not None:
            _sleeping.add(namespace, name)


def _keys() -> tuple[Any, Any]:
    """Return the keys below ours, and the key of calls that only compute shapes (fake tensors)."""
    keys = _torch._C.DispatchKey
    return _torch._C._dispatch_keyset_full_after(getattr(keys, _KEY)), keys.Meta


class _Operator:
    """An operator, and the positions of the arguments that we read, from its schema in this torch."""

    def __init__(self, operator: Any, name: str) -> None:
        arguments = [a.name for a in operator._schema.arguments]
        defaults = {a.name: a.default_value for a in operator._schema.arguments}
        self.name_id = intern(f"c10d::{name}")
        self.code = recorder.code("CollectiveOp", next((op for start, op in _OPS if name.startswith(start)), "other"))
        self.is_message = self.code in _MESSAGES
        self.is_monitored = name.startswith("monitored")
        self.group = arguments.index("process_group")
        self.payload = next((arguments.index(a) for a in _PAYLOADS if a in arguments), -1)
        self.peer = next((arguments.index(a) for a in _PEERS if a in arguments), -1)
        self.tag = arguments.index("tag") if "tag" in arguments else -1
        self.async_op = arguments.index("async_op") if "async_op" in arguments else -1
        self.async_default = bool(defaults.get("async_op", True))
        self.flags = _COALESCED if "coalesced" in name else 0


def _collective_kernel(operator: Any, name: str) -> Any:
    if not any(a.name == "process_group" for a in operator._schema.arguments):
        return None
    about = _Operator(operator, name)
    below, meta = _keys()
    redispatch = operator.redispatch

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        begin = now_ticks()
        launch = None
        blocking = False
        try:
            if not keyset.has(meta):
                # args lacks trailing arguments that have their default.
                given = about.async_op if about.async_op < len(args) else -1
                blocking = not (args[given] if given >= 0 else about.async_default)
                launch = _enter(about, args, begin, blocking)
        except Exception as error:
            failed(COLLECTOR, "enter", error)
        entered = now_ticks()
        try:
            result = redispatch(keyset & below, *args, **kwargs)
        except BaseException:
            if launch is not None:
                launch.finish(now_ticks(), torch_work.FAILED)
            raise
        left = now_ticks()
        if launch is not None:
            try:
                launch.return_ticks = left
                boxed = result[-1] if isinstance(result, (list, tuple)) and result else result
                work = None if boxed is None else _unbox_work(boxed)
                group = launch.group
                on_cpu = _on_cpu(args)
                visible = group.backend != "nccl" if on_cpu is None else on_cpu
                torch_work.launched(launch, work, blocking=blocking, end_visible=visible)
                if not group.scanned:
                    groups.scan(group)
            except Exception as error:
                failed(COLLECTOR, "leave", error)
        cost.add(now_ticks() - left + entered - begin)
        return result

    return kernel


def _enter(about: _Operator, args: Any, begin: int, blocking: bool) -> torch_work.Launch | None:
    """Count the operation and write that it was entered, so that a hang can be seen."""
    state = thread_state
    if state.lingering is not None:
        torch_work.let_go()
    group = groups.find(_unbox_group(args[about.group]), _world)
    state.launches += 1
    peer = int(args[about.peer]) if about.peer >= 0 else -1
    group_hash = group.hash
    if about.is_message:
        group.messages += 1
        group_hash, sequence, peer = _message(about, args, group, peer)
    else:
        group.collectives += 1
        if about.is_monitored:
            group.monitored_barrier()
        sequence = group.next_sequence()
    if not window.open:
        return None
    flags = about.flags | (0 if blocking else _ASYNC)
    if state.functional:
        flags |= _FUNCTIONAL
    if state.in_backward:
        flags |= _IN_BACKWARD
    if _is_inference():
        flags |= _INFERENCE
    launch = torch_work.Launch(_next_id() & 0xFFFFFFFF, begin, group)
    size = 0
    if about.payload >= 0:
        payload = args[about.payload]
        size = _bytes(payload)
        flags |= _element_bits(payload)
    _emit_call(begin, group_hash, sequence, size, launch.collective_id, about.name_id, peer, about.code, flags)
    if state.functional:
        state.functional_launch = launch
    return launch


def _message(about: _Operator, args: Any, group: Group, peer: int) -> tuple[int, int, int]:
    """Return hash, number and direction of a send or receive, within the pair of ranks that it joins."""
    tag = int(args[about.tag]) if about.tag >= 0 else 0
    if about.code == _MESSAGES[0]:
        return (*group.message(group.rank, peer, tag), 1)
    return (*group.message(peer, group.rank, tag), 0)


def _bytes(tensors: Any) -> int:
    if isinstance(tensors, (list, tuple)):
        return sum(map(_bytes, tensors))
    try:
        return int(tensors.nbytes)
    except (RuntimeError, AttributeError):
        return 0  # a sparse tensor


def _element_bits(tensors: Any) -> int:
    """Return the type of the elements of the first tensor as bits of the flags."""
    while isinstance(tensors, (list, tuple)):
        if not tensors:
            return 0
        tensors = tensors[0]
    return _element_bits_of.get(getattr(tensors, "dtype", None), 0)


def _on_cpu(args: Any) -> bool | None:
    """Return whether the first tensor among the arguments is on the CPU; None if there is none on this rank."""
    for argument in args:
        on_cpu = _on_cpu(argument) if isinstance(argument, (list, tuple)) else getattr(argument, "is_cpu", None)
        if on_cpu is not None:
            return bool(on_cpu)
    return None


def _functional_kernel(operator: Any, name: str) -> Any:
    """Mark what a functional operator launches; the c10d operator inside it is recorded."""
    below, meta = _keys()
    redispatch = operator.redispatch
    if name == "wait_tensor":
        return _wait_tensor_kernel(redispatch, below, meta)

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        state = thread_state
        outer, state.functional = state.functional, True
        state.functional_launch = None
        try:
            result = redispatch(keyset & below, *args, **kwargs)
        finally:
            state.functional = outer
        try:
            launch, state.functional_launch = state.functional_launch, None
            if launch is not None:
                torch_work.remember_storages(launch, result)
        except Exception as error:
            failed(COLLECTOR, "functional", error)
        return result

    return kernel


def _wait_tensor_kernel(redispatch: Any, below: Any, meta: Any) -> Any:
    def kernel(keyset: Any, tensor: Any) -> Any:
        begin = now_ticks()
        status = torch_work.FAILED
        try:
            result = redispatch(keyset & below, tensor)
            status = torch_work.FINE
            return result
        finally:
            try:
                if not keyset.has(meta):
                    torch_work.functional_waited(tensor, begin, now_ticks(), status)
            except Exception as error:
                failed(COLLECTOR, "wait_tensor", error)

    return kernel


# Pauses of an idle run --------------------------------------------------------------------------

#: Beginnings of the names of operators that backends count each in its way.
_COUNTED_APART = ("send", "recv", "monitored_barrier")


class SleepingOperators:
    """Puts our kernels to sleep in the pauses of an idle run. ``world``: ``torch.distributed.distributed_c10d``.

    A kernel in Python costs a collective some ten microseconds, also while it records nothing. One that falls through
    is registered on top of ours, so that torch goes straight to the backend; it is taken away when recording begins.
    The numbers of collectives, which must be the same on all ranks, then go on with the groups' counts, which a
    first step has shown to agree with ours. Sends, receives and monitored barriers keep our kernels: backends differ in
    how they count them.
    """

    def __init__(self, torch: Any, world: Any, groups: Groups, key: str) -> None:
        self._torch, self._world, self._groups, self._key = torch, world, groups, key
        #: Names of the operators that have a kernel of ours, by namespace.
        self._names: dict[str, list[str]] = {}
        self._covers: list[Any] = []
        self._first_step = window.step

    @property
    def asleep(self) -> bool:
        """Whether torch's operators do not lead to us."""
        return bool(self._covers)

    def add(self, namespace: str, name: str) -> None:
        """Note an operator that has a kernel of ours."""
        if not name.startswith(_COUNTED_APART):
            self._names.setdefault(namespace, []).append(name)

    def follow(self, on: bool) -> bool:
        """Wake or sleep with the recording; return whether that is done."""
        return self._wake() if on else self._sleep()

    def _wake(self) -> bool:
        if self._covers:
            for known, group in self._known():
                known.catch_up(group)
            for cover in self._covers:
                cover.reset()
            self._covers = []
        return True

    def _sleep(self) -> bool:
        # One step at least is counted, and no other thread may look a kernel up while it changes.
        if self._covers or not self._world.is_initialized() or window.step <= self._first_step:
            return bool(self._covers)
        if not all(known.counts_like(group) for known, group in self._known()) or _others_inside(self._world.__file__):
            return False
        torch_work.let_go()
        torch_work.forget_waits()
        self._covers = [self._cover(namespace, names) for namespace, names in self._names.items()]
        return True

    def _cover(self, namespace: str, names: list[str]) -> Any:
        cover = self._torch._C._dispatch_library("IMPL", namespace, "")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns once of a kernel that replaces another one
            for name in names:
                cover.impl(name, self._key, self._torch.library.fallthrough_kernel, False)
        return cover

    def _known(self) -> list[tuple[Group, Any]]:
        every = [(self._groups.named(group.group_name), group) for group in list(self._world._world.pg_map)]
        return [(known, group) for known, group in every if known is not None]


def _others_inside(file: str) -> bool:
    """Whether another thread is inside a function of torch.distributed."""
    own = sys._getframe()
    for frame in sys._current_frames().values():
        at: Any = frame
        chain = []
        while at is not None:
            chain.append(at)
            at = at.f_back
        if own not in chain and any(one.f_code.co_filename == file for one in chain):
            return True
    return False
