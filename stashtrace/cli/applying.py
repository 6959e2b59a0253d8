"""Run a job again with buckets of another size, and measure its step: ``stashtrace whatif --apply``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from stashtrace.cli import run
from stashtrace.errors import CaptureError, DataLossWarning

#: Read by ``probes/torch_ddp``.
_VARIABLE = "STASHTRACE_BUCKET_MB"


def measured_with_buckets(command: Sequence[str], bucket_mib: float, out: str) -> float:
    """Record ``command`` with another ``bucket_cap_mb``; return its mean step in ns.

    What the command prints goes to stderr: stdout is for the answer.

    Parameters
    ----------
    command : sequence of str
        The job, as `stashtrace run` takes it.
    bucket_mib : float
    out : str
        Run directory.

    Raises
    ------
    CaptureError
        If the command fails, its script chose the size of a model itself, torch did not take the size, or the command
        makes no DistributedDataParallel.
    """
    sys.stderr.write(f"stashtrace: running {command[0]} with bucket_cap_mb={bucket_mib:g}, recorded in {out}\n")
    with _variable(_VARIABLE, f"{bucket_mib:.12g}"), _stdout_to_stderr():
        code = run.main(["--out", out, "--", *command])
    if code:
        raise CaptureError(
            f"{command[0]} ended with exit code {code}: nothing to compare with", hint=f"what it recorded is in {out}"
        )
    from stashtrace.analysis.graph import build
    from stashtrace.loading.load import load_trace
    from stashtrace.replay import what_if
    from stashtrace.replay.communication.ddp import ddp_facts

    nothing = CaptureError(
        "the command made no DistributedDataParallel, so that nothing was applied",
        hint="give the command of the recorded job",
    )
    if not any(Path(out).glob("*.stash")):
        raise nothing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        trace = load_trace(out)
    sources = ddp_facts(trace).sources
    if "script" in sources:
        part = (
            "to one of its models, which kept that" if "applied" in sources else "itself, so that nothing was applied"
        )
        raise CaptureError(
            f"the script gives bucket_cap_mb {part}",
            hint="take the option out of its DistributedDataParallel(...) call, or set it there",
        )
    if "default" in sources:
        raise CaptureError(
            f"DistributedDataParallel did not take bucket_cap_mb={bucket_mib:g} and kept torch's default",
            hint="a size in MiB, as in bucket_mb=25",
        )
    if "applied" not in sources:
        raise nothing
    return what_if(build(trace), []).measured_ns


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """For this process and those that it starts."""
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(own, 1)
        os.close(own)
