"""The environment that turns an ordinary command into a traced one.

Called by ``stashtrace run`` and by tests. Pure: a mapping in, a new dict out; nothing is started and the
caller's environment stays as it is. The variables are the whole contract between launcher and guest
(their table is in ``docs/reference/environment.md``); the user's own values are kept behind ours.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from stashtrace.errors import CaptureError, UsageError
from stashtrace.record.staged import check_staged_list

#: Deep mode: on with ``--kernels`` alone.
KERNEL_COLLECTOR = "cupti"
#: Steps that deep mode records unless told otherwise; the same in ``csrc/core/config.h``.
KERNEL_STEPS = "10:13"
_PACKAGE = Path(__file__).resolve().parents[1]
LIBRARY_PATH = _PACKAGE / "libstashtrace.so"
#: Preloaded beside it with ``--lookup-hook`` alone: stands in front of dlsym.
LOOKUP_LIBRARY = "libstashtrace_lookup.so"
_BUILD_HINT = "build it with `make native`, or install the package again"
_MOST_NVML_HZ = 1000
#: Where the device times of NCCL's operations come from; the same in ``csrc/core/config.h``.
NCCL_SOURCES = ("auto", "plugin", "events")
INJECT_PATH = _PACKAGE / "probes" / "inject"


@functools.cache
def default_collectors() -> tuple[str, ...]:
    """Collectors that a run turns on unless told otherwise: all of ``csrc/schema/records.def`` but deep mode's.

    Native ones first, then probes; what the user's own code says comes last.

    Raises
    ------
    CaptureError
        If the extension that knows them cannot be loaded.
    """
    try:
        from stashtrace import _native
    except ImportError as error:
        raise CaptureError(f"the recorder cannot be loaded: {error}", hint=_BUILD_HINT) from error
    named = [c for c in _native.schema()["collectors"] if c["name"] not in ("core", KERNEL_COLLECTOR)]
    named.sort(key=lambda c: (not c["native"], c["name"] == "annotations"))
    return tuple(c["name"] for c in named)


def traced_environment(
    base: Mapping[str, str],
    *,
    run_dir: str | os.PathLike[str],
    run_id: str,
    collectors: Sequence[str] | None = None,
    steps: str | tuple[int | None, int | None] | None = None,
    until_step: int | None = None,
    wait_threshold_ns: int | None = None,
    sample_ms: int | None = None,
    nvml_hz: int | None = None,
    nvml_links: bool = False,
    drainer: str | None = None,
    log_level: str | None = None,
    kernels: bool | str = False,
    kernels_steps: str | None = None,
    event_budget: int | None = None,
    lookup_hook: bool = False,
    nccl_source: str | None = None,
    synthetic_batches: int = 0,
    staged: str | None = None,
    share: bool = False,
    library: str | os.PathLike[str] | None = None,
) -> dict[str, str]:
    """Return a copy of ``base`` in which every process of the command records itself.

    Parameters
    ----------
    base : mapping
        Environment of the command without tracing; its LD_PRELOAD and PYTHONPATH are kept behind ours.
    run_dir : path
        Where the processes write; made absolute, since they may change their directory.
    run_id : str
        Hexadecimal name of the run, stored in every file.
    collectors : sequence of str, optional
        Subset of :func:`default_collectors`; all by default.
    steps : str or (first, last), optional
        ``"A:B"``: record probes and hooks for these steps alone.
    until_step : int, optional
        STASHTRACE_UNTIL_STEP: ranks tell when they have made so many steps.
    wait_threshold_ns, sample_ms, nvml_hz, drainer, log_level : optional
        STASHTRACE_WAIT_THRESHOLD_NS, STASHTRACE_SAMPLE_MS, STASHTRACE_NVML_HZ, STASHTRACE_DRAINER and
        STASHTRACE_LOG; None keeps what ``base`` says.
    nvml_links : bool
        Sample each NVLink of a device beside their sum.
    kernels : bool or "graphs"
        Deep mode; "graphs": one row per graph launch in place of its kernels.
    kernels_steps : str, optional
        ``"A:B"``: steps of deep mode, :data:`KERNEL_STEPS` by default; turns it on.
    event_budget : int, optional
        STASHTRACE_EVENT_BUDGET: timing events per second above which whole steps go without.
    lookup_hook : bool
        Also see CUDA calls of programs that look the driver up by themselves (CuPy, Triton, JAX).
    nccl_source : {"auto", "plugin", "events"}, optional
        STASHTRACE_NCCL_SOURCE: where device times of NCCL's operations come from. A profiler plugin of NCCL that
        ``base`` names stays in use, behind ours.
    synthetic_batches : int
        Batches that each DataLoader keeps and returns again and again; 0: real data.
    staged : str, optional
        STASHTRACE_STAGED: list of files of which copies are opened in their place.
    share : bool
        STASHTRACE_SHARE: let the group read the files that the processes write.
    library : path, optional
        Runtime library to preload, the package's own by default.

    Returns
    -------
    dict of str to str

    Raises
    ------
    UsageError
        If a collector is unknown, ``steps`` is not a range, ``nvml_hz`` or ``event_budget`` not possible.
    CaptureError
        If the library is missing, or lies where LD_PRELOAD cannot name it.
    """
    environment = dict(base)
    preload = _library_path(library)
    environment["LD_PRELOAD"] = _prepend(preload, base.get("LD_PRELOAD", "").replace(" ", ":"))
    environment.pop("STASHTRACE_LOOKUP_HOOK", None)
    if lookup_hook:
        lookup = _library_path(Path(preload).with_name(LOOKUP_LIBRARY))
        environment["LD_PRELOAD"] = _prepend(preload, _prepend(lookup, environment["LD_PRELOAD"]))
        environment["STASHTRACE_LOOKUP_HOOK"] = "1"
    if event_budget is not None and event_budget < 0:
        raise UsageError(f"{event_budget} timing events a second are out of range", hint="--event-budget 0: no limit")
    environment["PYTHONPATH"] = _prepend(str(INJECT_PATH), base.get("PYTHONPATH", ""))
    environment["STASHTRACE_DIR"] = str(Path(run_dir).absolute())
    environment["STASHTRACE_RUN_ID"] = run_id
    if nvml_hz is not None and not 0 <= nvml_hz <= _MOST_NVML_HZ:
        raise UsageError(f"{nvml_hz} samples a second are out of range", hint=f"--nvml-hz 0 to {_MOST_NVML_HZ}")
    deep = bool(kernels) or kernels_steps is not None
    environment["STASHTRACE_COLLECTORS"] = ",".join(_known_collectors(collectors, deep))
    if until_step is not None and until_step < 1:
        raise UsageError(f"a run until step {until_step} would record nothing", hint="for example --until-step 60")
    if staged is not None and not Path(staged).is_file():
        raise UsageError(f"no list of staged files at {staged}", hint="`stashtrace stage RUN --to DIR` writes one")
    if staged is not None and "posix_io" not in environment["STASHTRACE_COLLECTORS"].split(","):
        raise UsageError("--staged needs the collector posix_io", hint="it leads the opens to the copies")
    if staged is not None:
        check_staged_list(Path(staged))
    for inherited in ("STEPS", "UNTIL_STEP", "KERNELS", "KERNELS_STEPS", "SYNTHETIC", "STAGED", "SHARE"):
        environment.pop(f"STASHTRACE_{inherited}", None)
    if staged is not None:
        environment["STASHTRACE_STAGED"] = str(Path(staged).absolute())
    if share:
        environment["STASHTRACE_SHARE"] = "1"
    if synthetic_batches > 0:
        environment["STASHTRACE_SYNTHETIC"] = str(synthetic_batches)
    if deep:
        environment["STASHTRACE_KERNELS"] = kernels if isinstance(kernels, str) else "1"
        environment["STASHTRACE_KERNELS_STEPS"] = _step_range(kernels_steps or KERNEL_STEPS, "--kernels-steps 10:13")
    _take_profiler_slot(environment, nccl_source)
    if steps is not None:
        environment["STASHTRACE_STEPS"] = _step_range(steps)
    for name, value in (
        ("STASHTRACE_UNTIL_STEP", until_step),
        ("STASHTRACE_WAIT_THRESHOLD_NS", wait_threshold_ns),
        ("STASHTRACE_SAMPLE_MS", sample_ms),
        ("STASHTRACE_NVML_HZ", nvml_hz),
        ("STASHTRACE_NVML_LINKS", 1 if nvml_links else None),
        ("STASHTRACE_EVENT_BUDGET", event_budget),
        ("STASHTRACE_DRAINER", drainer),
        ("STASHTRACE_LOG", log_level),
    ):
        if value is not None:
            environment[name] = str(value)
    return environment


def _take_profiler_slot(environment: dict[str, str], source: str | None) -> None:
    """Make our library NCCL's profiler plugin; the former one is named to it, so that both get every event."""
    if source is not None and source not in NCCL_SOURCES:
        raise UsageError(f"no source of NCCL times named {source!r}", hint="choose from: " + ", ".join(NCCL_SOURCES))
    if source is not None:
        environment["STASHTRACE_NCCL_SOURCE"] = source
    if "nccl" not in environment["STASHTRACE_COLLECTORS"].split(","):
        return
    ours = environment["LD_PRELOAD"].split(":")[0]
    former = environment.get("NCCL_PROFILER_PLUGIN", "")
    if former != ours:  # a traced command that traces another keeps what it was told
        environment.pop("STASHTRACE_NCCL_CHAIN", None)
        if former:
            environment["STASHTRACE_NCCL_CHAIN"] = former
    environment["NCCL_PROFILER_PLUGIN"] = ours


