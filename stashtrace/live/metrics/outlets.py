"""The ways out that a run was given, and what each of them loses."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from stashtrace.live.metrics.push import OtlpPush
from stashtrace.live.metrics.series import Family, families_of
from stashtrace.live.metrics.server import MetricsPort
from stashtrace.live.metrics.textfile import Textfile
from stashtrace.live.state import LiveState


class Outlet(Protocol):
    """One way out."""

    #: What it writes to, for people.
    name: str

    def publish(self, families: Sequence[Family], *, ended: bool) -> str:
        """Take the samples of a round; return what does not work, empty if all does."""


class Outlets:
    """All ways out of a run. ``say``: told once of each that does not work."""

    def __init__(self, outlets: Sequence[Outlet], say: Callable[[str], None]) -> None:
        self._outlets = outlets
        self._say = say
        self._told: set[str] = set()

    def publish(self, state: LiveState) -> list[str]:
        """Hand over the samples of a round; return what does not work."""
        families = families_of(state)
        notes = []
        for outlet in self._outlets:
            note = outlet.publish(families, ended=state.ended)
            if note:
                notes.append(note)
                if outlet.name not in self._told:
                    self._told.add(outlet.name)
                    self._say(note)
        return notes


def add_outlet_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments with which the launcher says where metrics go (``record.metrics``)."""
    parser.add_argument("--metrics-file", type=Path, help="folder of the textfile collector")
    parser.add_argument("--metrics-socket", type=int, help="descriptor of a socket that listens")
    parser.add_argument("--otlp", action="store_true", help="push to an OTLP collector")


def outlets_of(arguments: argparse.Namespace, state: LiveState) -> list[Outlet]:
    """Return the ways out that :func:`add_outlet_arguments` were given for a run."""
    outlets: list[Outlet] = []
    if arguments.metrics_file is not None:
        outlets.append(Textfile(arguments.metrics_file, state.host, state.run_id))
    if arguments.metrics_socket is not None:
        outlets.append(MetricsPort(socket.socket(fileno=arguments.metrics_socket)))
    if arguments.otlp:
        outlets.append(OtlpPush(state.begin_realtime_ns, os.environ))
    return outlets
