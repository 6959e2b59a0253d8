"""Make a layers study: train the networks of a sweep, each on one rank and on all, under the tracer.

    repetition 0   resnet10 x1, x2   resnet12 x1, x2   ...      what slows the machine down for a while
    repetition 1   resnet10 x1, x2   ...                        meets one rank and all equally

After each run the study file is written again, so that an interrupted study
goes on where it was, and others may add their variants to it. torch is imported in the processes of the ranks alone.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stashtrace.analysis.steps.steps import counted_steps, steps
from stashtrace.errors import CaptureError, FormatError, MissingDataError, UsageError, say_why
from stashtrace.files.checked_files import CheckedFile
from stashtrace.files.whole_files import write_whole
from stashtrace.lab.calibrate.measure import probe_machine
from stashtrace.lab.machine import machine_facts
from stashtrace.lab.number_intervals import finite_or_none
from stashtrace.lab.processes import Progress, ProgressCallback, cores_of_ranks, no_progress
from stashtrace.lab.sweep.fit_study import ALL_BYTES, FILE_NAME, FORMAT_VERSION, Variant, resized, variant_row
from stashtrace.lab.sweep.shapes import DEPTHS, MIDDLE, WIDTH_FACTORS, Network, network
from stashtrace.lab.sweep.study_worker import last_words
from stashtrace.loading.load import load_trace
from stashtrace.record.directory import file_rights
from stashtrace.record.options import RecordOptions
from stashtrace.record.program import own_program
from stashtrace.record.run import run_command
from stashtrace.replay.communication.communication_model import communication_model
from stashtrace.replay.communication.messages import gradient_messages
from stashtrace.schema.trace import Trace

SWEEPS = ("depth", "width", "bucket")
#: What the study needs of the tracer; reads of files say nothing here.
_COLLECTORS = ("torch_step", "torch_distributed", "waits", "proc", "cuda", "nccl")
#: Buckets of a bucket sweep, in parts of all gradients; besides, a message per tensor, and one for everything.
_BUCKET_PARTS = (32, 16, 8, 4, 2)
_COMMAND = "stashtrace.lab.sweep.study_worker"
_WARM_STEPS = 5
_GRACE_S = 10.0
_REMOVE = "remove it; its runs are repeated"

#: Makes one run in a folder, as :func:`traced_run`: (folder, task) -> facts of the run.
Runner = Callable[[Path, Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class StudyRequest:
    """A sweep to measure."""

    #: ``depth``, ``width`` or ``bucket``.
    sweep: str
    #: Of ``lab.sweep.shapes``.
    family: str = "resnet"
    #: Depths of a depth sweep, the first one of the others; those of the family by default.
    depths: tuple[int, ...] = ()
    residual: bool = True
    batch_norm: bool = True
    #: ``bucket_cap_mb`` of depth and width sweeps; 0 for a message per tensor.
    bucket_mib: float = 0.0
    #: All ranks; one per GPU by default, else 2.
    ranks: int | None = None
    iterations: int = 25
    repeat: int = 3
    batch_samples: int = 8


def variants_of(request: StudyRequest) -> list[Variant]:
    """List the variants of a sweep, smallest first.

    Raises UsageError if there are none of that kind.

    Examples
    --------
    >>> [v.name for v in variants_of(StudyRequest("depth", "vgg", batch_norm=False))]
    ['vgg11-nobn', 'vgg13-nobn', 'vgg16-nobn', 'vgg19-nobn']
    >>> [v.name for v in variants_of(StudyRequest("width", "resnet"))][:2]
    ['resnet18-w8', 'resnet18-w12']
    """
    if request.sweep not in SWEEPS:
        raise UsageError(f"no sweep is called {request.sweep!r}", hint="one of " + ", ".join(SWEEPS))
    if not 0 <= request.bucket_mib < math.inf:
        raise UsageError(
            f"--bucket-mb {request.bucket_mib:g} is not a size", hint="25 is that of torch, 0 one tensor each"
        )
    own = {"residual": request.residual, "batch_norm": request.batch_norm}

    def made(depth: int) -> Network:
        return network(request.family, depth, **own)

    bucket = max(round(request.bucket_mib * 2**20), 1)
    middle = request.depths[0] if request.depths else MIDDLE.get(request.family, 1)
    if request.sweep == "depth":
        depths = request.depths or DEPTHS.get(request.family) or (1,)
        return [Variant(made(depth), bucket) for depth in dict.fromkeys(depths)]
    if request.sweep == "width":
        nets = dict.fromkeys(resized(made(middle), factor) for factor in WIDTH_FACTORS)
        return [Variant(net, bucket) for net in nets]
    net = made(middle)
    sizes = [1, *(net.gradient_bytes // part for part in _BUCKET_PARTS), ALL_BYTES]
    return [Variant(net, size) for size in sizes]


def run_study(
    request: StudyRequest,
    out: Path,
    *,
    version: str = "",
    facts: Mapping[str, Any] | None = None,
    runner: Runner | None = None,
    on_progress: ProgressCallback = no_progress,
) -> dict[str, Any]:
    """Make the runs that ``out`` does not hold yet, and return the content of its study file.

    ``out``: folder of the study, new or of another sweep with the same settings. ``facts``: as
    ``calibrate_worker.probe`` finds them. ``runner``: makes one run in a folder. Raises UsageError if the folder holds
    a study with other settings, or the ranks do not fit the machine. Raises CaptureError if torch is missing, or no run
    worked.
    """
    _check(request)
    variants = variants_of(request)
    known = dict(facts) if facts is not None else probe_machine()
    settings = settings_of(request, known)
    content = _open_study(out, settings, version, known)
    rows = {row["name"]: row for row in content["variants"]}
    rows |= {v.name: variant_row(v) for v in variants}
    content["variants"] = list(rows.values())
    missing = _missing_runs(variants, settings["ranks"], request.repeat, content["runs"])
    progress = Progress(on_progress, sum(_weight(variant, ranks) for variant, ranks, _ in missing))
    failures = []
    for variant, ranks, repeat in missing:
        name = variant.network.name if ranks == 1 else variant.name
        progress.report(f"{name} x{ranks}, {repeat + 1} of {request.repeat}")
        folder = out / "runs" / f"{name}-x{ranks}-{repeat}"
        row = {"name": name, "ranks": ranks, "repeat": repeat, "directory": f"runs/{folder.name}", "failed": ""}
        try:
            row |= (runner or traced_run)(folder, _task(variant, ranks, settings))
        except (CaptureError, FormatError, MissingDataError) as error:
            row["failed"] = str(error)
            failures.append(f"{name} x{ranks}: {error}")
        content["runs"] = [r for r in content["runs"] if _key(r) != _key(row)] + [row]
        write_study(out, content)
        progress.finish(_weight(variant, ranks))
    if missing and len(failures) == len(missing):
        raise CaptureError(f"no run of the study worked: {failures[0]}", hint="`stashtrace doctor`")
    write_study(out, content)
    return content


def settings_of(request: StudyRequest, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Choose what all runs of a study have in common: ranks, device, backend, sizes.

    Raises CaptureError if torch is missing, or has neither gloo nor two GPUs.
    """
    if "torch" not in facts:
        why = f" ({facts['complaint']})" if facts.get("complaint") else ""
        raise CaptureError(
            f"a sweep trains networks, and torch cannot be imported here{why}",
            hint="`pip install 'stashtrace[torch]'`; `stashtrace model RUN` needs none",
        )
    devices = len(facts.get("devices", ())) if "nccl" in facts.get("backends", ()) else 0
    on_device = devices >= 2 and (request.ranks is None or request.ranks <= devices)
    ranks = request.ranks if request.ranks is not None else devices if on_device else 2
    backends = [*facts.get("backends", ()), *facts.get("host_backends", ())]
    if not on_device and "gloo" not in backends:
        raise CaptureError(
            "this build of torch has no gloo, and there are not two GPUs for NCCL",
            hint="`pip install torch` from PyPI has it",
        )
    return {
        "ranks": ranks,
        "device": "cuda" if on_device else "cpu",
        "backend": "nccl" if on_device else "gloo",
        "iterations": request.iterations,
        "batch_samples": request.batch_samples,
    }


