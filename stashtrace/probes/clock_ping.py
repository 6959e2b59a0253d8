"""A few small messages between hosts, at the start and at the end of a job, by which their clocks are compared.

    child    send |--------------------| receive      the parent's two stamps lie between the child's two;
    parent           receive |-| send                 the shortest of some dozens of exchanges says most

``torch.distributed`` calls this when the default group has been made, before it is destroyed, and at the end of the
process. Nothing happens in between, and nothing at all in a job of one host. One process of each host takes part. They
meet in the store that torch made for the group: each takes a number, leaves its address under it, and connects to its
parent in a tree in which each has up to sixteen children. Both sides write their stamps (``clock_ping`` rows).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import struct
import threading
import time
from typing import Any

from stashtrace.probes import native, recorder
from stashtrace.probes.recorder import cost, failed, now_ticks

COLLECTOR = "torch_distributed"
_CHILDREN = 16
_EXCHANGES = 64
_KEPT = 6
_KEY = "stashtrace/clock"
_PATIENCE_S = 2.0
_CONNECT_S = 0.5
#: How long a parent that ends waits for the last exchange of its children.
_FAREWELL_S = 0.5
#: How often an answer is polled for, some tens of microseconds, before the thread sleeps: to wake up takes as long as a
#: message does.
_POLLS_COUNT = 60
_PING, _KEEP, _BYE = 1, 2, 3
_MESSAGE = struct.Struct("<QQQ")  # kind, number, exchange_id
_TOKEN_BYTES = 16

_ping: _Ping | None = None


def start(world: Any) -> None:
    """Compare clocks when the default group has been made; a second call does nothing."""
    global _ping
    if _ping is not None or not _takes_part(world):
        return
    begin = now_ticks()
    _ping = _Ping(world._get_default_store(), world.get_rank(), _hosts(world.get_world_size()))
    try:
        _ping.meet()
    finally:
        cost.ticks += now_ticks() - begin


def repeat(*, last: bool) -> None:
    """Compare clocks once more; ``last`` if the process is about to end. A host that does not answer is left out."""
    global _ping
    if _ping is None:
        return
    begin = now_ticks()
    _ping.exchange(last)
    if last:
        _ping.close()
        _ping = None
    cost.ticks += now_ticks() - begin


def forget() -> None:
    """Forget the connections, in a forked child: they belong to the parent."""
    global _ping
    _ping = None


def _takes_part(world: Any) -> bool:
    size = world.get_world_size()
    if size < 2 or os.environ.get("STASHTRACE_CLOCK_PING", "1") == "0":
        return False
    if os.environ.get("LOCAL_WORLD_SIZE") == str(size):
        return False
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _hosts(world_size: int) -> int:
    """Return the number of processes that take part, 0 if unknown."""
    for name in ("GROUP_WORLD_SIZE", "SLURM_NNODES"):
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    if local.isdecimal() and int(local):
        return -(-world_size // int(local))
    return 0


def _place() -> str:
    """Return a text that identifies host and network namespace."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/net')}"


