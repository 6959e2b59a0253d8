"""Was a run that should have been on synthetic data on it: what its processes say of the batches they replayed.

The guest's half is ``probes/torch_replay``. A step on synthetic data counts only if every rank replayed.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

from stashtrace.model.kinds import Severity
from stashtrace.model.trace import Trace
from stashtrace.units import ranks_text

#: Metadata row of a process that has replayed a batch; the same in ``probes/torch_replay``.
FACT = ("synthetic_data", "batches replayed")
#: Names of the loss rows of the replay.
_NAMES = (
    "batches_replayed",
    "batches_not_replayed",
    "replayed_batches_differ",
    "replayed_batches_copied_again",
    "replayed_batches_restored",
    "replayed_epoch_does_not_end",
)


@dataclass(frozen=True, slots=True)
class SyntheticData:
    """What is known of the batches of a run.

    Attributes
    ----------
    ranks : tuple of int
        Ranks that replayed batches.
    missing : tuple of int
        Ranks that did not.
    doubts : tuple of str
        What makes the steps longer than those of synthetic data: batches of other loaders, copies to the device.
    notes : tuple of str
        What is worth knowing.
    """

    ranks: tuple[int, ...]
    missing: tuple[int, ...]
    doubts: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether every rank replayed batches."""
        return bool(self.ranks) and not self.missing

    @property
    def sentence(self) -> str:
        """For a report."""
        if self.complete:
            said = "synthetic data: batches replayed"
        elif self.ranks:
            said = f"no synthetic data on ranks {ranks_text(list(self.missing))}: they replayed no batch"
        else:
            said = "no synthetic data: no DataLoader of torch returned more batches than were to be kept"
        return "; ".join([said, *self.doubts])


def synthetic_data(trace: Trace) -> SyntheticData:
    """Read what the processes of a run say of their batches."""
    rank_of = dict(zip(trace.processes["process_id"].tolist(), trace.processes["rank"].tolist(), strict=True))
    key, value = FACT
    replayed = {
        rank_of.get(row["process_id"], -1)
        for row in trace.metadata.rows()
        if trace.text(row["key_code"]) == key and trace.text(row["value_code"]) == value
    }
    ranks = {rank for rank in rank_of.values() if rank >= 0}
    said: dict[bool, dict[str, None]] = {True: {}, False: {}}  # in order, each once
    for row in trace.losses.rows():
        if trace.text(row["name_code"]) in _NAMES:
            said[row["severity_code"] != Severity.INFO][trace.text(row["advice_code"])] = None
    return SyntheticData(
        tuple(sorted(replayed & ranks)), tuple(sorted(ranks - replayed)), tuple(said[True]), tuple(said[False])
    )
