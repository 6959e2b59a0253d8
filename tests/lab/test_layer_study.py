"""A study made of numbers: a law that is known is found, what is missing is said, predictions come with their error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stashtrace.errors import FormatError, MissingDataError
from stashtrace.lab.sweep.fit_study import (
    ALL_BYTES,
    Variant,
    prediction_text,
    resized,
    study_blocks,
    study_json,
    study_of,
    typical_error,
    variant_row,
)
from stashtrace.lab.sweep.shapes import network
from stashtrace.report.blocks import text_lines

MS = 1e6
#: What a message and a byte cost in the made-up studies, ns.
MESSAGE, BYTE = 0.3 * MS, 4.0


def run(name: str, ranks: int, repeat: int, step_ns: float, **more: Any) -> dict[str, Any]:
    return {"name": name, "ranks": ranks, "repeat": repeat, "step_ns": step_ns, "failed": "", **more}


def study(variants: list[Variant], *, repeats: int = 3, noise: float = 0.0, ranks: int = 2) -> dict[str, Any]:
    """A step of one rank takes 20 ms, of all the same and what the law says."""
    random = np.random.default_rng(7)
    runs = []
    for variant in variants:
        net = variant.network
        count = net.tensors_count if variant.bucket_bytes == 1 else max(net.gradient_bytes // variant.bucket_bytes, 1)
        stall = count * MESSAGE + net.gradient_bytes * BYTE
        sent = {"messages_count": count, "message_bytes": net.gradient_bytes}
        for repeat in range(repeats):
            runs.append(run(net.name, 1, repeat, 20 * MS + noise * random.normal()))
            runs.append(run(variant.name, ranks, repeat, 20 * MS + stall + noise * random.normal(), **sent))
    settings = {"ranks": ranks, "device": "cpu", "backend": "gloo", "iterations": 25, "batch_samples": 8}
    return {"format": 1, "settings": settings, "variants": [variant_row(v) for v in variants], "runs": runs}


def resnets(*depths: int) -> list[Variant]:
    return [Variant(network("resnet", depth)) for depth in depths]


def test_a_known_law_is_found_and_foretells_what_was_left_out() -> None:
    found = study_of(study(resnets(10, 12, 16, 18, 34, 50)))
    best = found.best
    assert best.names == ("messages", "bytes")
    assert best.coefficients == pytest.approx([MESSAGE, BYTE])
    assert typical_error(best) == pytest.approx(0.0, abs=1e-9)
    large = network("resnet", 101)
    stall, error = found.predict(large.tensors_count, large.gradient_bytes)
    assert stall == pytest.approx(large.tensors_count * MESSAGE + large.gradient_bytes * BYTE)
    assert error == pytest.approx(0.0, abs=1.0)
    assert [o.name for o in found.results][:2] == ["resnet10", "resnet12"]
    first = found.results[0]
    assert first.t1.value == 20 * MS
    assert first.stall.value == pytest.approx(38 * MESSAGE + first.message_bytes * BYTE)
    assert first.share.value == pytest.approx(first.stall.value / first.tn.value)


def test_noise_is_in_the_standard_errors() -> None:
    found = study_of(study(resnets(10, 12, 16, 18, 34, 50), noise=0.5 * MS))
    both = next(fit for fit in found.fits if len(fit.names) == 2)
    assert (np.abs(both.coefficients - [MESSAGE, BYTE]) < 4 * both.errors).all()
    assert (both.errors > 0).all()
    assert all(o.stall.low < o.stall.value < o.stall.high for o in found.results)


def test_buckets_share_the_runs_of_one_rank() -> None:
    net = network("vgg", 11)
    sizes = (1, net.gradient_bytes // 8, net.gradient_bytes // 2, ALL_BYTES)
    variants = [Variant(net, size) for size in sizes]
    content = study(variants)
    content["runs"] = [r for at, r in enumerate(content["runs"]) if r["ranks"] != 1 or at < 6]
    found = study_of(content)
    assert [o.messages_count for o in found.results] == [1, 2, 8, 30]
    assert found.best.coefficients == pytest.approx([MESSAGE, BYTE])
    assert [v.name for v in variants] == ["vgg11", "vgg11-b909K", "vgg11-b3637K", "vgg11-one"]


def test_variants_that_grow_in_proportion_are_reported() -> None:
    net = network("resnet", 18)
    notes = study_of(study([Variant(net), Variant(resized(net, 1.01)), Variant(resized(net, 0.99))])).notes
    assert any("grow" in note and "separated" in note for note in notes)


def test_a_cost_below_zero_is_not_predicted_with() -> None:
    content = study(resnets(10, 12, 16, 18, 34, 50))
    for entry in content["runs"]:
        if entry["ranks"] == 2:  # bytes make it faster: nonsense that noise can bring
            entry["step_ns"] = 20 * MS + entry["messages_count"] * MS - entry["message_bytes"] * 2
    found = study_of(content)
    assert (found.best.coefficients >= 0).all()
    assert any("negative cost is noise" in note for note in found.notes)


def test_what_failed_or_is_missing_is_said_and_the_rest_is_used() -> None:
    content = study(resnets(10, 12, 16, 18, 34))
    for entry in content["runs"]:
        if entry["name"] == "resnet12" and entry["ranks"] == 2:
            entry |= {"failed": "exit code 1, rank 0: out of memory", "step_ns": None}
    content["runs"] = [r for r in content["runs"] if r["name"] != "resnet16"]
    found = study_of(content)
    assert [o.name for o in found.results] == ["resnet10", "resnet18", "resnet34"]
    assert "resnet12: no run of 2 ranks: exit code 1, rank 0: out of memory" in found.notes
    assert "resnet16: no run of one rank: not run yet" in found.notes


def test_one_failed_repetition_leaves_the_others() -> None:
    content = study(resnets(10, 12, 18))
    content["runs"][0] |= {"failed": "killed", "step_ns": None}
    assert study_of(content).results[0].t1.runs_count == 2


def test_too_few_variants_carry_no_fit_but_are_shown() -> None:
    found = study_of(study(resnets(10)))
    assert found.fits == ()
    assert any("cannot carry a fit" in note for note in found.notes)
    with pytest.raises(MissingDataError, match="no fit to predict with"):
        found.predict(10, 10)
    assert "no fit" in text_lines(study_blocks(found))


def test_no_study() -> None:
    with pytest.raises(FormatError, match="not a study"):
        study_of({"format": 1, "variants": [{}]})
    empty = study(resnets(10))
    with pytest.raises(MissingDataError, match="no variant was measured"):
        study_of({**empty, "runs": []})


def test_words_and_json() -> None:
    found = study_of(study(resnets(10, 12, 18, 34), noise=0.2 * MS))
    text = "\n".join(text_lines(study_blocks(found)))
    for part in ("interconnect stall, step of 2 ranks minus step of one", "resnet34", "a message costs", "without it"):
        assert part in text
    assert max(len(line) for line in text.splitlines()) < 130
    whole = study_json(found)
    assert [v["name"] for v in whole["variants"]] == ["resnet10", "resnet12", "resnet18", "resnet34"]
    assert {"ns", "error_ns"} == set(whole["fits"][0]["coefficients"]["messages"])
    said = prediction_text("resnet50", 161, 12_000_000, 80 * MS, 5 * MS, found)
    assert "161 messages of 12.0 MB" in said
    assert "±5.00 ms" in said
    assert "times the bytes of the largest" in said


@pytest.mark.parametrize("name", ["ranks", "device", "backend", "iterations", "batch_samples"])
def test_settings_that_are_missing_are_named(name: str) -> None:
    content = study(resnets(10, 12, 18))
    del content["settings"][name]
    with pytest.raises(FormatError, match="not a study") as caught:
        study_of(content)
    assert name in str(caught.value)


def test_a_step_of_no_length_was_not_measured() -> None:
    content = study(resnets(10, 12, 18))
    for entry in content["runs"]:
        if entry["name"] == "resnet10":
            entry["step_ns"] = 0.0
    found = study_of(content)
    assert [o.name for o in found.results] == ["resnet12", "resnet18"]


def test_stalls_below_nothing_predict_nothing() -> None:
    """Two ranks that seem faster than one: noise, of which no fit makes a cost."""
    content = study(resnets(10, 12, 16, 18))
    for entry in content["runs"]:
        if entry["ranks"] == 2:
            entry["step_ns"] = 20 * MS - entry["messages_count"] * 1e4
    found = study_of(content)
    assert found.fits
    with pytest.raises(MissingDataError, match="its stalls are noise"):
        found.predict(100, 10**7)
    assert any("no other to predict with" in note or "below" in note for note in found.notes)


def test_a_prediction_next_to_variants_of_no_bytes() -> None:
    content = study(resnets(10, 12, 18))
    for entry in content["runs"]:
        if entry["ranks"] == 2:
            entry["message_bytes"] = 0
    found = study_of(content)
    stall, error = found.predict(10, 10)
    assert "times the bytes" not in prediction_text("x", 10, 10, stall, error, found)