def _addresses() -> list[str]:
    """Return the addresses at which this process may be reached, most likely first."""
    addresses: list[str] = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ.get("MASTER_ADDR", "192.0.2.1"), 9))  # sends nothing, but chooses a route
        addresses.append(probe.getsockname()[0])
    with contextlib.suppress(OSError):
        addresses += [str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    return sorted(dict.fromkeys(addresses), key=lambda address: address.startswith("127."))


class _Ping:
    """This process's place in the tree: a connection to its parent, and a thread that answers its children."""

    def __init__(self, store: Any, rank: int, hosts: int) -> None:
        self._store = store
        self._rank = rank
        self._hosts = hosts
        self._parent: socket.socket | None = None
        self._children: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._served = threading.Semaphore(0)
        self._gone = threading.Semaphore(0)
        self._emit = recorder.RecordWriter("clock_ping").emit
        self._next_id = int.from_bytes(secrets.token_bytes(8), "little") >> 1

    def meet(self) -> None:
        """Take a number, connect to the parent and exchange; wait for the children, if their number is known."""
        taken = int(self._store.add(f"{_KEY}/count", 1)) - 1
        # torchrun's store survives a restart of the ranks, with their keys: numbers begin again after one of each host.
        start, number = divmod(taken, self._hosts) if self._hosts else (0, taken)
        keys = f"{_KEY}/{start}"
        first_child = number * _CHILDREN + 1
        children = min(_CHILDREN, self._hosts - first_child) if self._hosts else 0
        if children > 0 or not self._hosts:
            self._listener = socket.create_server(("", 0), backlog=_CHILDREN)
            threading.Thread(target=self._serve, name="stashtrace-clock", daemon=True).start()
        port = self._listener.getsockname()[1] if self._listener is not None else 0
        place = _place()
        about = {
            "place": place,
            "addresses": _addresses(),
            "port": port,
            "token": self._token.hex(),
            "rank": self._rank,
        }
        self._store.set(f"{keys}/{number}", json.dumps(about))
        if number:
            self._connect(f"{keys}/{(number - 1) // _CHILDREN}", place)
        self.exchange(False)
        deadline = time.monotonic() + _PATIENCE_S
        for _ in range(children):
            if not self._served.acquire(timeout=max(0.0, deadline - time.monotonic())):
                break

    def exchange(self, last: bool) -> None:
        """Exchange messages with the parent; before the end, wait for the children to do so with us."""
        if self._parent is not None:
            try:
                self._talk(self._parent, last)
            except OSError:
                self._parent.close()  # the parent or the connection is gone; what was exchanged stays
                self._parent = None
        if last:
            deadline = time.monotonic() + _FAREWELL_S
            for _ in list(self._children):
                if not self._gone.acquire(timeout=max(0.0, deadline - time.monotonic())):
                    break

    def close(self) -> None:
        """Close the connections."""
        for connection in (self._parent, self._listener):
            if connection is not None:
                connection.close()

    # The child's side ---------------------------------------------------------------------------

    def _connect(self, key: str, place: str) -> None:
        from datetime import timedelta

        self._store.wait([key], timedelta(seconds=_PATIENCE_S))
        parent = json.loads(self._store.get(key))
        if not parent["port"]:
            return
        candidates = list(parent["addresses"])
        if parent["rank"] == 0 and "MASTER_ADDR" in os.environ:
            candidates.insert(0, os.environ["MASTER_ADDR"])
        for address in candidates:
            try:
                link = socket.create_connection((address, parent["port"]), timeout=_CONNECT_S)
            except OSError:
                continue
            _prepare(link)
            link.sendall(bytes.fromhex(parent["token"]))
            if parent["place"] == place:  # the same clock; the parent need not wait
                link.sendall(_MESSAGE.pack(_BYE, 1, 0))
                link.close()
            else:
                self._parent = link
            return
        recorder.unavailable(COLLECTOR, "clock_ping_refused", f"no way to {', '.join(candidates)}")

    def _talk(self, link: socket.socket, last: bool) -> None:
        buffer = bytearray(_MESSAGE.size)
        stamps = []
        for number in range(_EXCHANGES):
            message = _MESSAGE.pack(_PING, number, 0)
            sent = now_ticks()
            link.send(message)
            received = _receive(link, buffer)
            stamps.append((received - sent, number, sent, received))
        for _, number, sent, received in sorted(stamps)[:_KEPT]:
            self._next_id += 1
            link.sendall(_MESSAGE.pack(_KEEP, number, self._next_id))
            self._emit(sent, received, self._next_id)
        link.sendall(_MESSAGE.pack(_BYE, int(last), 0))

    # The parent's side --------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            native.set_thread_role(recorder.code("ThreadRole", "tracer"), "stashtrace-clock")
            poll = select.poll()
            listener = self._listener
            assert listener is not None
            poll.register(listener, select.POLLIN)
            links: dict[int, socket.socket] = {}
            while listener.fileno() >= 0:
                for descriptor, _ in poll.poll():
                    if descriptor in links:
                        if not self._answer(links[descriptor]):
                            poll.unregister(descriptor)
                            links.pop(descriptor).close()
                            self._gone.release()
                    elif (link := self._accept(listener)) is not None:
                        links[link.fileno()] = link
                        poll.register(link, select.POLLIN)
        except OSError:
            return  # closed at the end of the process
        except Exception as error:
            failed(COLLECTOR, "clock_ping", error)

    def _accept(self, listener: socket.socket) -> socket.socket | None:
        link, _ = listener.accept()
        _prepare(link)
        try:
            known = secrets.compare_digest(link.recv(_TOKEN_BYTES, socket.MSG_WAITALL), self._token)
        except OSError:
            known = False
        if not known:
            link.close()
            return None
        self._children.append(link)
        return link

    def _answer(self, link: socket.socket) -> bool:
        """Answer one round of exchanges; return False if it was the last."""
        buffer = bytearray(_MESSAGE.size)
        stamps: dict[int, tuple[int, int]] = {}
        try:
            while True:
                received = _receive(link, buffer)
                sent = now_ticks()
                kind, number, exchange_id = _MESSAGE.unpack(buffer)
                if kind == _PING:
                    link.send(buffer)
                    stamps[number] = (sent, received)
                elif kind == _KEEP and number in stamps:
                    self._emit(*stamps[number], exchange_id)
                elif kind == _BYE:
                    self._served.release()
                    return not number
        except OSError:
            return False


def _prepare(link: socket.socket) -> None:
    link.settimeout(None)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    seconds = struct.pack("ll", 1, 0)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)


def _receive(link: socket.socket, buffer: bytearray) -> int:
    """Receive a message; return the ticks right after it. Raises OSError if the other side is gone or silent."""
    count = 0
    for _ in range(_POLLS_COUNT):
        try:
            count = link.recv_into(buffer, _MESSAGE.size, socket.MSG_DONTWAIT)
            break
        except BlockingIOError:
            continue
    else:
        count = link.recv_into(buffer, _MESSAGE.size, socket.MSG_WAITALL)
    ticks = now_ticks()
    if count != _MESSAGE.size:
        raise ConnectionResetError("the other side is gone")
    return ticks
