"""A one-node Slurm of Debian's packages, with separate daemons, ports and key, in a folder of the test."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked_commands import EAGER_JOBS
from ports import free_port

from stashtrace.loading.load import load_trace

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "cluster" / "slurm"
DAEMONS = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(
        os.getuid() != 0 or not all(map(shutil.which, DAEMONS)),
        reason="needs root, and slurmctld, slurmd, slurmdbd, munge and mariadb-server of the system",
    ),
]
CONF = """
    ClusterName=test
    SlurmctldHost={host}
    SlurmctldPort={port}
    SlurmdPort={node_port}
    AuthType=auth/munge
    CredType=cred/munge
    AuthInfo=socket={folder}/munge.socket
    SlurmUser=root
    SlurmdUser=root
    StateSaveLocation={folder}/state
    SlurmdSpoolDir={folder}/spool
    SlurmctldPidFile={folder}/slurmctld.pid
    SlurmdPidFile={folder}/slurmd.pid
    SlurmctldLogFile={folder}/slurmctld.log
    SlurmdLogFile={folder}/slurmd.log
    ProctrackType=proctrack/pgid
    TaskPlugin=task/none
    MpiDefault=none
    JobAcctGatherType=jobacct_gather/none
    ReturnToService=2
    SelectType=select/cons_tres
    SelectTypeParameters=CR_CPU
    AccountingStorageType=accounting_storage/slurmdbd
    AccountingStorageHost=localhost
    AccountingStoragePort={dbd_port}
    AccountingStoragePass={folder}/munge.socket
    AccountingStoreFlags=job_comment
    TaskProlog={folder}/task_prolog
    EpilogSlurmctld={folder}/epilog
    NodeName={host} CPUs={cpus} State=UNKNOWN
    PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""
DATABASE_CONF = """
    AuthType=auth/munge
    AuthInfo=socket={folder}/munge.socket
    DbdHost=localhost
    DbdPort={dbd_port}
    SlurmUser=root
    PidFile={folder}/slurmdbd.pid
    LogFile={folder}/slurmdbd.log
    StorageType=accounting_storage/mysql
    StorageHost=127.0.0.1
    StoragePort={sql_port}
    StorageUser=root
    StoragePass=none
    StorageLoc=accounts
"""
TRAIN = """
    import os
    import torch
    import torch.distributed as dist
    os.environ.setdefault("RANK", os.environ["SLURM_PROCID"])
    os.environ.setdefault("WORLD_SIZE", os.environ["SLURM_NTASKS"])
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(40):
        optimizer.zero_grad()
        model(torch.randn(8, 32)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A running cluster; the environment of its commands."""
    # The path of munge's socket has 107 characters at most.
    folder = Path(tmp_path_factory.mktemp("slurm"))
    for name in ("state", "spool", "runs"):
        (folder / name).mkdir()
    command = folder / "stashtrace"
    command.write_text(f'#!/bin/sh\nPYTHONPATH="{EAGER_JOBS}:{ROOT}" exec "{sys.executable}" -P -m stashtrace "$@"\n')
    command.chmod(0o755)
    for name, script in (("task_prolog", "task_prolog.sh"), ("epilog", "epilog_slurmctld.sh")):
        site = {
            "STASHTRACE_SITE_COMMAND": command,
            "STASHTRACE_SITE_RUNS": folder / "runs",
            "SLURM_CONF": folder / "slurm.conf",
            "PATH": os.environ["PATH"],
        }
        exports = "".join(f'export {variable}="{value}"\n' for variable, value in site.items())
        (folder / name).write_text(f'#!/bin/bash\n{exports}exec "{EXAMPLES / script}"\n')
        (folder / name).chmod(0o755)
    ports = {name: free_port() for name in ("port", "node_port", "dbd_port", "sql_port")}
    for name, conf in (("slurm.conf", CONF), ("slurmdbd.conf", DATABASE_CONF)):
        facts = {"host": os.uname().nodename, "folder": folder, "cpus": os.cpu_count(), **ports}
        (folder / name).write_text(textwrap.dedent(conf).format(**facts))
        (folder / name).chmod(0o600)
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    data = f"--datadir={folder}/data"
    install = ["mariadb-install-db", "--no-defaults", data, "--user=root", "--skip-test-db"]
    subprocess.run(install, capture_output=True, timeout=120, check=True)
    munge = [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
    sql = [
        data,
        f"--socket={folder}/sql",
        f"--port={ports['sql_port']}",
        "--bind-address=127.0.0.1",
        "--skip-grant-tables",
    ]
    environment = dict(os.environ, SLURM_CONF=str(folder / "slurm.conf"))
    daemons: list[subprocess.Popen[bytes]] = []
    log = (folder / "daemons.log").open("wb")

    def start(*words: str) -> None:
        daemons.append(subprocess.Popen(words, env=environment, stdout=log, stderr=log))

    try:
        start("munged", "-F", "--force", f"--key-file={folder}/key", f"--socket={folder}/munge.socket", *munge)
        start("mariadbd", "--no-defaults", "--user=root", *sql)
        wait_for(lambda: (folder / "munge.socket").exists() and (folder / "sql").exists())
        # It looks for slurmdbd.conf next to slurm.conf.
        start("slurmdbd", "-D")
        dbd_log = folder / "slurmdbd.log"
        wait_for(lambda: dbd_log.exists() and "started" in dbd_log.read_text())
        start("slurmctld", "-D", "-f", str(folder / "slurm.conf"))
        start("slurmd", "-D", "-f", str(folder / "slurm.conf"))
        wait_for(lambda: "idle" in output(environment, "sinfo", "-h", "-o", "%T"))
        yield environment | {"RUNS": str(folder / "runs"), "STASHTRACE": str(command)}
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(60)
        log.close()


def output(environment: dict[str, str], *words: str) -> str:
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False).stdout


