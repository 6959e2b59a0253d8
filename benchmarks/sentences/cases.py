"""The cases: what is run or read, and what is known of it beyond its clocks.

A job's amounts are never those of its options: a busy machine makes a sleep of 5 ms one of 7. The options only make
sure that there is something to see; what was there, the job's clock of the same run says.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass, field

from sentences.judgement import Expected


@dataclass(frozen=True)
class Case:
    """One job.

    Attributes
    ----------
    name, title : str
        To choose it by; what is slow in it.
    arguments : str
        Of ``jobs.py``, or of the example.
    ranks : int
    launcher : str
        "ranks" (tests/ground_truth/launch_ranks.py), "torchrun", or "namespaces" with a slow link between them.
    program : str
        "jobs", "example", or the framework whose loop it is.
    """

    name: str
    title: str
    arguments: str
    expected: Expected = field(default_factory=Expected)
    ranks: int = 1
    launcher: str = "ranks"
    program: str = "jobs"


def _data(*causes: str, files: tuple[str, ...] = ()) -> Expected:
    return Expected({"data": frozenset(causes)}, files=frozenset(files))


def _late(*causes: str) -> Expected:
    return Expected(late_causes=frozenset(causes))


_SLEEP, _BLOCK, _NET = _data("asleep"), _data("blocked"), _data("network")
_CPU, _DISK, _MAP = _data("cpu", "queue"), _data("storage", files=("ballast",)), _data("page_faults", "storage")
_EPOCHS = Expected({"data": frozenset({"epochs", "asleep"})})

JOBS = (
    Case("sleep_0", "samples sleep, no worker", "--loader sleep --loader-ms 5 --batch 8 --compute-ms 20", _SLEEP),
    Case(
        "sleep_1",
        "samples sleep, 1 worker",
        "--loader sleep --loader-ms 10 --batch 8 --compute-ms 15 --workers 1",
        _SLEEP,
    ),
    Case(
        "sleep_2",
        "samples sleep, 2 workers",
        "--loader sleep --loader-ms 20 --batch 8 --compute-ms 10 --workers 2 --steps 30",
        _SLEEP,
    ),
    Case(
        "sleep_4",
        "samples sleep, 4 workers",
        "--loader sleep --loader-ms 40 --batch 8 --compute-ms 10 --workers 4 --steps 30",
        _SLEEP,
    ),
    Case(
        "block_0",
        "samples wait for an event, no worker",
        "--loader block --loader-ms 8 --batch 8 --compute-ms 20",
        _BLOCK,
    ),
    Case(
        "block_2",
        "samples wait for an event, 2 workers",
        "--loader block --loader-ms 20 --batch 8 --compute-ms 10 --workers 2 --steps 30",
        _BLOCK,
    ),
    Case(
        "pipe_0",
        "samples come through a slow pipe",
        "--loader pipe --loader-ms 6 --batch 8 --compute-ms 10",
        _data("blocked", "storage"),
    ),
    Case("decode_0", "samples burn CPU, no worker", "--loader decode --loader-ms 5 --batch 8 --compute-ms 10", _CPU),
    Case(
        "decode_1",
        "samples burn CPU, 1 worker",
        "--loader decode --loader-ms 8 --batch 8 --compute-ms 10 --workers 1",
        _CPU,
    ),
    Case(
        "decode_4",
        "samples burn CPU, 4 workers",
        "--loader decode --loader-ms 8 --batch 8 --compute-ms 10 --workers 4",
        _CPU,
    ),
    Case(
        "jpeg_2",
        "samples are JPEG files of 512 pixels, 2 workers",
        "--loader jpeg --batch 16 --compute-ms 5 --workers 2",
        _CPU,
    ),
    Case(
        "remote_0",
        "samples come from a server that takes 5 ms",
        "--loader remote --loader-ms 5 --batch 8 --compute-ms 10",
        _NET,
    ),
    Case(
        "remote_2",
        "the same, 2 workers",
        "--loader remote --loader-ms 20 --batch 8 --compute-ms 10 --workers 2 --steps 30",
        _NET,
    ),
    Case(
        "columns_0",
        "samples are row groups of a parquet file",
        "--loader columns --batch 16 --compute-ms 10",
        _data("cpu", "queue", "storage"),
    ),
    Case(
        "columns_2",
        "the same, 2 workers",
        "--loader columns --batch 16 --compute-ms 5 --workers 2",
        _data("cpu", "queue", "storage"),
    ),
    Case(
        "read_0",
        "samples are read from a file that is not in memory",
        "--loader read --batch 16 --compute-ms 10",
        _DISK,
    ),
    Case("read_2", "the same, 2 workers", "--loader read --batch 64 --compute-ms 5 --workers 2", _DISK),
    Case(
        "map_0",
        "samples are pages of a mapped file that are not in memory",
        "--loader map --batch 8 --compute-ms 10",
        _MAP,
    ),
    Case("map_2", "the same, 2 workers", "--loader map --batch 32 --compute-ms 5 --workers 2", _MAP),
    Case(
        "luggage_1",
        "batches carry half a million objects",
        "--luggage 120000 --batch 4 --workers 1 --compute-ms 40 --steps 20",
        _data("handoff", "cpu", "queue"),
    ),
    Case(
        "epochs",
        "short epochs, workers start again",
        "--loader sleep --loader-ms 2 --epochs 8 --steps 48 --workers 2 --compute-ms 10",
        _EPOCHS,
    ),
    Case(
        "persistent",
        "short epochs, workers are kept",
        "--loader sleep --loader-ms 2 --epochs 8 --steps 48 --workers 2 --compute-ms 10 --persistent",
        _data("epochs", "asleep"),
    ),
    Case(
        "spawn_2",
        "workers are spawned",
        "--loader sleep --loader-ms 20 --batch 8 --compute-ms 10 --workers 2 --steps 30 --context spawn",
        _data("asleep", "epochs"),
    ),
    Case(
        "accumulate",
        "four batches a step",
        "--loader sleep --loader-ms 3 --accumulate 4 --steps 25 --compute-ms 3",
        _SLEEP,
    ),
    Case(
        "validate",
        "validation after each epoch",
        "--loader sleep --loader-ms 3 --steps 40 --epochs 4 --validate 6 --compute-ms 20 --forward-ms 5",
        _SLEEP,
    ),
    Case(
        "validate_2",
        "the same with workers",
        "--loader sleep --loader-ms 15 --epochs 2 --validate 8 --compute-ms 20 --forward-ms 5 --workers 2 --persistent",
        _data("asleep", "epochs"),
    ),
    Case(
        "infer",
        "inference, a loader that sleeps",
        "--mode infer --loader sleep --loader-ms 4 --forward-ms 10 --steps 60",
        _SLEEP,
    ),
    Case(
        "infer_remote",
        "inference, a remote loader with 2 workers",
        "--mode infer --loader remote --loader-ms 20 --forward-ms 5 --steps 60 --workers 2",
        _NET,
    ),
    Case("rollout", "rollout of 20 forwards and 4 updates", "--mode rollout --steps 30 --forward-ms 2 --compute-ms 8"),
    Case(
        "rollout_sleep",
        "the same, the environment sleeps",
        "--mode rollout --steps 20 --forward-ms 1 --sleep-ms 4 --compute-ms 8",
    ),
    Case("compute", "nothing but compute", "--compute-ms 60"),
    Case("compute_workers", "compute, loading is hidden", "--loader decode --loader-ms 1 --workers 1 --compute-ms 60"),
    Case("asleep", "the loop sleeps", "--compute-ms 20 --sleep-ms 20"),
    Case("blocked", "the loop waits for a lock", "--compute-ms 20 --block-ms 20"),
    Case("save", "a checkpoint every fourth step", "--compute-ms 20 --save-every 4 --save-mib 200"),
    Case(
        "thread",
        "a thread next to the loop burns CPU",
        "--compute-ms 20 --thread burn",
        Expected({"other": frozenset({"gil", "gil_partly"}), "data": frozenset({"gil"})}),
    ),
    Case("mpi", "the job loads MPI", "--compute-ms 40 --library libmpi.so.40", Expected(calls_unseen=True)),
    Case("exits", "it ends with code 3", "--compute-ms 40 --exit-code 3", Expected(ending="ended_with_code 3")),
    Case(
        "worker_killed",
        "a worker is killed",
        "--loader sleep --loader-ms 10 --compute-ms 10 --workers 2 --steps 60 --kill worker:40",
        Expected({"data": frozenset({"asleep"})}, ending="ended_with_code 1", killed=frozenset({(0, 0, "SIGKILL")})),
    ),
    Case(
        "rank_killed",
        "a rank is killed",
        "--reduce ddp --compute-ms 10 --kill 1:30",
        Expected(ending="ended_with_code 1", killed=frozenset({(1, -1, "SIGKILL")})),
        ranks=2,
        launcher="torchrun",
    ),
    Case("files", "files, and no loop that trains", "", program="reader"),
    Case("thread_sleep", "a thread next to the loop sleeps", "--compute-ms 40 --thread sleep"),
    Case(
        "crowd",
        "600 threads read at once, more than there is room for",
        "--compute-ms 30 --crowd 600",
        Expected(lost=True),
    ),
    Case(
        "both",
        "samples sleep and the loop sleeps",
        "--loader sleep --loader-ms 5 --compute-ms 10 --sleep-ms 40",
        _SLEEP,
    ),
    Case("ddp_sleep", "rank 1 sleeps", "--reduce ddp --compute-ms 10 --late 1:sleep:20", _late("sleep"), ranks=2),
    Case(
        "ddp_torchrun",
        "the same by torchrun",
        "--reduce ddp --compute-ms 10 --late 1:sleep:30",
        _late("sleep"),
        ranks=2,
        launcher="torchrun",
    ),
    Case(
        "ddp_compute",
        "rank 0 computes longer",
        "--reduce ddp --compute-ms 10 --late 0:compute:40",
        _late("compute", "cpu_contention"),
        ranks=2,
    ),
    Case(
        "ddp_gc",
        "rank 1 collects garbage every other step",
        "--reduce ddp --compute-ms 10 --late 1:gc:0 --late-every 2",
        _late("gc"),
        ranks=2,
    ),
    Case(
        "ddp_save",
        "rank 0 saves after each other step",
        "--reduce ddp --compute-ms 10 --save-every 2 --save-mib 150",
        _late("checkpoint"),
        ranks=2,
    ),
    Case(
        "ddp_data",
        "the samples of rank 1 sleep longer",
        "--loader sleep --loader-ms 2 --late-loader 1:12 --compute-ms 10",
        _late("prep"),
        ranks=2,
    ),
    Case(
        "ddp_data_2",
        "the same, by workers",
        "--loader sleep --loader-ms 2 --late-loader 1:40 --compute-ms 10 --workers 2 --steps 30",
        Expected({"data": frozenset({"asleep"})}, late_causes=frozenset({"prep"})),
        ranks=2,
    ),
    Case(
        "ddp_turns",
        "the ranks alternate in being late",
        "--compute-ms 10 --late turn:sleep:40",
        _late("sleep"),
        ranks=2,
    ),
    Case(
        "ddp_rare",
        "rank 1 sleeps every eighth step",
        "--reduce ddp --compute-ms 20 --late 1:sleep:200 --late-every 8",
        _late("sleep"),
        ranks=2,
    ),
    Case(
        "three_causes",
        "rank 2 of three sleeps in each step, and all in turns",
        "--compute-ms 5 --late 2:sleep:30 --late turn:sleep:40 --steps 30",
        ranks=3,
    ),
    Case(
        "three_late", "rank 2 of three sleeps", "--compute-ms 5 --late 2:sleep:40 --steps 30", _late("sleep"), ranks=3
    ),
    Case("ddp_blocked", "rank 0 waits for a lock", "--compute-ms 10 --late 0:block:40", _late("other"), ranks=2),
    Case("ddp_even", "two ranks, nothing injected", "--reduce ddp --compute-ms 30", ranks=2),
    Case(
        "ddp_accumulate",
        "four batches a step, rank 1 sleeps",
        "--compute-ms 5 --accumulate 2 --late 1:sleep:15",
        _late("sleep"),
        ranks=2,
    ),
    Case("transfers", "32 MiB summed a step", "--compute-ms 10 --reduce-kib 32768 --steps 30", ranks=2),
    Case(
        "network",
        "4 MiB a step over a slow link",
        "--compute-ms 10 --reduce-kib 2048 --steps 15",
        Expected({"link": frozenset({"network"})}),
        ranks=2,
        launcher="namespaces",
    ),
    Case("example", "the example as it is", "--steps 24", ranks=2, program="example"),
    Case("example_prep", "10 ms of CPU per image", "--steps 20 --inject-prep-ms 10", _CPU, ranks=2, program="example"),
    Case(
        "example_late",
        "rank 1 sleeps before its backward",
        "--steps 25 --inject-straggler-ms 80",
        _late("sleep"),
        ranks=2,
        program="example",
    ),
    Case(
        "example_read",
        "each image reads 4 MiB more, past the page cache",
        "--steps 20 --inject-fetch-kib 4096",
        _data("storage", "cpu", "queue", files=("ballast",)),
        ranks=2,
        program="example",
    ),
    Case(
        "example_map",
        "each image touches 512 KiB of a mapped file",
        "--steps 20 --inject-mmap-kib 512",
        _data("page_faults", "storage", "cpu", "queue"),
        ranks=2,
        program="example",
    ),
    Case(
        "example_handoff",
        "many objects with each batch",
        "--steps 15 --inject-handoff-items 300000 --workers 1",
        _data("handoff", "cpu", "queue"),
        ranks=2,
        program="example",
    ),
    Case(
        "example_save",
        "rank 0 saves 100 MiB after each step",
        "--steps 15 --checkpoint-every 1 --inject-checkpoint-mib 100",
        _late("checkpoint"),
        ranks=2,
        program="example",
    ),
    Case(
        "example_by_hand",
        "all-reduces by hand, rank 0 sleeps",
        "--steps 25 --manual-all-reduce --inject-straggler-ms 60 --inject-rank 0",
        _late("sleep"),
        ranks=2,
        program="example",
    ),
    Case("example_gap", "both ranks sleep", "--steps 25 --inject-other-ms 40", ranks=2, program="example"),
    Case(
        "lightning",
        "Lightning, samples sleep",
        "--loader sleep --loader-ms 5 --compute-ms 15",
        _SLEEP,
        program="lightning",
    ),
    Case(
        "lightning_validate",
        "Lightning, validation after each epoch, 2 workers",
        "--loader sleep --loader-ms 15 --epochs 3 --steps 36 --validate 8 --compute-ms 20 --workers 2 --persistent",
        _data("asleep", "epochs"),
        program="lightning",
    ),
    Case("lightning_compute", "Lightning, compute alone", "--compute-ms 60", program="lightning"),
    Case(
        "accelerate",
        "Accelerate, samples sleep",
        "--loader sleep --loader-ms 5 --compute-ms 15",
        _SLEEP,
        program="accelerate",
    ),
    Case(
        "transformers",
        "Trainer, samples sleep",
        "--loader sleep --loader-ms 5 --compute-ms 15",
        _SLEEP,
        program="transformers",
    ),
    Case("transformers_compute", "Trainer, compute alone", "--compute-ms 60", program="transformers"),
)
