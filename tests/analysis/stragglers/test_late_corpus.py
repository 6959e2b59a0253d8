"""late on real recordings of many GPUs, as far as these can tell."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
from corpus import corpus

import stashtrace
from stashtrace.analysis.registry import analyze


def test_dlrm_on_eight_gpus_names_rank_7_and_admits_what_lies_before_the_step() -> None:
    trace = stashtrace.load(str(corpus("kineto/dlrm8_v100")))
    found = analyze(trace, "late").sort_by("sequence")
    assert len(found) == 8
    assert np.count_nonzero(found["late_rank"] == 7) == 5
    times = analyze(trace, "collectives")
    for sequence, wait, skew in zip(
        *(found[n].tolist() for n in ("sequence", "wait_ns", "launch_skew_ns")), strict=True
    ):
        assert wait + skew == times["wait_ns"][times["sequence"] == sequence].max()
    # Its step began late and the recording begins with it; afterwards its device waited for its host.
    assert found["cause_kind"][0] == "before"
    assert set(found["cause_kind"][1:].tolist()) == {"launch"}
    explained = found["cause_ns"][1:] / found["late_by_ns"][1:]
    assert (explained > 0.75).all()
    assert (explained < 1.25).all()
    recurring = analyze(trace, "late_ranks")
    assert (recurring["rank"][0], recurring["last_count"][0], recurring["verdict"][0]) == (7, 5, "once")
