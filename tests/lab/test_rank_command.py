"""Commands with another number of ranks, on one host and on several."""

from __future__ import annotations

import shlex

import pytest

from stashtrace.errors import UsageError
from stashtrace.lab.characterize.request import Rendezvous, rank_command

MEETING = Rendezvous(hosts=2, host_rank=1, address="10.0.0.1", port=29511)
PLACE = "--nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 29511"


@pytest.mark.parametrize(
    ("typed", "ranks", "one"),
    [
        (
            "torchrun --nproc-per-node 8 train.py --nproc-per-node 3",
            8,
            "torchrun --nproc-per-node 1 train.py --nproc-per-node 3",
        ),
        ("torchrun --nproc_per_node=4 --standalone train.py", 4, "torchrun --nproc_per_node=1 --standalone train.py"),
        (
            "python -m torch.distributed.run --nproc-per-node 2 -m pkg.train --x",
            2,
            "python -m torch.distributed.run --nproc-per-node 1 -m pkg.train --x",
        ),
        (
            "env A=1 accelerate launch --multi_gpu --num_processes 8 t.py",
            8,
            "env A=1 accelerate launch --num_processes 1 t.py",
        ),
        ("deepspeed --num_gpus 4 t.py --deepspeed c.json", 4, "deepspeed --num_gpus 1 t.py --deepspeed c.json"),
        ("mpirun -np 6 -x PATH python t.py", 6, "mpirun -np 1 -x PATH python t.py"),
        ("srun --ntasks=4 python t.py", 4, "srun --ntasks=1 python t.py"),
        ("python train.py --workers 4", 1, "python train.py --workers 4"),
    ],
)
def test_one_rank_of_many(typed: str, ranks: int, one: str) -> None:
    command = rank_command(shlex.split(typed))
    assert command.ranks == ranks
    assert command.on_one_host(1) == shlex.split(one)
    assert command.on_one_host(ranks) == shlex.split(typed)


def test_a_command_of_several_hosts_waits_for_none_on_one() -> None:
    typed = "torchrun --nnodes=2 --node_rank 0 --master-addr a --nproc-per-node 4 train.py --nnodes 2"
    one = "torchrun --nproc-per-node 4 train.py --nnodes 2"
    assert rank_command(shlex.split(typed)).on_one_host(4) == shlex.split(one)
    same = "torchrun --nnodes 1 --master-port 29777 --nproc-per-node 4 train.py"
    assert rank_command(shlex.split(same)).on_one_host(4) == shlex.split(same)


def test_ranks_said_next_to_the_command() -> None:
    command = rank_command(shlex.split("torchrun --standalone train.py"), 4)
    assert command.on_one_host(2) == shlex.split("torchrun --nproc-per-node 2 --standalone train.py")
    assert rank_command(shlex.split("torchrun --nproc-per-node gpu t.py"), 4).on_one_host(1)[2] == "1"


def test_torchrun_on_several_hosts_meets_where_its_options_say() -> None:
    typed = (
        "torchrun --standalone --nproc-per-node=8 --rdzv_backend c10d --rdzv-endpoint=h:1 --max-restarts 3"
        " --tee 3 train.py --master-port 5"
    )
    found = rank_command(shlex.split(typed)).on_hosts(4, MEETING)
    assert found == shlex.split(f"torchrun {PLACE} --nproc-per-node=4 --tee 3 train.py --master-port 5")


def test_accelerate_counts_the_ranks_of_all_hosts() -> None:
    found = rank_command(shlex.split("accelerate launch --multi_gpu --num_processes=8 t.py")).on_hosts(4, MEETING)
    assert "--num_processes=8" in found
    assert "--machine_rank" in found


def test_a_template_is_filled_in() -> None:
    words = shlex.split("mpirun -n {ranks} --host {address} -x R={host_rank}/{hosts}:{port} t.py")
    command = rank_command(words, 8)
    assert command.on_one_host(1)[2] == "1"
    assert command.on_hosts(4, MEETING) == shlex.split("mpirun -n 4 --host 10.0.0.1 -x R=1/2:29511 t.py")


@pytest.mark.parametrize(
    ("typed", "ranks", "message"),
    [
        ("", None, "no command"),
        ("torchrun train.py", None, "says no --nproc-per-node"),
        ("torchrun --nproc-per-node gpu train.py", None, "says --nproc-per-node gpu"),
        ("mpirun -n {ranks} t.py", None, "how many ranks"),
        ("python t.py", 2, "nothing in the command"),
        ("torchrun --nproc-per-node 2 t.py", 0, "0 ranks"),
    ],
)
def test_what_cannot_be_known_is_asked_for(typed: str, ranks: int | None, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        rank_command(shlex.split(typed), ranks)
    assert raised.value.hint


@pytest.mark.parametrize("typed", ["mpirun -n 2 t.py", "mpirun -n {ranks} t.py"])
def test_launchers_that_start_other_hosts_themselves(typed: str) -> None:
    with pytest.raises(UsageError) as raised:
        rank_command(shlex.split(typed), 2).on_hosts(1, MEETING)
    assert "{host_rank}" in str(raised.value.hint)
