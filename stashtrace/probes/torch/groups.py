"""Process groups, with a hash that is the same on every rank: members, counters, connections.

Keeps no reference to a process group, since it could not be destroyed then. A group is found by its name, and forgotten
when the job destroys it.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
from collections.abc import Iterable
from typing import Any

from stashtrace.probes import native, recorder
from stashtrace.probes.process import window
from stashtrace.probes.recorder import intern, now_ticks

COLLECTOR = "torch_distributed"
_emit_group = recorder.RecordWriter("group").emit
_emit_count = recorder.RecordWriter("group_count").emit
_emit_peer = recorder.RecordWriter("group_peer").emit
#: The addresses of later groups are not recorded.
_MOST_SCANS = 64


def _hash(*parts: object) -> int:
    text = "\0".join(str(p) for p in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class Group:
    """One process group of this process.

    ``name``, ``title``, ``backend``: torch's name, a name for people, and the backend's name. ``members``: global ranks
    in group order. ``rank``: of this process within the group. ``life``: how often the default group has been
    destroyed: names are used again then.
    """

    def __init__(self, name: str, title: str, backend: str, members: tuple[int, ...], rank: int, life: int) -> None:
        self.name = name
        self.title = title
        self.backend = backend
        self.members = members
        self.rank = rank
        self.hash = _hash("group", life, name, members)
        self.begin_at(0)
        self.collectives = 0
        self.messages = 0
        self.uncounted = 0
        self.baseline: int | None = None
        self._counts_messages = True
        self.announced = False
        self.scanned = False
        self._subgroups: dict[tuple[int, int, int], tuple[int, Any]] = {}

    def begin_at(self, number: int) -> None:
        """Give the first collective that is counted here this number."""
        self._first = number
        self.next_sequence = itertools.count(number).__next__

    def announce(self) -> None:
        """Write the ``group`` row; tried again as long as it is dropped."""
        self.announced = _emit_group(
            now_ticks(),
            self.hash,
            intern(self.title),
            intern(self.backend),
            intern(",".join(map(str, self.members))),
            self.rank,
            len(self.members),
        )

    def message(self, sender: int, receiver: int, tag: int) -> tuple[int, int]:
        """Return hash and number of a point-to-point message, counted for the pair of ranks.

        The other ranks of the group do not see the message, so a count of the group would differ between ranks.
        """
        key = (sender, receiver, tag)
        subgroup = self._subgroups.get(key)
        if subgroup is None:
            subgroup_hash = _hash("messages", self.hash, sender, receiver, tag)
            subgroup = self._subgroups[key] = (subgroup_hash, itertools.count().__next__)
            ends = [self.members[i] if 0 <= i < len(self.members) else i for i in (sender, receiver)]
            _emit_group(
                now_ticks(),
                subgroup_hash,
                intern(f"{self.title} {ends[0]} to {ends[1]}"),
                intern(self.backend),
                intern(",".join(map(str, ends))),
                0 if sender == self.rank else 1,
                2,
            )
        return subgroup[0], subgroup[1]()

    def monitored_barrier(self) -> None:
        """Count a monitored barrier as messages between rank 0 and each other rank; the backend does not count it."""
        self.uncounted += 1
        self.messages += 2 * (len(self.members) - 1) if self.rank == 0 else 2

    def counts_like(self, process_group: Any) -> bool:
        """Whether the group's count has grown by what was counted here, so that it can count in our place."""
        grown, counted = self._grown(process_group), self.collectives - self.uncounted
        self._counts_messages = grown == counted + self.messages
        return grown is not None and (self._counts_messages or grown == counted)

    def catch_up(self, process_group: Any) -> None:
        """Take over what the group has counted itself while nothing was counted here."""
        grown = self._grown(process_group)
        seen = self.collectives - self.uncounted + (self.messages if self._counts_messages else 0)
        if grown is not None and grown > seen:
            self.collectives += grown - seen
            self.next_sequence = itertools.count(self._first + self.collectives).__next__

    def _grown(self, process_group: Any) -> int | None:
        backend = own_count(process_group)
        return None if backend is None or self.baseline is None else backend - self.baseline

    def compare(self, process_group: Any) -> None:
        """Write our count of operations and the group's own; a loss row says how many we did not see."""
        found = self._grown(process_group)
        grown = -1 if found is None else found
        _emit_count(now_ticks(), self.hash, self.collectives, grown)
        # Some backends count point-to-point messages and others do not; these must not look like a gap.
        missing = grown - (self.collectives - self.uncounted) - self.messages
        if missing > 0:
            recorder.failures.add(
                COLLECTOR, "collectives_not_seen", f"{self.title} counted {missing} more operations than were recorded"
            )