def _prepend(first: str, old: str) -> str:
    """Put ``first`` before a colon-separated list, once, so that a traced command may trace another."""
    # An empty entry of PYTHONPATH means the current directory, so it must survive.
    return ":".join([first, *(part for part in (old.split(":") if old else []) if part != first)])


def _library_path(library: str | os.PathLike[str] | None) -> str:
    path = Path(library).absolute() if library is not None else LIBRARY_PATH
    if not path.is_file():
        raise CaptureError(
            f"{path.name} is not in {path.parent}",
            hint=_BUILD_HINT,
        )
    if any(separator in str(path) for separator in ": "):
        # The loader splits LD_PRELOAD at both characters and knows no quoting.
        raise CaptureError(
            f"the path {path} holds a colon or a blank, which LD_PRELOAD cannot name",
            hint="install stashtrace into a folder without blanks and colons",
        )
    return str(path)


def _known_collectors(collectors: Sequence[str] | None, deep: bool) -> tuple[str, ...]:
    known = (*default_collectors(), KERNEL_COLLECTOR) if deep else default_collectors()
    if collectors is None:
        return known
    unknown = [name for name in collectors if name not in known]
    if unknown:
        hint = "use --kernels" if unknown[0] == KERNEL_COLLECTOR else "choose from: " + ", ".join(known)
        raise UsageError(f"no collector named {unknown[0]!r}", hint=hint)
    # Asked for by an option of its own, it needs no second naming.
    return tuple(dict.fromkeys((*collectors, KERNEL_COLLECTOR) if deep else collectors))


def _step_range(steps: str | tuple[int | None, int | None], example: str = "--steps 10:20") -> str:
    text = steps if isinstance(steps, str) else ":".join("" if end is None else str(end) for end in steps)
    first, colon, last = text.partition(":")
    well_formed = bool(colon) and all(part == "" or part.isdecimal() for part in (first, last))
    if not well_formed or (first and last and int(first) >= int(last)):
        raise UsageError(f"steps {text!r} is not a range A:B with A < B", hint=f"for example {example}")
    return text
