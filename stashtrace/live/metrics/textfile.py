"""Write the samples into a file for the textfile collector of Prometheus' node_exporter, which serves all ``*.prom``.

The file is replaced in one step in each round. It stays when the job has ended, so that its last sums are fetched,
and goes when another run of this host begins to write: node_exporter refuses the same series in two files.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from stashtrace.live.metrics.exposition import NewestFamilies
from stashtrace.live.metrics.series import Family
from stashtrace.whole_files import give_mode, open_binary, whole_file

_NAME = "stashtrace-{host}-{run}.prom"
_ENDED = b"# stashtrace: this run has ended\n"
#: A file that was not replaced for so long belongs to a run that was killed: rounds are seconds apart.
_ABANDONED_S = 600.0
#: node_exporter runs as another user.
_MODE = 0o644


class Textfile:
    """A file of metrics. ``directory``: which node_exporter reads. ``host``, ``run_id``: of the run."""

    name = "metrics file"

    def __init__(self, directory: Path, host: str, run_id: str) -> None:
        self._directory, self._host = directory, host
        self._path = directory / _NAME.format(host=host, run=run_id)
        self._newest = NewestFamilies()
        self._registry = self._newest.registry()
        self._failed_count = self._rounds_count = 0
        self._beside = self._reason = ""

    def publish(self, families: Sequence[Family], *, ended: bool) -> str:
        """Replace the file; return what does not work, empty if all does."""
        from prometheus_client import generate_latest

        self._newest.families = families
        self._rounds_count += 1
        try:
            if self._rounds_count == self._failed_count + 1:  # nothing was written yet
                self._beside = self._tidy()
            with whole_file(self._path, own_mode=True) as partial:
                partial.write_bytes((_ENDED if ended else b"") + generate_latest(self._registry))
                give_mode(partial, _MODE)
        except OSError as error:
            self._failed_count += 1
            self._reason = error.strerror or str(error)
        if self._failed_count:
            times = f"{self._failed_count} of {self._rounds_count} times"
            return f"metrics could not be written to {self._directory} {times}: {self._reason}"
        return self._beside

    def _tidy(self) -> str:
        """Remove the files of runs of this host that are over; return what to know of one that is not."""
        for path in sorted(self._directory.glob(_NAME.format(host=self._host, run="*"))):
            if path == self._path:
                continue
            with contextlib.suppress(OSError):  # it has gone meanwhile, or is another user's
                with open_binary(path) as file:
                    over = file.readline(len(_ENDED) + 1) == _ENDED
                if over or time.time() - path.stat().st_mtime > _ABANDONED_S:
                    path.unlink()
                    continue
            return f"{path} is of another run of this host: give each a folder or port of its own, as ranks look alike"
        return ""
