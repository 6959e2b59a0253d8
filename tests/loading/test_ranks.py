"""Who is who, drawn from the facts of made-up process trees and from the variables of launchers."""

from __future__ import annotations

from typing import Any

import pytest

from stashtrace.loading.process_identity import Identity, Place, ProcessFacts, generations, identify, places
from stashtrace.loading.run_tables import missing_ranks
from stashtrace.schema.kinds import ProcessRole


def process(
    pid: int,
    ppid: int,
    begin: int = 0,
    *,
    env: dict[str, str] | None = None,
    boot: str = "b",
    inc: int = 0,
    parent_inc: int = -1,
    learned: dict[str, str] | None = None,
    argv: list[str] | None = None,
    **rows: int,
) -> ProcessFacts:
    metadata: dict[str, Any] = {
        "pid": pid,
        "ppid": ppid,
        "boot_id": boot,
        "incarnation": inc,
        "env": env or {},
        "parent_incarnation": parent_inc,
        "argv": argv or ["python", "train.py"],
    }
    return ProcessFacts(metadata, begin, learned or {}, rows)


def summarised(identities: list[Identity]) -> list[tuple[int, str, int]]:
    return [(i.rank, i.role.name, i.worker_id) for i in identities]


def rank_env(rank: int, world: int = 2) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}


def test_torchrun_with_workers() -> None:
    found = identify(
        [
            process(10, 1, 0, argv=["/usr/bin/python", "/usr/bin/torchrun", "train.py"]),
            process(20, 10, 5, env=rank_env(0), phase_span=9, batch=4),
            process(21, 10, 6, env=rank_env(1), phase_span=9, batch=4),
            process(30, 20, 9, env=rank_env(0), learned={"role": "worker", "worker_id": "1"}),
            process(31, 21, 9, env=rank_env(1), batch=12),
            process(32, 21, 9, env=rank_env(1), io_op=3, argv=["gcc", "x.c"]),
        ]
    )
    assert summarised(found) == [
        (-1, "LAUNCHER", -1),
        (0, "RANK", -1),
        (1, "RANK", -1),
        (0, "WORKER", 1),
        (1, "WORKER", -1),
        (1, "OTHER", -1),
    ]
    assert [i.parent for i in found] == [-1, 0, 0, 1, 2, 2]
    assert [i.name for i in found] == ["torchrun", "train.py", "train.py", "worker 1", "worker", "gcc"]
    assert [(i.local_rank, i.world_size) for i in found[3:5]] == [(0, 2), (1, 2)]


def test_a_shell_with_the_rank_in_its_environment_is_not_the_rank() -> None:
    found = identify(
        [
            process(10, 1, 0, env=rank_env(0), argv=["bash", "run.sh"]),
            process(11, 10, 1, env=rank_env(0), phase_span=3),
        ]
    )
    assert summarised(found) == [(-1, "LAUNCHER", -1), (0, "RANK", -1)]


def test_without_evidence_the_topmost_is_the_rank() -> None:
    found = identify([process(10, 1, 0, env={"SLURM_PROCID": "3"}), process(11, 10, 1, env={"SLURM_PROCID": "3"})])
    assert summarised(found) == [(3, "RANK", -1), (3, "OTHER", -1)]


def test_what_the_job_said_goes_before_its_environment() -> None:
    found = identify(
        [
            process(10, 1, 0, env=rank_env(0), phase_span=1),
            process(11, 10, 1, env=rank_env(0), learned={"rank": "5", "world_size": "8"}, phase_span=1),
        ]
    )
    assert [(i.rank, i.role, i.world_size) for i in found] == [(0, ProcessRole.RANK, 2), (5, ProcessRole.RANK, 8)]


def test_a_job_without_ranks_is_rank_0() -> None:
    found = identify(
        [
            process(10, 1, 0, argv=["sh", "-c", "python train.py"], io_op=1000),
            process(11, 10, 1, phase_span=3, batch=2),
            process(12, 11, 2, batch=5),
        ]
    )
    assert summarised(found) == [(-1, "LAUNCHER", -1), (0, "RANK", -1), (0, "WORKER", -1)]


