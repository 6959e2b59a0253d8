"""The layers study: step times of many networks on one rank and on all, and how the stall grows with the bytes sent.

    stall of a variant = step of all ranks - step of one rank       the interconnect stall of a characterization
    stall of all variants = messages * a + bytes * b                each is also predicted by a fit to the others

The file that holds the runs is made by ``lab.sweep.layers_study``. Below the fits: the study as text, JSON and picture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from stashtrace.calibration.robust_line import LinearFit, fit_linear, likeness
from stashtrace.errors import FormatError, MissingDataError
from stashtrace.lab.characterize.run_figures import stalls, step_time
from stashtrace.lab.number_intervals import Estimate
from stashtrace.lab.plot_helpers import Name, check_plot_file, draw_link, place_names, save_figure, scale_links
from stashtrace.lab.sweep.shapes import Network
from stashtrace.replay.communication.communication_model import CommunicationModel, LinkFit
from stashtrace.report.blocks import Block, Listing, Paragraph, Table
from stashtrace.summary.picture_style import COLOURS, FAINT, bytes_axis, duration_axis, new_figure, plain_axes
from stashtrace.text.units import bytes_text, duration_text, percent_text

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


_MEASURED = ("variant", "tensors", "messages", "bytes", "1 rank", "{} ranks", "stall", "95 % interval", "share")
_EXPLAINED = ("variant", "stall", "by the fit", "off", "fit without it", "off", "exposed", "by recurrence", "off")
_SCALES = {"messages": 1.0, "bytes": 1e6}


def study_blocks(study: LayersStudy) -> list[Block | None]:
    """Return a study to show."""
    ranks = study.settings["ranks"]
    repeats = sorted({result.stall.runs_count for result in study.results})
    made = "-".join(map(str, dict.fromkeys((repeats[0], repeats[-1]))))
    caption = (
        f"interconnect stall, step of {ranks} ranks minus step of one: {study.settings['backend']} on"
        f" {study.settings['device']}, {study.settings['batch_samples']} samples a rank,"
        f" {study.settings['iterations']} steps a run, {made} repetition{'' if made == '1' else 's'}"
    )
    return [
        Table(caption, [title.format(ranks) for title in _MEASURED], list(map(_measured_cells, study.results)), (0,)),
        _fits_block(study),
        _explained(study),
        Listing(study.notes, "missing, or doubtful"),
    ]


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


def prediction_text(name: str, messages: int, sent: int, stall_ns: float, error_ns: float, study: LayersStudy) -> str:
    """Return a sentence about the predicted stall of a variant that was not measured."""
    assert study.best is not None
    typical = typical_error(study.best)
    doubt = "" if math.isnan(typical) else f"; a variant that was left out was typically {percent_text(typical)} off"
    largest = max(o.message_bytes for o in study.results)
    beyond = f"; {sent / largest:.1f} times the bytes of the largest that was measured" if sent > largest > 0 else ""
    return (
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


def _explained(study: LayersStudy) -> Table:
    rows: list[tuple[str, ...]] = []
    for at, result in enumerate(study.results):
        stall, fit = result.stall.value, study.best
        fitted = float(fit.fitted[at]) if fit is not None else math.nan
        left_out = float(fit.left_out[at]) if fit is not None else math.nan
        cells = [result.name, duration_text(stall), _time(fitted), _off(fitted, stall)]
        cells += [_time(left_out), _off(left_out, stall), _time(result.exposed_ns), _time(result.predicted_ns)]
        rows.append((*cells, _off(result.predicted_ns, result.exposed_ns)))
    name = " + ".join(study.best.names) if study.best is not None else "nothing"
    caption = f"by the fit of {name}, and by that to all others; exposed communication as seen, and by the recurrence:"
    return Table(caption, _EXPLAINED, rows, (0,))


def _fits_block(study: LayersStudy) -> Block:
    if not study.fits:
        return Paragraph("no fit")
    head = ("stall =", "a message costs", "a MB costs", "R2", "scatter", "left out, typical")
    rows: list[tuple[str, ...]] = []
    for fit in study.fits:
        costs = {}
        for name, value, error in zip(fit.names, fit.coefficients, fit.errors, strict=True):
            costs[name] = f"{duration_text(value * _SCALES[name])} ±{duration_text(error * _SCALES[name])}"
        r2 = "-" if math.isnan(fit.r2_ratio) else f"{fit.r2_ratio:.3f}"
        typical = typical_error(fit)
        cells = (costs.get("messages", "-"), costs.get("bytes", "-"), r2, duration_text(fit.residual))
        rows.append((" + ".join(fit.names), *cells, "-" if math.isnan(typical) else percent_text(typical)))
    return Table("fits of the stall, with standard errors:", head, rows, (0,))


def _time(value: float) -> str:
    return "-" if math.isnan(value) else duration_text(value)


def _off(value: float, measured: float) -> str:
    return f"{100 * (value / measured - 1):+.0f} %" if measured > 0 and not math.isnan(value) else "-"


_BYTES_AXIS = "gradient bytes of a step"


def plot_model(model: CommunicationModel, path: str) -> None:
    """Draw the fits of a run and what it left exposed; the suffix chooses the format."""
    figure, axes = _figure(path, 2)
    links = [link for link in model.links if link.fit is not None]
    _draw_links(axes[0][0], axes[1][0], links)
    _draw_passes(axes[0][1], axes[1][1], model)
    figure.align_ylabels()
    save_figure(figure, path)


def plot_study(study: LayersStudy, path: str) -> None:
    """Draw the stalls of a study against messages and bytes; the suffix chooses the format."""
    messages = np.array([o.messages_count for o in study.results], dtype=np.float64)
    sent = np.array([o.message_bytes for o in study.results], dtype=np.float64)
    # A bucket sweep has one number of bytes, a width sweep one of messages: nothing to draw against.
    columns = [(x, title) for x, title in ((messages, "messages of a step"), (sent, _BYTES_AXIS)) if np.ptp(x) > 0]
    figure, axes = _figure(path, max(len(columns), 1))
    from matplotlib.ticker import MaxNLocator

    for column, (x, title) in enumerate(columns or [(messages, "messages of a step")]):
        _draw_study(axes[0][column], axes[1][column], study, x)
        axes[1][column].set_xlabel(title)
        if title == _BYTES_AXIS:
            bytes_axis(axes[1][column].xaxis)
        else:
            axes[1][column].xaxis.set_major_locator(MaxNLocator(integer=True, steps=(1, 2, 5, 10)))
    axes[0][0].set_ylabel("interconnect stall of a step")
    axes[1][0].set_ylabel("off the fit")
    axes[0][0].legend(frameon=False, fontsize=8, loc="upper left")
    figure.align_ylabels()
    title = f"{study.settings['ranks']} ranks, {study.settings['backend']} on {study.settings['device']}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, color=FAINT)
    for column, (x, _) in enumerate(columns or [(messages, "")]):
        _name_variants(figure, axes[0][column], study, x)
    save_figure(figure, path)


def _figure(path: str, columns: int) -> tuple[Any, Any]:
    check_plot_file(path)
    figure = new_figure(6.6 * columns, 6.6)
    axes = figure.subplots(2, columns, squeeze=False, sharex="col", height_ratios=(2.5, 1))
    for one in axes.flat:
        plain_axes(one)
    return figure, axes


def _draw_links(above: Any, below: Any, links: list[LinkFit]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    for number, link in enumerate(links):
        assert link.fit is not None
        piece = link.fit.pieces[0]
        rate = f"bytes / {bytes_text(piece.bandwidth_bytes_per_s)}/s" if piece.beta_ns_per_byte > 0 else "0"
        label = f"{link.op} of {link.communicator}: {duration_text(piece.alpha_ns)} + {rate}"
        draw_link(above, below, number, link.points, link.fit, label)
    scale_links(above, below, "link time of a message", "message size")
    low, high = above.get_ylim()
    above.set_ylim(low, high * (high / low) ** (0.07 * max(len(links), 1)))  # room for the legend
    above.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    above.yaxis.set_minor_formatter(NullFormatter())


def _draw_passes(above: Any, below: Any, model: CommunicationModel) -> None:
    from matplotlib.ticker import MaxNLocator

    passes = model.passes
    if not len(passes):
        above.text(0.5, 0.5, "no backward pass", transform=above.transAxes, ha="center", color=FAINT)
        return
    # Passes of several groups, or of several micro-batches, follow one another.
    order = np.lexsort((passes.rank, passes.step))
    x = np.arange(len(passes)) if len(np.unique(passes.step)) < len(passes) else passes.step[order]
    seen, made = passes.observed_ns[order], passes.predicted_ns[order]
    above.plot(x, seen, "o", ms=4, color=COLOURS[0], label=f"as seen, median {duration_text(np.median(seen))}")
    label = f"recurrence and fit, median {duration_text(np.median(made))}"
    above.plot(x, made, "s", ms=4, mfc="none", color=COLOURS[1], label=label)
    above.set_ylim(0, 1.25 * max(float(seen.max()), float(made.max()), 1.0))
    above.set_ylabel("exposed communication of a backward pass")
    above.legend(fontsize=8, frameon=False, loc="upper left")
    below.vlines(x, 0, made - seen, color=COLOURS[1], lw=0.8)
    below.plot(x, made - seen, "s", ms=3.5, color=COLOURS[1])
    below.axhline(0, color=FAINT, lw=0.8)
    below.set_ylabel("predicted - seen")
    below.set_xlabel("step" if len(np.unique(passes.step)) == len(passes) else "backward pass")
    below.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    for axes in (above, below):
        duration_axis(axes.yaxis)


def _name_variants(figure: Any, axes: Any, study: LayersStudy, x: Any) -> None:
    """Names next to the measured points, off the intervals and the fit."""
    lines: list[tuple[Any, Any]] = [
        ([at, at], [o.stall.low, o.stall.high]) for at, o in zip(x, study.results, strict=True)
    ]
    names = [Name(float(at), o.stall.value, o.name) for at, o in zip(x, study.results, strict=True)]
    names.sort(key=lambda name: -name.y)  # of two points at one place the upper one takes the upper place
    if study.best is not None:
        order = np.argsort(x, kind="stable")
        lines.append((x[order], study.best.fitted[order]))
    place_names(figure, axes, names, lines)


def _draw_study(above: Any, below: Any, study: LayersStudy, x: Any) -> None:
    stall = np.array([o.stall.value for o in study.results])
    low, high = (np.array([getattr(o.stall, side) for o in study.results]) for side in ("low", "high"))
    bars = np.nan_to_num(np.maximum(np.stack((stall - low, high - stall)), 0))
    # With few repetitions an interval may be wider than the picture.
    reach = max(float(np.nanmax(high, initial=0.0)), float(stall.max()), 1.0)
    top = 1.15 * min(reach, 2 * max(float(stall.max()), 1.0))
    above.errorbar(x, stall, yerr=bars, fmt="o", ms=5, lw=0.8, color=COLOURS[0], label="measured, 95 % interval")
    fit = study.best
    if fit is not None:
        order = np.argsort(x, kind="stable")
        name = " + ".join(fit.names)
        label = f"fit of {name}, R2 {fit.r2_ratio:.3f}"
        above.plot(x[order], fit.fitted[order], "x-", ms=6, lw=1.0, color=COLOURS[1], label=label)
        above.plot(x, fit.left_out, "o", ms=8, mfc="none", color=COLOURS[2], label="predicted without the variant")
        below.vlines(x, 0, stall - fit.fitted, color=COLOURS[1], lw=0.8)
        below.plot(x, stall - fit.fitted, "x", ms=6, color=COLOURS[1])
        below.plot(x, stall - fit.left_out, "o", ms=7, mfc="none", color=COLOURS[2])
    below.axhline(0, color=FAINT, lw=0.8)
    above.set_ylim(min(0.0, 1.2 * float(stall.min())), top)
    for axes in (above, below):
        duration_axis(axes.yaxis)
