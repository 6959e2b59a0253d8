"""Two ends of the ping in one process: who meets whom, what each writes, and what happens when one is not there."""

from __future__ import annotations

import socket
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from stashtrace.probes import clock_ping


class Store:
    """What torch's store can do."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.lock = threading.Lock()

    def add(self, key: str, amount: int) -> int:
        with self.lock:
            self.values[key] = self.values.get(key, 0) + amount
            return int(self.values[key])

    def taken(self) -> int:
        """Numbers that were given out."""
        return int(self.values.get(f"{clock_ping._KEY}/count", 0))

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return bytes(self.values[key])

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        deadline = time.monotonic() + timeout.total_seconds()
        while keys[0] not in self.values:
            if time.monotonic() > deadline:
                raise RuntimeError("wait timeout")
            time.sleep(0.001)


Rows = list[tuple[int, int, int]]


def meet(
    monkeypatch: pytest.MonkeyPatch, places: list[str], store: Store | None = None
) -> tuple[list[clock_ping._Ping], list[Rows]]:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setattr(clock_ping, "_PATIENCE_S", 60.0)
    store, rows = store or Store(), [Rows() for _ in places]
    local = threading.local()
    monkeypatch.setattr(clock_ping, "_place", lambda: local.place)
    pings = [clock_ping._Ping(store, rank, len(places)) for rank in range(len(places))]

    def run(rank: int) -> None:
        local.place = places[rank]
        pings[rank].meet()

    for rank, ping in enumerate(pings):
        ping._emit = lambda *row, own=rows[rank]: own.append(row) or True  # type: ignore[misc,method-assign]
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(places))]
    for thread in threads:
        before = store.taken()
        thread.start()
        limit = time.monotonic() + 60
        while store.taken() == before and time.monotonic() < limit:  # so that rank 0 has number 0
            time.sleep(0.001)
    for thread in threads:
        thread.join(100)
    return pings, rows


def test_both_sides_write_their_half_of_the_best_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    pings, (parent, child) = meet(monkeypatch, ["a", "b"])
    assert len(child) == len(parent) == clock_ping._KEPT
    halves = {row[2]: row for row in parent}
    for sent, received, number in child:
        replied, got, _ = halves[number]
        assert sent < got <= replied < received  # one clock here
    pings[1].exchange(True)
    pings[0].exchange(True)
    assert len(child) == len(parent) == 2 * clock_ping._KEPT
    for ping in pings:
        ping.close()


def test_one_host_exchanges_nothing_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = time.monotonic()
    pings, rows = meet(monkeypatch, ["a", "a"])
    assert rows == [[], []]
    assert time.monotonic() - begin < clock_ping._PATIENCE_S
    for ping in pings:
        ping.close()


def test_a_parent_that_is_gone_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pings, (_, child) = meet(monkeypatch, ["a", "b"])
    for link in pings[0]._children:
        link.shutdown(socket.SHUT_RDWR)
    pings[1].exchange(True)
    assert pings[1]._parent is None
    assert len(child) == clock_ping._KEPT
    for ping in pings:
        ping.close()


def test_ranks_that_are_started_again_do_not_look_for_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun keeps its store over a restart: what the ranks before left there is none of theirs."""
    store = Store()
    for _ in range(3):
        pings, (parent, child) = meet(monkeypatch, ["a", "b"], store)
        assert len(child) == len(parent) == clock_ping._KEPT
        for ping in pings:
            ping.close()


def test_a_stranger_without_the_token_is_shown_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pings, _ = meet(monkeypatch, ["a", "b"])
    listener = pings[0]._listener
    assert listener is not None
    with socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=5) as stranger:
        stranger.sendall(b"x" * clock_ping._TOKEN_BYTES)
        assert stranger.recv(1) == b""
    assert len(pings[0]._children) == 1
    for ping in pings:
        ping.close()
