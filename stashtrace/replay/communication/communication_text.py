"""The text of ``stashtrace model RUN``: fits with their errors, residuals, exposed communication, other buckets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stashtrace.replay.communication.communication_model import BucketForecast, CommunicationModel, LinkFit
from stashtrace.replay.policy import POLICY
from stashtrace.text.prose import align, plural, wrap
from stashtrace.text.units import bytes_text, duration_text, percent_text


def model_lines(model: CommunicationModel) -> list[str]:
    """Return the lines of the command."""
    lines = [
        "time of a message = alpha + bytes * beta, fitted to the time that the link worked for it",
        *align([_FIT_HEAD, *(_fit_cells(link) for link in model.links)], range(2)),
    ]
    for link in model.links:
        if link.fit is not None:
            lines += ["", f"{link.op} of {link.communicator}, by size:", *_residual_lines(link)]
    lines += ["", *_exposed_lines(model)]
    if model.buckets:
        lines += ["", *_bucket_lines(model.buckets), *_best_lines(model)]
    if model.notes:
        lines += ["", "unknown or doubtful:", *(line for note in model.notes for line in wrap(note))]
    return lines


def model_json(model: CommunicationModel) -> dict[str, Any]:
    """Return the results for JSON."""
    passes = model.passes
    exposed: dict[str, Any] = {"passes_count": len(passes)}
    if len(passes):
        exposed |= {"messages_count": _middle(passes.messages_count), "bytes": _middle(passes.bytes)}
        exposed |= {"link_ns": _middle(passes.link_ns), "link_predicted_ns": _middle(passes.link_predicted_ns)}
        for name in ("observed", "predicted"):
            low, middle, high = np.percentile(getattr(passes, f"{name}_ns"), (25, 50, 75)).tolist()
            exposed |= {f"{name}_ns": middle, f"{name}_low_ns": low, f"{name}_high_ns": high}
        exposed |= {"replayed_ns": _middle(passes.replayed_ns), "by_sizes_ns": _middle(passes.by_sizes_ns)}
        exposed["error_ratio"] = error_ratio(model)
    return {
        "fits": [_fit_json(link) for link in model.links],
        "exposed": exposed,
        "buckets": [_bucket_json(bucket) for bucket in model.buckets],
        "best_bucket": None if model.best is None else _bucket_json(model.best),
        "step_ns": model.step_ns,
        "attributed_ns": model.attributed_ns,
        "late_ns": model.late_ns,
        "notes": list(model.notes),
    }


def error_ratio(model: CommunicationModel) -> float:
    """Return the error of the predicted exposed communication; NaN if nothing was exposed."""
    observed = _middle(model.passes.observed_ns)
    return _middle(model.passes.predicted_ns) / observed - 1 if observed > 0 else math.nan


def plus_minus(value: float, error: float) -> str:
    """Write a time with its standard error."""
    return f"{duration_text(value)} ±{duration_text(error)}"


_FIT_HEAD = ("communicator", "op", "ranks", "messages", "sizes", "alpha", "1/beta", "R2", "scatter")


def _fit_cells(link: LinkFit) -> tuple[str, ...]:
    head = (link.communicator, link.op, str(link.ranks_count), str(link.messages_count))
    sizes = str(len(link.points.sizes_bytes))
    if link.fit is None:
        return (*head, sizes, "-", "-", "-", "-")
    piece = link.fit.pieces[0]
    rate = "-"
    if piece.beta_ns_per_byte > 0:
        rate = f"{bytes_text(piece.bandwidth_bytes_per_s)}/s ±{bytes_text(piece.bandwidth_error_bytes_per_s)}/s"
    r2 = "-" if math.isnan(link.r2_ratio) else f"{link.r2_ratio:.2f}"
    return (
        *head,
        sizes,
        plus_minus(piece.alpha_ns, piece.alpha_error_ns),
        rate,
        r2,
        percent_text(piece.residual_ratio),
    )


def _fit_json(link: LinkFit) -> dict[str, Any]:
    out: dict[str, Any] = {
        "communicator": link.communicator,
        "op": link.op,
        "backend": link.backend,
        "ranks_count": link.ranks_count,
        "messages_count": link.messages_count,
    }
    piece = link.fit.pieces[0] if link.fit is not None else None
    for name in ("alpha_ns", "alpha_error_ns", "beta_ns_per_byte", "beta_error_ns_per_byte", "residual_ratio"):
        out[name] = getattr(piece, name) if piece is not None else None
    out["r2_ratio"] = link.r2_ratio
    points = link.points
    expected: list[float | None] = [None] * len(points.sizes_bytes)
    if link.fit is not None:
        expected = link.fit.expected(points.sizes_bytes)[0].tolist()
    out["sizes"] = [
        {
            "message_bytes": size,
            "messages_count": count,
            "median_ns": middle,
            "low_ns": low,
            "high_ns": high,
            "expected_ns": model,
            "residual_ratio": None if model is None else middle / model - 1,
        }
        for size, count, middle, low, high, model in zip(
            points.sizes_bytes,
            points.repetitions_count,
            points.median_ns,
            points.low_ns,
            points.high_ns,
            expected,
            strict=True,
        )
    ]
    return out


def _bucket_json(bucket: BucketForecast) -> dict[str, Any]:
    count, exposed = bucket.messages_count, bucket.exposed_ns
    return {"bucket": _bucket_name(bucket), "messages_count": count, "exposed_ns": exposed, "split": bucket.split}


def _residual_lines(link: LinkFit) -> list[str]:
    rows: list[tuple[str, ...]] = [("size", "messages", "median", "middle half", "fit", "off")]
    sizes = _fit_json(link)["sizes"]
    shown = sizes
    if len(sizes) > POLICY.shown_sizes_count:
        chosen = np.unique(np.linspace(0, len(sizes) - 1, POLICY.shown_sizes_count).round().astype(int))
        shown = [sizes[i] for i in chosen.tolist()]
    for row in shown:
        half = f"{duration_text(row['low_ns'])} to {duration_text(row['high_ns'])}"
        size, count = bytes_text(row["message_bytes"]), str(row["messages_count"])
        median, model, off = (row[name] for name in ("median_ns", "expected_ns", "residual_ratio"))
        rows.append((size, count, duration_text(median), half, duration_text(model), f"{100 * off:+.0f} %"))
    lines = align(rows)
    if len(sizes) > len(shown):
        rest = len(sizes) - len(shown)
        lines.append(f"  {rest} more size{plural(rest)} in --format json")
    return lines


def _exposed_lines(model: CommunicationModel) -> list[str]:
    passes = model.passes
    if not len(passes):
        return ["exposed communication: unknown"]
    observed_ns, error = _middle(passes.observed_ns), error_ratio(model)
    measured, fitted = duration_text(_middle(passes.link_ns)), duration_text(_middle(passes.link_predicted_ns))

    def row(name: str, link: str, exposed_ns: Any, off: float | None) -> tuple[str, ...]:
        middle = duration_text(_middle(exposed_ns))
        return name, link, middle, _half(exposed_ns), "" if off is None else _percent(off)

    def off(exposed_ns: Any, unknown: float) -> float:
        return _middle(exposed_ns) / observed_ns - 1 if observed_ns > 0 else unknown

    rows: list[tuple[str, ...]] = [
        ("", "link worked", "exposed", "middle half", "off"),
        row("as seen", measured, passes.observed_ns, None),
        row("recurrence, times as seen", measured, passes.replayed_ns, off(passes.replayed_ns, 0.0)),
        row("recurrence, times of the fit", fitted, passes.predicted_ns, error),
    ]
    if np.isfinite(passes.by_sizes_ns).all():
        even = passes.by_sizes_ns
        rows.append(row("the same, ready times by sizes", fitted, even, off(even, math.nan)))
    count, size = _middle(passes.messages_count), _middle(passes.bytes)
    lines = [
        f"exposed communication of a backward pass, {count:g} message{plural(count)} of {bytes_text(size)}"
        f" in all, medians of {len(passes)} pass{'' if len(passes) == 1 else 'es'}:",
        *align(rows, range(1)),
    ]
    if not math.isnan(model.step_ns):
        lines += wrap(
            f"by the attribution a step of {duration_text(model.step_ns)} has {duration_text(model.attributed_ns)} in"
            f" transfers and {duration_text(model.late_ns)} waiting for late ranks (medians over ranks and steps)"
        )
    if not math.isnan(error) and abs(error) > POLICY.good_error_ratio:
        below = ": forecasts below are no better than that" if model.buckets else ""
        lines += wrap(f"the prediction is {_percent(error)} off{below}")
    return lines


def _bucket_lines(buckets: tuple[BucketForecast, ...]) -> list[str]:
    rows: list[tuple[str, ...]] = [("bucket_cap_mb", "messages", "exposed")]
    rows += [
        (_bucket_name(b) + (" *" if b.split else ""), f"{b.messages_count:g}", duration_text(b.exposed_ns))
        for b in buckets
    ]
    lines = ["other buckets, by the fit and the times at which gradients were ready:", *align(rows, range(1))]
    if any(b.split for b in buckets):
        lines.append("  * messages had to be divided, assuming that gradients come at an even rate")
    return lines


def _best_lines(model: CommunicationModel) -> list[str]:
    """Recommend a size for DistributedDataParallel."""
    best = model.best
    if best is None:
        return ["  no bucket_cap_mb is predicted to expose less than the buckets of the run"]
    how = f"{best.messages_count:g} messages, {duration_text(best.exposed_ns)} exposed" + (" *" if best.split else "")
    return [
        f"  predicted best: bucket_cap_mb={best.bucket_mib:g} ({how})",
        f"  `stashtrace whatif RUN --set bucket_mb={best.bucket_mib:g}` predicts its effect on a step",
    ]


def _bucket_name(bucket: BucketForecast) -> str:
    fixed = {0.0: "as recorded", -1.0: "one message", -2.0: "best merge"}
    return fixed.get(bucket.bucket_mib) or f"{bucket.bucket_mib:g}"


def _middle(values: Any) -> float:
    return float(np.median(values)) if len(values) else math.nan


def _half(values: Any) -> str:
    low, high = np.percentile(values, (25, 75)).tolist()
    return f"{duration_text(low)} to {duration_text(high)}"


def _percent(ratio: float) -> str:
    return "-" if math.isnan(ratio) else f"{100 * ratio:+.1f} %"
