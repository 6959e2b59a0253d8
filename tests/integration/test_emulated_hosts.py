"""Namespaces of emulated hosts: what a killed owner leaves behind goes, what a living one uses stays."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stashtrace.errors import CaptureError
from stashtrace.lab.characterize.network import EmulatedHost, Shape, emulated_hosts

OWNER = """
import time
from stashtrace.lab.characterize.network import Shape, emulated_hosts
with emulated_hosts(Shape()) as hosts:
    print(*(host.namespace for host in hosts), flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True, scope="module")
def _means() -> None:
    try:
        with emulated_hosts(Shape()):
            pass
    except CaptureError as error:
        pytest.skip(f"no separate network here: {error}")


@contextlib.contextmanager
def owner() -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().split()
        finally:
            process.kill()


def there(*namespaces: str) -> list[bool]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    known = {line.split()[0] for line in listed.splitlines() if line}
    return [name in known and (Path("/etc/netns") / name / "hosts").exists() for name in namespaces]


def reaches(here: EmulatedHost, other: EmulatedHost) -> bool:
    script = "import socket, sys; print(socket.gethostbyname(sys.argv[1]))"
    done = subprocess.run(
        here.command([sys.executable, "-c", script, other.name]), capture_output=True, text=True, check=False
    )
    return done.stdout.strip() == other.address


def test_what_the_killed_left_goes_and_what_the_living_use_stays() -> None:
    with owner() as (killed, left), owner() as (_, used):
        assert len(left) == len(used) == 2
        killed.kill()
        killed.wait()
        assert there(*left, *used) == [True] * 4, "nobody cleans up after SIGKILL"
        with emulated_hosts(Shape()) as (first, second):
            assert there(*left, *used) == [False, False, True, True]
            assert there(first.namespace, second.namespace) == [True, True]
            assert reaches(first, second)
            assert reaches(second, first)
        assert there(first.namespace, second.namespace, *used) == [False, False, True, True]
    with emulated_hosts(Shape()):
        assert there(*used) == [False, False]


def test_names_that_the_killed_had_can_be_had_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with owner() as (killed, left):
        killed.kill()
        pid = killed.pid
    monkeypatch.setattr("os.getpid", lambda: pid)  # the system began again with low ones
    with emulated_hosts(Shape()) as hosts:
        assert [host.namespace for host in hosts] == left
        assert reaches(*hosts)


def test_namespaces_of_others_stay_whatever_they_are_called() -> None:
    foreign = Path("/etc/netns/stashedn0")
    foreign.mkdir()
    try:
        (foreign / "hosts").write_text("127.0.0.1 localhost\n")
        subprocess.run(["ip", "netns", "add", foreign.name], check=True)
        with emulated_hosts(Shape()):
            assert there(foreign.name) == [True]
    finally:
        subprocess.run(["ip", "netns", "del", foreign.name], check=False)
        shutil.rmtree(foreign)