def own_count(process_group: Any) -> int | None:
    """Return the group's count of operations, None if its backend does not count."""
    try:
        return int(process_group._get_sequence_number_for_group())
    except (AttributeError, RuntimeError):
        return None


class Groups:
    """All groups of this process by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Group] = {}
        self._life = 0
        self._scans = 0
        self._known_sockets: set[int] = set()
        self._ends: dict[str, set[tuple[str, str]]] = {}

    def find(self, process_group: Any, world: Any) -> Group:
        """Return the Group of a torch ProcessGroup, made on the first call.

        ``world``: ``torch.distributed.distributed_c10d``, which knows the members.
        """
        name = process_group.group_name
        group = self._by_name.get(name)
        if group is None:
            group = self._by_name[name] = Group(
                name,
                _title(process_group, name),
                _backend_name(process_group, world),
                _members(process_group, world),
                int(process_group.rank()),
                self._life,
            )
            group.baseline = own_count(process_group)
            # In an idle run, ranks may have begun to count it at different collectives.
            if window.is_controlled and group.baseline is not None:
                group.begin_at(group.baseline)
        if not group.announced:
            group.announce()
        return group

    def forget(self, names: Iterable[str] | None) -> None:
        """Forget destroyed groups; all of them for None, with the default group, whose end frees the names."""
        if names is None:
            self._by_name.clear()
            self._ends.clear()
            self._life += 1
            return
        for name in names:
            self._by_name.pop(name, None)

    def named(self, name: str) -> Group | None:
        """Return the group of a name, None if no operation of it was seen."""
        return self._by_name.get(name)

    def note_sockets(self) -> set[tuple[str, str]]:
        """Return the ends of the connections that were made since the last call."""
        if self._scans >= _MOST_SCANS:
            return set()
        self._scans += 1
        connections = _connections()
        ends = {(own, peer) for inode, own, peer in connections if inode not in self._known_sockets}
        self._known_sockets = {inode for inode, _, _ in connections}
        return ends

    def made(self, name: str) -> None:
        """A group has been made: connections since the last ``note_sockets`` belong to it."""
        self._ends[name] = self.note_sockets()

    def scan(self, group: Group) -> None:
        """Write the connections of the group, made with the group or by its first operation."""
        group.scanned = True
        ends = self._ends.pop(group.name, None) or self.note_sockets()
        for own, peer in sorted(ends):
            _emit_peer(now_ticks(), group.hash, intern(own), intern(peer))


def _members(process_group: Any, world: Any) -> tuple[int, ...]:
    try:
        return tuple(int(r) for r in world.get_process_group_ranks(process_group))
    except (AttributeError, KeyError, ValueError, RuntimeError):
        return tuple(range(int(process_group.size())))


def _title(process_group: Any, name: str) -> str:
    description = getattr(process_group, "group_desc", "")
    return description if description not in ("", "undefined") else f"group {name}"


def _backend_name(process_group: Any, world: Any) -> str:
    try:
        return str(world.get_backend(process_group))
    except (AttributeError, KeyError, ValueError, RuntimeError):
        return "unknown"


def _connections() -> list[tuple[int, str, str]]:
    """Return (inode, own address, peer address) of the established TCP connections, without the store's."""
    store_port = os.environ.get("MASTER_PORT", "")
    connections: list[tuple[int, str, str]] = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            status = os.fstat(int(entry))
        except OSError:
            continue  # it has been closed
        ends = native.tcp_ends(int(entry)) if stat.S_ISSOCK(status.st_mode) else None
        if ends is None or (store_port and store_port in (end.rpartition(":")[2] for end in ends)):
            continue
        connections.append((status.st_ino, *ends))
    return connections