def traced_run(folder: Path, task: Mapping[str, Any]) -> dict[str, Any]:
    """Train once under the tracer, and return what the trace says about the run.

    Raises CaptureError if a rank failed. Raises MissingDataError if its steps were not recorded.
    """
    if folder.exists():
        shutil.rmtree(folder)
    path = folder / "task.json"
    meeting = {"rendezvous": str((folder / "meet").absolute())}
    with file_rights(share=False):
        folder.mkdir(parents=True)
        write_whole(path, json.dumps({**task, **meeting}, indent=1) + "\n")
    outcome = run_command(
        own_program(_COMMAND, "start", str(path.absolute())),
        RecordOptions(collectors=_COLLECTORS),
        out=str(folder / "run"),
        grace_s=_GRACE_S,
    )
    if outcome.interrupts_count:
        raise KeyboardInterrupt
    if outcome.exit_code:
        raise CaptureError(f"exit code {outcome.exit_code}, {last_words(path, int(task['ranks']))}")
    return run_facts(load_trace(folder / "run"), int(task["ranks"]))


def run_facts(trace: Trace, ranks: int) -> dict[str, Any]:
    """Read the step time of a run; of several ranks also what a step sent, and what of it was exposed."""
    known = counted_steps(steps(trace))
    facts: dict[str, Any] = {
        "step_ns": float(np.median(known["end_ns"] - known["begin_ns"])),
        "steps_count": len(np.unique(known["step"])),
    }
    if ranks == 1:
        return facts
    messages = gradient_messages(trace)
    own = (messages.backward >= 0) & (messages.rank == messages.rank.min(initial=0))
    passes = np.unique(messages.backward[own], return_inverse=True)[1]
    if not len(passes):
        raise MissingDataError("no gradient was sent in a step that counts")
    facts["messages_count"] = int(np.median(np.bincount(passes)))
    facts["message_bytes"] = int(np.median(np.bincount(passes, weights=messages.bytes[own])))
    model = communication_model(trace, needs_fit=False)
    facts |= {
        "exposed_ns": float(np.median(model.passes.observed_ns)),
        "predicted_ns": finite_or_none(float(np.median(model.passes.predicted_ns))),
        "link_ns": float(np.median(model.passes.link_ns)),
        "late_ns": model.late_ns,
    }
    return facts


