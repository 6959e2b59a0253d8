"""Operators of torch.distributed in an idle run: without our kernels while nothing is recorded.

A kernel in Python costs a collective some ten microseconds, also while it records nothing. One that falls through is
registered on top of ours, so that torch goes straight to the backend; it is taken away when recording begins. The
numbers of collectives, which must be the same on all ranks, then go on with the groups' own counts, which a first step
has shown to agree with ours.

Sends, receives and monitored barriers keep our kernels: backends differ in how they count them.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
import warnings
from typing import Any

from stashtrace.probes.process import window
from stashtrace.probes.torch import work as torch_work
from stashtrace.probes.torch.groups import Group, Groups

_COUNTED_APART = ("send", "recv", "monitored_barrier")


class SleepingOperators:
    """Puts our kernels to sleep in a pause. ``world``: ``torch.distributed.distributed_c10d``."""

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
        """Return the groups that are counted, each with torch's own."""
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