def wait_for(is_there: Callable[[], bool], limit_s: float = 180) -> None:
    deadline = time.monotonic() + limit_s
    while not is_there():
        assert time.monotonic() < deadline, "the cluster does not come up, or a job does not end"
        time.sleep(0.1)


def submit(slurm: dict[str, str], folder: Path, script: str, **variables: str) -> int:
    """Run a batch script to its end; the number of its job."""
    (folder / "train.py").write_text(textwrap.dedent(TRAIN))
    (folder / "job").write_text(script)
    words = ["sbatch", "--parsable", "--output", str(folder / "out"), str(folder / "job")]
    environment = (
        slurm | {"PYTHONPATH": str(EAGER_JOBS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} | variables
    )
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    job = int(done.stdout)

    def state() -> str:
        return output(slurm, "squeue", "-h", "--states=all", "-j", str(job), "-o", "%T").strip()

    # `sbatch --wait` looks 2, 10 and 42 s after the start.
    wait_for(lambda: state() not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"), 300)
    assert state() == "COMPLETED", (folder / "out").read_text()
    return job


BATCH = f"#!/bin/bash\n#SBATCH -n 2 --overcommit\nsrun -n 2 --overcommit {shlex.quote(sys.executable)} train.py\n"


def test_every_job_of_a_site_records_itself(slurm: dict[str, str], tmp_path: Path) -> None:
    job = submit(slurm, tmp_path, BATCH)
    trace = load_trace(f"{slurm['RUNS']}/{job}")
    assert trace.ranks.tolist() == [0, 1]
    assert len(trace.collectives) >= 80

    def comment() -> str:
        return output(slurm, "sacct", "-X", "-n", "-P", "-j", str(job), "-o", "AdminComment").strip()

    wait_for(lambda: comment() != "")
    assert comment().startswith("stashtrace: ")
    assert comment().endswith(f"({slurm['RUNS']}/{job})")
    headline = output(slurm, slurm["STASHTRACE"], "summary", f"{slurm['RUNS']}/{job}", "--format", "line").strip()
    assert headline.lower() in comment(), "sacctmgr writes it in small letters"
    assert len(headline) > 20


def test_a_user_opts_out(slurm: dict[str, str], tmp_path: Path) -> None:
    job = submit(slurm, tmp_path, BATCH, STASHTRACE_SITE="0")
    assert not Path(f"{slurm['RUNS']}/{job}").exists()


def test_the_sbatch_file(slurm: dict[str, str], tmp_path: Path) -> None:
    """As it is, but for the number of nodes; torchrun and stashtrace are those of this environment."""
    text = (
        (EXAMPLES / "job.sbatch")
        .read_text()
        .replace("--nodes=2", "--nodes=1")
        .replace("--cpus-per-task=16", "--ntasks=1")
    )
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "stashtrace").symlink_to(slurm["STASHTRACE"])
    (binaries / "torchrun").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m torch.distributed.run "$@"\n')
    (binaries / "torchrun").chmod(0o755)
    path = f"{binaries}:{os.environ['PATH']}"
    runs = tmp_path / "runs"
    variables = {"PATH": path, "RUNS": str(runs), "RANKS_PER_NODE": "2", "STASHTRACE_SITE": "0", "MASTER_ADDR": ""}
    job = submit(slurm, tmp_path, text, **variables)
    assert load_trace(runs / str(job)).ranks.tolist() == [0, 1]
    assert "2 ranks, 1 host" in (tmp_path / "out").read_text()