def read_study(path: Path) -> dict[str, Any]:
    """Read the study file of a folder; raise as ``CheckedFile`` does if there is none or it is damaged."""
    file = CheckedFile(str(path / FILE_NAME), "study", "study", _REMOVE)
    content = file.json(file.read())
    file.require_version(content.get("format"), FORMAT_VERSION, "format")
    if not _is_whole(content):
        raise file.damaged("its settings, variants or runs are not whole")
    return content


def _is_whole(content: Mapping[str, Any]) -> bool:
    keys: dict[str, dict[str, type]] = {"variants": {"name": str}, "runs": {"name": str, "ranks": int, "repeat": int}}
    if not isinstance(content.get("settings"), dict) or not all(isinstance(content.get(part), list) for part in keys):
        return False
    rows = ((row, own) for part, own in keys.items() for row in content[part])
    return all(
        isinstance(row, dict) and all(isinstance(row.get(k), kind) for k, kind in own.items()) for row, own in rows
    )


def write_study(out: Path, content: Mapping[str, Any]) -> None:
    """Replace the study file in one step."""
    write_whole(out / FILE_NAME, json.dumps(content, indent=1) + "\n")


def _check(request: StudyRequest) -> None:
    for value, low, option in (
        (request.ranks if request.ranks is not None else 2, 2, "--ranks"),
        (request.iterations, _WARM_STEPS + 5, "--iterations"),
        (request.repeat, 1, "--repeat"),
        (request.batch_samples, 1, "--batch-size"),
    ):
        if value < low:
            raise UsageError(f"{option} {value} is too few", hint=f"at least {low}")


def _open_study(out: Path, settings: Mapping[str, Any], version: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    try:
        with file_rights(share=False):
            out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CaptureError(f"cannot make {out}: {say_why(error)}", hint="--out DIR") from error
    if (out / FILE_NAME).exists():
        content = read_study(out)
        differing = [k for k, v in settings.items() if content.get("settings", {}).get(k) != v]
        if differing:
            had = ", ".join(f"{k} {content['settings'].get(k)}" for k in differing)
            raise UsageError(f"{out} holds a study with {had}", hint="choose the same, or another folder with --out")
        return content
    if any(out.iterdir()):
        raise UsageError(f"{out} holds something that is not a study", hint="choose a new folder with --out")
    return {
        "format": FORMAT_VERSION,
        "stashtrace_version": version,
        "created": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "settings": dict(settings),
        "machine": {**machine_facts(facts.get("devices", ())), "torch": facts.get("torch", "")},
        "variants": [],
        "runs": [],
    }


def _missing_runs(
    variants: Sequence[Variant], ranks: int, repeat: int, runs: Sequence[Mapping[str, Any]]
) -> list[tuple[Variant, int, int]]:
    """Runs that are missing: (variant, ranks, repetition). One rank is the same for all buckets of a network."""
    have = {_key(r) for r in runs if not r.get("failed")}
    missing = []
    for number in range(repeat):
        for variant in variants:
            for count, name in ((1, variant.network.name), (ranks, variant.name)):
                if (name, count, number) not in have:
                    have.add((name, count, number))
                    missing.append((variant, count, number))
    return missing


def _key(run: Mapping[str, Any]) -> tuple[str, int, int]:
    return str(run["name"]), int(run["ranks"]), int(run["repeat"])


def _task(variant: Variant, ranks: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    # One rank gets the cores that it has among all ranks: else it would have the machine to itself.
    cores = cores_of_ranks(sorted(os.sched_getaffinity(0)), int(settings["ranks"]))
    return {
        "network": asdict(variant.network),
        "bucket_bytes": variant.bucket_bytes,
        "ranks": ranks,
        "device": settings["device"],
        "iterations": settings["iterations"],
        "batch_samples": settings["batch_samples"],
        "cores": cores[:ranks],
    }


def _weight(variant: Variant, ranks: int) -> float:
    """Rough time of a run, for the progress: starting, then the network and its messages."""
    return 3.0 + variant.network.tensors_count * (0.02 if ranks == 1 else 0.06)