def test_no_training_at_all() -> None:
    found = identify([process(10, 1, 0, argv=["dd"], io_op=5), process(11, 10, 1, argv=["dd"], io_op=500)])
    assert summarised(found) == [(0, "RANK", -1), (0, "OTHER", -1)]
    assert identify([]) == []


def test_reused_pids_and_exec_find_the_right_parent() -> None:
    found = identify(
        [
            process(10, 1, 0, inc=0),
            process(10, 1, 100, inc=1),
            process(20, 10, 50),
            process(21, 10, 150),
            process(22, 10, 150, parent_inc=0),
        ]
    )
    assert [i.parent for i in found] == [-1, -1, 0, 1, 0]


def test_same_pid_on_another_host_is_no_parent() -> None:
    found = identify([process(10, 1, 0, boot="a"), process(20, 10, 5, boot="b")])
    assert [i.parent for i in found] == [-1, -1]


def test_a_circle_of_parents_is_cut() -> None:
    found = identify([process(10, 11, 0), process(11, 10, 0), process(12, 12, 0)])
    assert min(i.parent for i in found) == -1
    assert all(i.rank >= 0 for i in found if i.role is ProcessRole.RANK)


def test_a_worker_whose_parent_left_no_file() -> None:
    found = identify(
        [
            process(20, 10, 5, env=rank_env(1), phase_span=9),
            process(31, 999, 9, env=rank_env(1), learned={"role": "worker", "worker_id": "0"}),
        ]
    )
    assert summarised(found) == [(1, "RANK", -1), (1, "WORKER", 0)]


def test_missing_ranks() -> None:
    found = identify([process(20 + r, 1, 0, env=rank_env(r, 4), phase_span=1) for r in (0, 1, 3)])
    assert missing_ranks(found) == ([0, 1, 3], [2], 4)


def elastic_env(rank: int, world: int = 2, restart: int = 0) -> dict[str, str]:
    return rank_env(rank, world) | {"GROUP_RANK": "0", "TORCHELASTIC_RESTART_COUNT": str(restart)}


def restarted(*trained: int) -> list[ProcessFacts]:
    """A torchrun that started two ranks and a worker each once more for every number; it is how much they trained."""
    found = [process(10, 1, 0, argv=["torchrun", "train.py"])]
    for start, count in enumerate(trained):
        for rank in (0, 1):
            pid, begin = 100 * (start + 1) + rank, 1000 * (start + 1) + rank
            found.append(process(pid, 10, begin, env=elastic_env(rank, restart=start), phase_span=count))
            found.append(process(pid + 50, pid, begin + 5, env=elastic_env(rank, restart=start), batch=count))
    return found


def test_restarts_of_torchrun_are_kept_apart() -> None:
    found = identify(restarted(5, 9, 1))
    assert [i.generation for i in found] == [-1, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert generations(found) == (1, [0, 1, 2])
    assert [i.rank for i in found if i.generation == 1] == [0, 0, 1, 1]
    assert {i.rank for i in found if i.generation in (0, 2)} == {-1}
    assert found[0].role is ProcessRole.LAUNCHER


def test_of_starts_that_trained_equally_long_the_last_is_shown() -> None:
    assert generations(identify(restarted(3, 3)))[0] == 1
    assert generations(identify(restarted(0, 0)))[0] == 1, "it died of the same import error twice"
    assert generations(identify(restarted(4)))[1] == [0]


def test_a_start_can_be_chosen() -> None:
    found = identify(restarted(5, 9), generation=0)
    assert generations(found) == (0, [0, 1])
    assert [i.rank for i in found if i.generation == 0] == [0, 0, 1, 1]


def test_a_host_that_was_replaced_begins_the_next_start() -> None:
    """Its agent is new and counts from 0; the others were restarted without the count growing."""

    def on(host: str, pid: int, begin: int, rank: int) -> ProcessFacts:
        facts = process(pid, 10, begin, boot=host, env=elastic_env(rank), phase_span=3)
        return ProcessFacts({**facts.metadata, "host": host}, begin, {}, facts.row_counts)

    found = identify([on("a", 20, 5, 0), on("b", 20, 6, 1), on("c", 20, 500, 0), on("a", 30, 501, 1)])
    assert [i.generation for i in found] == [0, 0, 1, 1]


def test_a_child_of_a_rank_that_left_no_file_is_no_restart() -> None:
    found = identify([process(20, 10, 5, env=elastic_env(0), phase_span=3), process(31, 999, 9, env=elastic_env(0))])
    assert [i.generation for i in found] == [0, 0]


def test_containers_of_one_host_have_a_process_1_each() -> None:
    def inside(pidns: str, pid: int, ppid: int, begin: int) -> ProcessFacts:
        facts = process(pid, ppid, begin)
        return ProcessFacts({**facts.metadata, "pidns": pidns}, begin)

    found = identify([inside("p1", 1, 0, 0), inside("p2", 1, 0, 1), inside("p1", 7, 1, 2), inside("p2", 7, 1, 3)])
    assert [i.parent for i in found] == [-1, -1, 0, 1]


def slurm_task(task: int, tasks: int, local: int = 0) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(task),
        "SLURM_LOCALID": str(local),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_NTASKS": "99",
    }


