"""Whom a process is connected to, as its sockets show."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from stashtrace import _native
from stashtrace.probes.torch.groups import _connections


@contextlib.contextmanager
def connection(family: int, host: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection of this process."""
    with socket.socket(family) as server:
        try:
            server.bind((host, 0))
        except OSError as error:
            pytest.skip(f"no address {host} here: {error}")
        server.listen()
        with socket.socket(family) as client:
            client.connect(server.getsockname())
            accepted, _ = server.accept()
            with accepted:
                yield client, accepted


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_both_ends_are_recorded(family: int, host: str) -> None:
    with connection(family, host) as (client, accepted):
        own, peer = (f"{host}:{end.getsockname()[1]}" for end in (client, accepted))
        assert _native.tcp_ends(client.fileno()) == (own, peer)
        assert _native.tcp_ends(accepted.fileno()) == (peer, own)
        assert client.getpeername()[1] == accepted.getsockname()[1]  # both are still open and usable
        found = {(inode, *ends) for inode, *ends in _connections()}
        assert (os.fstat(client.fileno()).st_ino, own, peer) in found
        assert (os.fstat(accepted.fileno()).st_ino, peer, own) in found


def test_an_ipv4_address_in_an_ipv6_socket_is_written_as_ipv4() -> None:
    with socket.socket(socket.AF_INET) as server, socket.socket(socket.AF_INET6) as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        try:
            client.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            client.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
        except OSError as error:
            pytest.skip(f"no IPv6 here: {error}")
        ends = _native.tcp_ends(client.fileno())
        assert ends is not None
        assert ends[1] == f"127.0.0.1:{server.getsockname()[1]}"
        assert ends[0].startswith("127.0.0.1:")


def test_what_is_no_connection_records_nothing() -> None:
    read_end, write_end = os.pipe()
    one, other = socket.socketpair()
    with one, other, socket.socket(socket.AF_INET) as listening, socket.socket(socket.AF_INET) as unconnected:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        for number in (read_end, one.fileno(), listening.fileno(), unconnected.fileno(), 1 << 20, -1):
            assert _native.tcp_ends(number) is None
    os.close(read_end)
    os.close(write_end)


def test_the_connections_of_the_store_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with connection(socket.AF_INET, "127.0.0.1") as (client, accepted):
        inodes = {os.fstat(client.fileno()).st_ino, os.fstat(accepted.fileno()).st_ino}
        monkeypatch.setenv("MASTER_PORT", str(accepted.getsockname()[1]))
        assert not inodes & {inode for inode, _, _ in _connections()}
        monkeypatch.setenv("MASTER_PORT", "1")
        assert inodes <= {inode for inode, _, _ in _connections()}


def test_a_connection_that_the_peer_has_closed_is_none() -> None:
    with connection(socket.AF_INET, "127.0.0.1") as (client, accepted):
        accepted.close()
        client.recv(1)  # the end has arrived
        assert _native.tcp_ends(client.fileno()) is None
