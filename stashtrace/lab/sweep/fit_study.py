"""The layers study: step times of many networks on one rank and on all, and how the stall grows with the bytes sent.

    stall of a variant = step of all ranks - step of one rank       the interconnect stall of a characterization
    stall of all variants = messages * a + bytes * b                each is also predicted by a fit to the others

The file that holds the runs is made by ``lab.sweep.layers_study``. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stashtrace.calibration.robust_line import LinearFit, fit_linear, likeness
from stashtrace.errors import FormatError, MissingDataError
from stashtrace.lab.characterize.differential import stalls, step_time
from stashtrace.lab.number_intervals import Estimate
from stashtrace.lab.sweep.shapes import Network

FORMAT_VERSION = 1
FILE_NAME = "study.json"
#: Explanations that are tried: both, and each alone.
MODELS: tuple[tuple[str, ...], ...] = (("messages", "bytes"), ("messages",), ("bytes",))
#: From this likeness on, what belongs to messages and what to bytes is a guess.
_ALIKE = 0.98
ALL_BYTES = 1 << 40
#: Settings that every study has.
_SETTINGS = ("ranks", "device", "backend", "iterations", "batch_samples")


@dataclass(frozen=True, slots=True)
class Variant:
    """A network and how its gradients are put into messages."""

    network: Network
    #: As DistributedDataParallel takes it; 1 for a message per tensor.
    bucket_bytes: int = 1

    @property
    def name(self) -> str:
        """Name of the network, with the bucket if it is larger than a tensor."""
        if self.bucket_bytes <= 1:
            return self.network.name
        if self.bucket_bytes >= ALL_BYTES:
            return f"{self.network.name}-one"
        return f"{self.network.name}-b{round(self.bucket_bytes / 1024)}K"


@dataclass(frozen=True, slots=True)
class VariantResult:
    """Results of one variant."""

    name: str
    #: Gradient tensors; messages and their bytes in a step, as they were seen.
    tensors_count: int
    messages_count: int
    message_bytes: int
    #: Step time in ns of one rank and of all.
    t1: Estimate
    tn: Estimate
    #: Their difference in ns.
    stall: Estimate
    #: The same as a share of the step of all ranks.
    share: Estimate
    #: Exposed communication as it was seen, and by the recurrence; NaN where the run could not be fitted.
    exposed_ns: float
    predicted_ns: float
    #: Waiting for the other rank to enter, part of the stall and not of the exposed communication.
    late_ns: float


@dataclass(frozen=True, slots=True)
class LayersStudy:
    """All variants and the fits to their stalls."""

    #: ``ranks``, ``device``, ``iterations``, ``batch_samples``.
    settings: Mapping[str, Any]
    #: By messages, then bytes.
    results: tuple[VariantResult, ...]
    #: Those of :data:`MODELS` that the variants carry, the one to predict with first.
    fits: tuple[LinearFit, ...]
    #: What is missing or doubtful.
    notes: tuple[str, ...]

    @property
    def best(self) -> LinearFit | None:
        """The fit to predict with, None if there is none."""
        return self.fits[0] if self.fits else None

    def predict(self, messages: int, sent_bytes: int) -> tuple[float, float]:
        """Predict the stall in ns of a variant that was not measured, and its standard error.

        Raises MissingDataError if the study carries no fit, or none in which what is sent costs something.
        """
        if self.best is None:
            raise MissingDataError("the study carries no fit to predict with", hint="; ".join(self.notes[:1]) or None)
        if (self.best.coefficients < 0).any():
            raise MissingDataError(
                "by every fit of the study what is sent costs less than nothing: its stalls are noise",
                hint="more --iterations and --repeat, or more --ranks",
            )
        return self.best.predict(**_chosen(self.best.names, messages=float(messages), bytes=float(sent_bytes)))


def study_of(content: Mapping[str, Any]) -> LayersStudy:
    """Evaluate the content of a study file.

    Raises FormatError if it is not a study. Raises MissingDataError if no variant has a run of one rank and one of all.
    """
    try:
        settings, variants, runs = content["settings"], content["variants"], content["runs"]
        missing = [name for name in _SETTINGS if name not in settings]
        if missing:
            raise FormatError(f"this is not a study: its settings lack {', '.join(missing)}")
        results, notes = [], []
        for variant in variants:
            try:
                results.append(_result(variant, runs, int(settings["ranks"])))
            except MissingDataError as error:
                notes.append(f"{variant['name']}: {error}")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FormatError(f"this is not a study: {type(error).__name__} {error}") from error
    if not results:
        raise MissingDataError(
            "no variant was measured on one rank and on all", hint=notes[0] if notes else "run the sweep again"
        )
    results.sort(key=lambda o: (o.messages_count, o.message_bytes, o.name))
    fits, said = _fits(results)
    return LayersStudy(settings, tuple(results), fits, (*notes, *said))


def _result(variant: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], ranks: int) -> VariantResult:
    """Evaluate the runs of a variant; raise MissingDataError if none of one rank, or of all, worked."""
    singles = {r["repeat"]: r for r in runs if r["name"] == variant["network_name"] and r["ranks"] == 1}
    several = {r["repeat"]: r for r in runs if r["name"] == variant["name"] and r["ranks"] == ranks}
    t1, tn = ([_step_ns(runs_of.get(k)) for k in sorted({*singles, *several})] for runs_of in (singles, several))
    for times, made, what in ((t1, singles, "one rank"), (tn, several, f"{ranks} ranks")):
        if not np.isfinite(times).any():
            why = next((r["failed"] for r in made.values() if r.get("failed")), "not run yet")
            raise MissingDataError(f"no run of {what}: {why}")
    stall = stalls({1: t1, 2: tn})["interconnect"]
    good = [r for r in several.values() if not r.get("failed")]
    return VariantResult(
        name=variant["name"],
        tensors_count=int(variant["tensors_count"]),
        messages_count=round(_median(good, "messages_count")),
        message_bytes=round(_median(good, "message_bytes")),
        t1=step_time(t1),
        tn=step_time(tn),
        stall=stall.lost_ns,
        share=stall.clean,
        exposed_ns=_median(good, "exposed_ns"),
        predicted_ns=_median(good, "predicted_ns"),
        late_ns=_median(good, "late_ns"),
    )


def _step_ns(run: Mapping[str, Any] | None) -> float:
    step_ns = float(run["step_ns"]) if run is not None and not run.get("failed") else float("nan")
    return step_ns if step_ns > 0 else float("nan")


def _median(runs: Sequence[Mapping[str, Any]], name: str) -> float:
    values = [float(run[name]) for run in runs if run.get(name) is not None]
    return float(np.median(values)) if values else float("nan")


def _fits(results: Sequence[VariantResult]) -> tuple[tuple[LinearFit, ...], list[str]]:
    """Fits of all models, the one to predict with first, and what is doubtful about them."""
    columns = {
        "messages": [float(o.messages_count) for o in results],
        "bytes": [float(o.message_bytes) for o in results],
    }
    target = [o.stall.value for o in results]
    fits, notes = [], []
    for names in MODELS:
        try:
            fits.append(fit_linear(_chosen(names, **columns), target))
        except MissingDataError as error:
            if len(names) == 2 or not fits:
                notes.append(f"{error}; {error.hint}" if error.hint else str(error))
    correlation = likeness(columns["messages"], columns["bytes"])
    both = next((fit for fit in fits if len(fit.names) == 2), None)
    if both is not None and correlation > _ALIKE:
        notes.append(
            f"messages and bytes grow almost in proportion ({correlation:.3f}): which of them costs what is a guess;"
            " another sweep into the same folder (width, bucket) separates them"
        )
    if both is not None and (both.coefficients < 0).any():
        usable = any((fit.coefficients >= 0).all() for fit in fits)
        notes.append(
            "a negative cost is noise; "
            + ("predictions use the better of the fits of one cost" if usable else "there is no other to predict with")
        )
    # The fit that foretells a variant best is the one to predict with.
    fits.sort(key=lambda fit: (bool((fit.coefficients < 0).any()), _left_out_size(fit)))
    return tuple(fits), notes


def _left_out_size(fit: LinearFit) -> float:
    off = fit.left_out - fit.target
    return float(np.sqrt(np.nanmean(off**2))) if np.isfinite(off).any() else float("inf")


def _chosen(names: Sequence[str], **columns: Any) -> dict[str, Any]:
    return {name: columns[name] for name in names}


def variant_row(variant: Variant) -> dict[str, Any]:
    """The entry of a variant in a study file."""
    net = variant.network
    return {
        "name": variant.name,
        "network_name": net.name,
        "bucket_bytes": variant.bucket_bytes,
        "tensors_count": net.tensors_count,
        "bytes": net.gradient_bytes,
    }


def resized(net: Network, factor: float) -> Network:
    """Give the network another width; even, so that heads divide it.

    Examples
    --------
    >>> from stashtrace.lab.sweep.shapes import network
    >>> resized(network("resnet", 18), 1.5).width
    24
    """
    unit = 32 if net.family == "transformer" else 2
    return replace(net, width=max(round(net.width * factor / unit), 1) * unit)