def elastic(rank: int, world: int, local: int = 0) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(local), "GROUP_RANK": str(rank // 2)}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, Place()),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}, Place(3, 1, 4)),
        (elastic(3, 4, 1), Place(3, 1, 4, elastic=True)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}, Place(2, 0, 4)),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_LOCAL_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, Place(1, 1, 2)),
        ({"PMI_RANK": "5", "PMI_SIZE": "6", "MPI_LOCALRANKID": "1"}, Place(5, 1, 6)),
        ({"PMI_RANK": "5", "PMI_SIZE": "6", "PMI_LOCAL_RANK": "2"}, Place(5, 2, 6)),
        ({"PALS_RANKID": "5", "PALS_LOCAL_RANKID": "1"}, Place(5, 1, -1)),
        ({"PMIX_RANK": "1", **slurm_task(1, 2, 1)}, Place(1, 1, 2)),
        ({"FLUX_TASK_RANK": "1", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_SIZE": "2"}, Place(1, 1, 2)),
        (slurm_task(1, 4, 1), Place(1, 1, 4)),
        ({"JOB_COMPLETION_INDEX": "3"}, Place(3)),
        ({"RANK": "minus one", "WORLD_SIZE": "2"}, Place()),
        ({"RANK": "7", "WORLD_SIZE": "2"}, Place(7)),
    ],
)
def test_each_launcher(environment: dict[str, str], place: Place) -> None:
    assert places([environment]) == [place]


@pytest.mark.parametrize("special", [{}, {"SLURM_STEP_ID": "4294967290"}])
def test_a_batch_script_has_no_tasks_next_to_it(special: dict[str, str]) -> None:
    """Else a job of one process under sbatch would miss all ranks but one."""
    batch = {k: v for k, v in slurm_task(0, 4).items() if k != "SLURM_STEP_ID"} | special
    assert places([batch]) == [Place(0, 0, -1)]


def test_torchrun_under_srun_counts_processes_not_tasks() -> None:
    agents = [slurm_task(task, 2) for task in (0, 1)]
    ranks = [slurm_task(r // 2, 2) | elastic(r, 4, r % 2) for r in range(4)]
    assert [p.rank for p in places([*agents, *ranks])] == [-1, -1, 0, 1, 2, 3]


def test_torchrun_in_pods_that_have_a_rank_themselves() -> None:
    pods = [{"RANK": str(pod), "WORLD_SIZE": "2", "PET_NODE_RANK": str(pod)} for pod in (0, 1)]
    ranks = [pods[r // 2] | elastic(r, 4, r % 2) for r in range(4)]
    found = places([*pods, *ranks])
    assert [(p.rank, p.world_size) for p in found] == [(-1, -1), (-1, -1), (0, 4), (1, 4), (2, 4), (3, 4)]


def test_a_worker_does_not_decide() -> None:
    """A script may set RANK for itself, from SLURM's, after it began; its workers then begin with it."""
    ranks = [slurm_task(r, 2) for r in (0, 1)]
    worker = slurm_task(1, 2) | {"RANK": "1", "WORLD_SIZE": "2"}
    assert [p.rank for p in places([*ranks, worker], aside={2})] == [0, 1, 1]
