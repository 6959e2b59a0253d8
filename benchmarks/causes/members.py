"""The jobs of the bench. To add one, add an entry to ``JOBS``: a script, its arguments, and what is planted.

The amounts stand nowhere: the stopwatches of the same run say them.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass, field

from causes import words
from causes.plan import Cause, Plan


@dataclass(frozen=True)
class Job:
    """A job that is run.

    Attributes
    ----------
    script, arguments : str
        Of ``scripts``.
    launcher : str
        "ranks" (tests/ground_truth/launch_ranks.py) or "torchrun".
    repaired : str or None
        Arguments of the same job without its cause, for ``--follow``.
    kill_after_s : float
        Kill the ranks when none of them has ended a step for so long; 0: do not.
    kills_all : bool
        Kill ``stashtrace run`` with them.
    restarts : int
        How often torchrun starts the ranks again when one of them fails.
    needs : str
        Module that the script imports in addition to torch and numpy: a job that can be left out.
    """

    name: str
    title: str
    script: str
    arguments: str
    plan: Plan = field(default_factory=Plan)
    ranks: int = 2
    launcher: str = "ranks"
    repaired: str | None = None
    kill_after_s: float = 0.0
    kills_all: bool = False
    restarts: int = 0
    needs: str = ""


def planted(*causes: Cause, shape: str = "", false: tuple[str, ...] = (), ending: str = "") -> Plan:
    """Make the plan of a job without a DataLoader."""
    steady = () if shape or ending else words.STEADY
    return Plan(causes, shape, (*words.NO_LOADER, *steady, *false), ending)


def one(rank: int, kind: str, named: str = "", shape: str = "", false: tuple[str, ...] = ()) -> Plan:
    """Make the plan of a job in which one rank does something too long."""
    return planted(Cause((rank,), kind, named=named), shape=shape, false=false)


def loading(rank: int, kind: str = "batches", named: str = "", shape: str = "", false: tuple[str, ...] = ()) -> Plan:
    """Make the plan of a job in which the batches of a rank come too late."""
    return Plan((Cause((rank,), kind, "batches", named),), shape, false)


BALANCED = Plan(false=words.NO_LOADER)
LOOP = Plan(false=(r"\binput[- ]bound\b",))
STAGES = Plan(false=(*words.NO_LOADER, *words.STEADY), bubble=True)
#: DDP sums gradients by all-reduce: none of the waiting before it is in another collective.
OTHER_COLLECTIVES = (r"\bin broadcast\b", r"\bin gather\b", r"\bin barrier\b")
SHARD, LOG = r"shard-\d", r"slowlog"

JOBS = (
    # Waits that are passed on.
    Job(
        "pairs_read",
        "rank 0 reads a file; rank 1 waits for it in a pair, rank 2 for rank 1",
        "plain.py",
        "--pattern pairs --fault 0:read:40",
        one(0, "read", SHARD),
        ranks=3,
        repaired="--pattern pairs",
    ),
    Job(
        "pairs_socket",
        "rank 0 waits for a server, the others one after the other for it",
        "plain.py",
        "--pattern pairs --fault 0:socket:45",
        one(0, "socket"),
        ranks=4,
    ),
    Job(
        "pairs_garbage",
        "rank 0 collects garbage, the others wait one after the other",
        "plain.py",
        "--pattern pairs --fault 0:garbage:50",
        one(0, "garbage"),
        ranks=3,
    ),
    Job(
        "pairs_sleep",
        "rank 3 sleeps at the far end, which holds up its neighbour alone until the next step",
        "plain.py",
        "--pattern pairs --fault 3:sleep:50",
        one(3, "sleep"),
        ranks=4,
    ),
    Job(
        "chain_read",
        "rank 0 reads a file; the others receive from the one before",
        "plain.py",
        "--pattern chain --fault 0:read:40",
        one(0, "read", SHARD),
        ranks=3,
    ),
    Job(
        "chain_python",
        "rank 0 runs Python; the others receive from the one before",
        "plain.py",
        "--pattern chain --fault 0:python:40",
        one(0, "python"),
        ranks=4,
    ),
    Job(
        "chain_garbage",
        "rank 1 collects garbage; ranks 2 and 3 receive from it in turn",
        "plain.py",
        "--pattern chain --fault 1:garbage:50",
        one(1, "garbage"),
        ranks=4,
    ),
    Job(
        "ring_sleep",
        "rank 2 sleeps; each rank receives from the one before it",
        "plain.py",
        "--pattern ring --fault 2:sleep:50",
        one(2, "sleep"),
        ranks=4,
    ),
    # Pipelines over point-to-point.
    Job(
        "stages_sleep",
        "the third of 4 stages sleeps in each forward",
        "plain.py",
        "--pattern stages --fault 2:sleep:15",
        one(2, "sleep"),
        ranks=4,
        repaired="--pattern stages",
    ),
    Job(
        "stages_compute",
        "the second of 2 stages computes longer in each forward",
        "plain.py",
        "--pattern stages --fault 1:matmul:12",
        planted(Cause((1,), "compute", "matmul")),
    ),
    Job(
        "stages_read",
        "the first of 3 stages reads each micro-batch from a file",
        "plain.py",
        "--pattern stages --fault 0:read:15",
        one(0, "read", SHARD),
        ranks=3,
    ),
    # Pipelines of torch.distributed.pipelining whose ranks hold several stages each.
    Job(
        "interleaved_sleep",
        "two stages on each of 2 ranks (interleaved 1F1B); rank 1 sleeps in each forward",
        "chunks.py",
        "--fault 1:sleep:15",
        one(1, "sleep"),
        repaired="",
    ),
    Job(
        "interleaved_compute",
        "three stages on each of 2 ranks, and rank 0 computes longer in each",
        "chunks.py",
        "--batch 128 --chunks 3 --fault 0:matmul:8",
        Plan((Cause((0,), "compute", "computing", words.STAGE),), false=(*words.NO_LOADER, *words.STEADY)),
    ),
    Job(
        "looped_read",
        "two stages on each of 3 ranks, breadth first; rank 2 reads a file in the second one",
        "chunks.py",
        "--batch 128 --schedule looped --fault 2:read:15:always:chunk1",
        one(2, "read", SHARD),
        ranks=3,
    ),
    # A server between the ranks.
    Job(
        "server_commit",
        "rank 2 commits to a database; the server, rank 0, waits for it, and rank 1 for the server",
        "server.py",
        "--fault 2:commit:45:always:log",
        one(2, "commit", r"metrics\.db"),
        ranks=3,
    ),
    # Two causes at once.
    Job(
        "two_sleep_read",
        "rank 1 sleeps before the backward, rank 0 reads a file after the update",
        "ddp.py",
        "--extra barrier --fault 1:sleep:50 --fault 0:read:40:always:log",
        planted(Cause((1,), "sleep"), Cause((0,), "read", named=SHARD)),
    ),
    Job(
        "two_python_save",
        "rank 0 runs Python before the backward, rank 2 saves a checkpoint before a barrier",
        "ddp.py",
        "--extra barrier --fault 0:python:40 --fault 2:save:40:always:log",
        planted(Cause((0,), "python"), Cause((2,), "save")),
        ranks=3,
    ),
    # Causes that are not the same in each step.
    Job(
        "change_sleep",
        "from step 40 of 80 on rank 1 sleeps",
        "ddp.py",
        "--steps 80 --fault 1:sleep:40:from=40",
        one(1, "sleep", shape=words.FROM),
    ),
    Job(
        "change_back",
        "until step 40 of 80 rank 0 reads a file",
        "ddp.py",
        "--steps 80 --fault 0:read:40:until=40",
        one(0, "read", SHARD, shape=words.UNTIL),
    ),
    Job(
        "drift_sleep",
        "rank 1 sleeps longer in each step",
        "ddp.py",
        "--steps 80 --fault 1:sleep:80:grow=80",
        one(1, "sleep", shape=words.GROWS),
    ),
    Job(
        "period_sleep",
        "rank 1 sleeps 200 ms in every 20th step",
        "ddp.py",
        "--steps 100 --fault 1:sleep:200:every=20",
        one(1, "sleep", shape=words.EVERY),
    ),
    Job(
        "period_garbage",
        "rank 0 collects garbage in every tenth step",
        "ddp.py",
        "--steps 80 --fault 0:garbage:150:every=10",
        one(0, "garbage", shape=words.EVERY),
    ),
    Job(
        "turns_sleep",
        "the ranks sleep in turn",
        "ddp.py",
        "--fault all:sleep:40:turn",
        planted(Cause((0, 1), "sleep"), shape=words.TURNS),
    ),
    Job(
        "edges_sleep",
        "the first and the last step are long, and rank 1 sleeps in each",
        "ddp.py",
        "--fault 1:sleep:40 --fault all:lock:400:only=0 --fault all:lock:600:only=59",
        one(1, "sleep"),
    ),
    # Python on the step thread.
    Job(
        "python_one",
        "a job of one rank tokenizes between operators",
        "ddp.py",
        "--fault 0:python:40:always:data",
        one(0, "python"),
        ranks=1,
    ),
    Job(
        "python_late",
        "rank 1 tokenizes before the backward",
        "ddp.py",
        "--fault 1:python:45",
        one(1, "python"),
        launcher="torchrun",
    ),
    Job(
        "tokens_python",
        "token by token, a token is picked in Python",
        "tokens.py",
        "--fault 0:python:25:always:sample",
        one(0, "python"),
        ranks=1,
    ),
    Job(
        "tokens_prompt",
        "a prompt is read from a file before each eighth token",
        "tokens.py",
        "--fault 0:read:150:every=8:sample",
        one(0, "read", SHARD, shape=words.EVERY),
        ranks=1,
    ),
    Job(
        "policy_python",
        "the environment of rank 1 runs Python on the step thread",
        "policy.py",
        "--fault 1:python:45:always:environment",
        one(1, "python"),
    ),
    Job(
        "policy_socket",
        "the environment of rank 0 is behind a server",
        "policy.py",
        "--fault 0:socket:45:always:environment",
        one(0, "socket"),
    ),
    # Files without a DataLoader.
    Job(
        "write_log",
        "rank 0 writes a log after each step",
        "ddp.py",
        "--fault 0:write:45:always:log",
        one(0, "write", LOG),
        repaired="",
    ),
    Job(
        "write_one",
        "a job of one rank writes a log in each step",
        "ddp.py",
        "--fault 0:write:30:always:log",
        one(0, "write", LOG),
        ranks=1,
    ),
    Job(
        "read_shards",
        "both ranks read their shards with open",
        "ddp.py",
        "--fault all:read:30:always:data",
        planted(Cause((0, 1), "read", named=SHARD)),
    ),
    Job(
        "read_array",
        "rank 1 loads its features with numpy.load",
        "ddp.py",
        "--fault 1:npload:40:always:data",
        planted(Cause((1,), "read", "npload", r"features-1")),
    ),
    Job(
        "save_each",
        "rank 0 saves a checkpoint in each step",
        "ddp.py",
        "--fault 0:save:50:always:log",
        one(0, "save"),
    ),
    Job("lock_late", "rank 1 waits for a lock of another thread", "ddp.py", "--fault 1:lock:45", one(1, "lock")),
    # DataLoaders.
    Job(
        "batches_one",
        "a worker makes batches too slowly",
        "loader.py",
        "--workers 1 --sample-ms 15 --steps 40",
        loading(0, named=r"\bworkers?\b", false=(r"more workers would not help",)),
        ranks=1,
        repaired="--workers 2 --sample-ms 15 --steps 40",
    ),
    Job(
        "batches_burst",
        "every tenth batch takes 800 ms to make",
        "loader.py",
        "--workers 1 --sample-ms 0.5 --burst 10:100 --repeat 16",
        loading(0, shape=words.EVERY + r"|\buneven\b|\bbursts?\b"),
        ranks=1,
    ),
    Job(
        "batches_uneven",
        "a worker takes 1 ms a sample, the other 30 ms",
        "loader.py",
        "--workers 2 --sample-ms 1 --slow-worker 1:30 --steps 40",
        loading(0, named=r"\bworker 1\b"),
        ranks=1,
    ),
    Job(
        "batches_epochs",
        "one worker, four epochs: it starts anew each time",
        "loader.py",
        "--workers 1 --sample-ms 15 --steps 48 --epochs 4",
        loading(0, false=(r"\b(2|3|4) workers (take|spend)|each of its [234] workers",)),
        ranks=1,
        repaired="--workers 2 --sample-ms 15 --steps 48 --epochs 4",
    ),
    Job(
        "batches_restart",
        "short epochs, and the start of the workers is the cost",
        "loader.py",
        "--workers 1 --sample-ms 0.1 --steps 60 --epochs 15",
        loading(0, "restart"),
        ranks=1,
        repaired="--workers 1 --sample-ms 0.1 --steps 60 --epochs 15 --persistent",
    ),
    Job(
        "batches_late",
        "the samples of rank 1 of 2 take longer, and rank 0 waits",
        "loader.py",
        "--sample-ms 0.2 --slow 1:10",
        loading(1),
        repaired="--sample-ms 0.2",
    ),
    Job(
        "batches_late_worker",
        "the same by a worker each",
        "loader.py",
        "--workers 1 --sample-ms 0.2 --slow 0:15",
        loading(0),
    ),
    # Collectives in addition to those of DDP.
    Job(
        "extra_barrier",
        "DDP and a barrier of its own; rank 1 is late for the all-reduce",
        "ddp.py",
        "--extra barrier --fault 1:sleep:45",
        one(1, "sleep", false=OTHER_COLLECTIVES),
    ),
    Job(
        "extra_broadcast",
        "DDP and a broadcast of its own; rank 0 is late for the all-reduce",
        "ddp.py",
        "--extra broadcast --fault 0:python:45",
        one(0, "python", false=OTHER_COLLECTIVES),
    ),
    Job(
        "extra_gather",
        "DDP and a gather of its own; rank 2 of 3 is late for the all-reduce",
        "ddp.py",
        "--extra gather --fault 2:sleep:45",
        one(2, "sleep", false=OTHER_COLLECTIVES),
        ranks=3,
    ),
    Job(
        "second_barrier",
        "rank 1 sleeps between two barriers",
        "ddp.py",
        "--extra barriers --fault 1:sleep:40:always:second",
        one(1, "sleep", false=(r"\bin all-reduce for rank 1\b",)),
    ),
    Job(
        "accumulate_read",
        "four batches a step, and rank 0 reads a file for each",
        "ddp.py",
        "--accumulate 4 --batch 64 --fault 0:read:12",
        one(0, "read", SHARD, false=OTHER_COLLECTIVES),
    ),
    Job(
        "sharded_sleep",
        "two sharded ranks (fully_shard), rank 1 sleeps",
        "ddp.py",
        "--wrap fsdp --fault 1:sleep:45",
        one(1, "sleep"),
    ),
    Job(
        "experts_hot",
        "all-to-all: rank 1 gets most of the rows",
        "plain.py",
        "--pattern experts --rows 32 --hot 1 --hot-rows 400 --steps 40",
        planted(Cause((1,), "skew", "expert")),
    ),
    Job(
        "bulk_link",
        "64 MiB are summed in each step",
        "plain.py",
        "--steps 30 --payload-mib 64",
        planted(Cause((0, 1), "link", "transfer")),
    ),
    Job(
        "evaluate_sleep",
        "evaluation between training steps; rank 1 sleeps in training",
        "ddp.py",
        "--evaluate-every 5 --fault 1:sleep:45",
        one(1, "sleep"),
    ),
    Job(
        "update_python",
        "a closure inside optimizer.step: rank 1 sleeps in its forward",
        "ddp.py",
        "--closure --fault 1:sleep:45",
        one(1, "sleep", false=(r"\bthe (optimizer )?update takes\b", r"fully_shard")),
    ),
    # Loops of other packages.
    Job(
        "lightning_sleep",
        "the Trainer of Lightning; rank 1 sleeps in training_step",
        "lightning_loop.py",
        "--fault 1:sleep:45",
        Plan((Cause((1,), "sleep"),), false=(*words.STEADY, *OTHER_COLLECTIVES, r"\bupdate takes\b", r"fully_shard")),
        launcher="torchrun",
        repaired="",
        needs="lightning",
    ),
    Job(
        "lightning_batches",
        "the Trainer of Lightning; rank 0 collates its batches slowly, on the step thread",
        "lightning_loop.py",
        "--fault 0:python:45:always:batch",
        Plan((Cause((0,), "batches", "python"),), false=(*words.STEADY, *OTHER_COLLECTIVES)),
        launcher="torchrun",
        needs="lightning",
    ),
    Job(
        "trainer_read",
        "the Trainer of transformers; rank 0 reads a file before its backward",
        "trainer_loop.py",
        "--fault 0:read:45",
        Plan((Cause((0,), "read", named=SHARD),), false=(*words.STEADY, *OTHER_COLLECTIVES)),
        launcher="torchrun",
        needs="transformers",
    ),
    Job(
        "trainer_batches",
        "the Trainer of transformers; the data collator of rank 1 is slow",
        "trainer_loop.py",
        "--fault 1:python:45:always:batch",
        Plan((Cause((1,), "batches", "python"),), false=(*words.STEADY, *OTHER_COLLECTIVES)),
        launcher="torchrun",
        needs="transformers",
    ),
    # Endings.
    Job(
        "restarted",
        "rank 0 dies in step 15, torchrun starts all ranks again, and then rank 1 sleeps",
        "ddp.py",
        "--die-once 0:15 --fault 1:sleep:45",
        one(1, "sleep"),
        launcher="torchrun",
        restarts=1,
    ),
    Job(
        "dies",
        "rank 1 raises an exception in step 30",
        "ddp.py",
        "--die 1:30",
        planted(Cause((1,), "died"), false=(r"\bhung\b", r"has not entered"), ending="died"),
        launcher="torchrun",
    ),
    Job(
        "hangs",
        "rank 1 sleeps for ever in step 30, the ranks are killed",
        "ddp.py",
        "--hang 1:30",
        planted(Cause((1,), "hung", named=r"\basleep\b|\bsleep"), ending="hung"),
        kill_after_s=6,
    ),
    Job(
        "hangs_all",
        "rank 2 of 3 sleeps for ever in step 20, and the tracer is killed with the job",
        "ddp.py",
        "--hang 2:20",
        planted(Cause((2,), "hung", named=r"\basleep\b|\bsleep"), ending="hung"),
        ranks=3,
        kill_after_s=6,
        kills_all=True,
    ),
    Job(
        "mismatched",
        "rank 1 calls a barrier while the others sum gradients",
        "ddp.py",
        "--mismatch 1:30",
        planted(Cause((1,), "mismatch", named=r"\bbarrier\b"), ending="mismatch"),
        kill_after_s=6,
    ),
    Job(
        "elastic_steps",
        "rank 1 has 50 steps, rank 0 has 80",
        "elastic.py",
        "--steps 80,50 --fault 1:sleep:40",
        one(1, "sleep", shape=words.WORDS["fewer_steps"]),
    ),
    # Nothing is planted.
    Job("even_two", "two equal ranks", "ddp.py", "--batch 512", BALANCED),
    Job("even_torchrun", "the same by torchrun", "ddp.py", "--batch 512", BALANCED, launcher="torchrun"),
    Job("even_pairs", "three equal ranks that sum in pairs", "plain.py", "--pattern pairs --batch 512", BALANCED, 3),
    Job(
        "even_chain", "three equal ranks in a chain", "plain.py", "--pattern chain --batch 512 --steps 40", BALANCED, 3
    ),
    Job("even_stages", "a pipeline of 2 equal stages", "plain.py", "--pattern stages --batch 512 --steps 40", STAGES),
    Job(
        "even_stages_4",
        "a pipeline of 4 equal stages",
        "plain.py",
        "--pattern stages --batch 256 --steps 40",
        STAGES,
        4,
    ),
    Job(
        "even_interleaved",
        "two equal stages on each of 2 ranks (interleaved 1F1B)",
        "chunks.py",
        "--batch 1024",
        STAGES,
    ),
    Job(
        "even_lightning",
        "the Trainer of Lightning",
        "lightning_loop.py",
        "--batch 512",
        LOOP,
        2,
        "torchrun",
        needs="lightning",
    ),
    Job(
        "even_trainer",
        "the Trainer of transformers",
        "trainer_loop.py",
        "--batch 512",
        LOOP,
        2,
        "torchrun",
        needs="transformers",
    ),
    Job("even_experts", "all-to-all of equal rows", "plain.py", "--pattern experts --rows 384", BALANCED),
    Job("even_barriers", "two barriers a step", "ddp.py", "--extra barriers --batch 256 --steps 40", BALANCED),
    Job("even_accumulate", "four batches a step", "ddp.py", "--accumulate 4 --batch 128 --steps 40", BALANCED),
    Job("even_sharded", "two sharded ranks", "ddp.py", "--wrap fsdp --batch 512", BALANCED),
    Job("even_evaluate", "evaluation between training steps", "ddp.py", "--evaluate-every 5 --batch 512", BALANCED),
    Job("even_one", "one rank that computes", "ddp.py", "--batch 1024", BALANCED, 1),
    Job("even_tokens", "token by token", "tokens.py", "--width 2048", BALANCED, 1),
    Job(
        "even_loader",
        "a loader that keeps up",
        "loader.py",
        "--workers 1 --sample-ms 0.2 --repeat 64",
        Plan(false=(r"\binput[- ]bound\b",)),
    ),
)
