"""Text of a layers study: variants with their stalls, the fits, and each variant by the fit to the others."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from stashtrace.calibration.robust_line import LinearFit
from stashtrace.lab.sweep.fit_study import LayersStudy, VariantResult
from stashtrace.text import align, wrap
from stashtrace.units import bytes_text, duration_text, percent_text

_MEASURED = ("variant", "tensors", "messages", "bytes", "1 rank", "{} ranks", "stall", "95 % interval", "share")
_EXPLAINED = ("variant", "stall", "by the fit", "off", "fit without it", "off", "exposed", "by recurrence", "off")
_SCALES = {"messages": 1.0, "bytes": 1e6}


def study_lines(study: LayersStudy) -> list[str]:
    """Lines of text about a study."""
    ranks = study.settings["ranks"]
    rows: list[tuple[str, ...]] = [tuple(title.format(ranks) for title in _MEASURED)]
    rows += [_measured_cells(result) for result in study.results]
    repeats = sorted({result.stall.runs_count for result in study.results})
    made = "-".join(map(str, dict.fromkeys((repeats[0], repeats[-1]))))
    lines = [
        f"interconnect stall, step of {ranks} ranks minus step of one: {study.settings['backend']} on"
        f" {study.settings['device']}, {study.settings['batch_samples']} samples a rank,"
        f" {study.settings['iterations']} steps a run, {made} repetition{'' if made == '1' else 's'}",
        *align(rows, {0}),
        "",
        *_fit_lines(study),
        "",
        *_explained_lines(study),
    ]
    if study.notes:
        lines += ["", "missing, or doubtful:", *(line for note in study.notes for line in wrap(note))]
    return lines


def study_json(study: LayersStudy) -> dict[str, Any]:
    """Content of a study for JSON."""
    best = study.best
    return {
        "settings": dict(study.settings),
        "variants": [
            {
                "name": o.name,
                "tensors_count": o.tensors_count,
                "messages_count": o.messages_count,
                "message_bytes": o.message_bytes,
                "t1_ns": asdict(o.t1),
                "tn_ns": asdict(o.tn),
                "stall_ns": asdict(o.stall),
                "share_ratio": asdict(o.share),
                "exposed_ns": o.exposed_ns,
                "predicted_exposed_ns": o.predicted_ns,
                "late_ns": o.late_ns,
                "fitted_ns": float(best.fitted[at]) if best else math.nan,
                "left_out_ns": float(best.left_out[at]) if best else math.nan,
                "left_out_error_ratio": float(best.left_out_errors[at]) if best else math.nan,
            }
            for at, o in enumerate(study.results)
        ],
        "fits": [
            {
                "coefficients": {
                    name: {"ns": float(value), "error_ns": float(error)}
                    for name, value, error in zip(fit.names, fit.coefficients, fit.errors, strict=True)
                },
                "r2_ratio": fit.r2_ratio,
                "residual_ns": fit.residual,
                "typical_left_out_error_ratio": typical_error(fit),
            }
            for fit in study.fits
        ],
        "notes": list(study.notes),
    }


def prediction_lines(
    name: str, messages: int, sent: int, stall_ns: float, error_ns: float, study: LayersStudy
) -> list[str]:
    """Lines of text about the predicted stall of a variant that was not measured."""
    assert study.best is not None
    typical = typical_error(study.best)
    doubt = "" if math.isnan(typical) else f"; a variant that was left out was typically {percent_text(typical)} off"
    largest = max(o.message_bytes for o in study.results)
    beyond = f"; {sent / largest:.1f} times the bytes of the largest that was measured" if sent > largest > 0 else ""
    return wrap(
        f"{name}: {messages} messages of {bytes_text(sent)} in all: stall {duration_text(stall_ns)}"
        f" ±{duration_text(error_ns)} (standard error){doubt}{beyond}"
    )


def typical_error(fit: LinearFit) -> float:
    """Median absolute relative error of the predictions of variants that were left out of the fit."""
    known = fit.left_out_errors[np.isfinite(fit.left_out_errors)]
    return float(np.median(np.abs(known))) if len(known) else math.nan


def _measured_cells(result: VariantResult) -> tuple[str, ...]:
    stall = result.stall
    interval = f"{duration_text(stall.low)} to {duration_text(stall.high)}" if stall.known else "one run"
    return (
        result.name,
        str(result.tensors_count),
        str(result.messages_count),
        bytes_text(result.message_bytes),
        duration_text(result.t1.value),
        duration_text(result.tn.value),
        duration_text(result.stall.value),
        interval,
        percent_text(result.share.value),
    )


def _explained_lines(study: LayersStudy) -> list[str]:
    rows: list[tuple[str, ...]] = [_EXPLAINED]
    for at, result in enumerate(study.results):
        stall, fit = result.stall.value, study.best
        fitted = float(fit.fitted[at]) if fit is not None else math.nan
        left_out = float(fit.left_out[at]) if fit is not None else math.nan
        cells = [result.name, duration_text(stall), _time(fitted), _off(fitted, stall)]
        cells += [_time(left_out), _off(left_out, stall), _time(result.exposed_ns), _time(result.predicted_ns)]
        rows.append((*cells, _off(result.predicted_ns, result.exposed_ns)))
    name = " + ".join(study.best.names) if study.best is not None else "nothing"
    return [
        f"by the fit of {name}, and by that to all others; exposed communication as seen, and by the recurrence:",
        *align(rows, {0}),
    ]


def _fit_lines(study: LayersStudy) -> list[str]:
    if not study.fits:
        return ["no fit"]
    rows: list[tuple[str, ...]] = [("stall =", "a message costs", "a MB costs", "R2", "scatter", "left out, typical")]
    for fit in study.fits:
        costs = {}
        for name, value, error in zip(fit.names, fit.coefficients, fit.errors, strict=True):
            costs[name] = f"{duration_text(value * _SCALES[name])} ±{duration_text(error * _SCALES[name])}"
        r2 = "-" if math.isnan(fit.r2_ratio) else f"{fit.r2_ratio:.3f}"
        typical = typical_error(fit)
        cells = (costs.get("messages", "-"), costs.get("bytes", "-"), r2, duration_text(fit.residual))
        rows.append((" + ".join(fit.names), *cells, "-" if math.isnan(typical) else percent_text(typical)))
    return ["fits of the stall, with standard errors:", *align(rows, {0})]


def _time(value: float) -> str:
    return "-" if math.isnan(value) else duration_text(value)


def _off(value: float, measured: float) -> str:
    return f"{100 * (value / measured - 1):+.0f} %" if measured > 0 and not math.isnan(value) else "-"
