"""What a summary claims of real traces, each claim against plain arithmetic on the raw files; none may be false.

The jobs of the same bench are run by benchmarks/bench_sentences.py, the judge's tests are in benchmarks/tests.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT.parent / "shared" / "corpus"
sys.path.append(str(ROOT / "benchmarks"))  # behind tests/, whose ground_truth is another
from sentences import check, traces  # noqa: E402

TRACES = traces.of(CORPUS)
#: Of formats of which the gate has smaller traces.
SLOW = ("df_index_rank1_of_2", "diff_control_rank3_of_8")
pytestmark = pytest.mark.skipif(not TRACES, reason="the folder of real traces is not next to the checkout")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.thorough] * (case.name in SLOW), id=str(case.name)) for case in TRACES],
)
def test_no_claim_about_a_real_trace_is_false(case: traces.Foreign) -> None:
    needs = {"darshan": "darshan", "straggler": "pyarrow"}.get(case.name.partition("_")[0])
    if needs:
        pytest.importorskip(needs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of the files are not whole: that is what the losses say
        recorded = traces.read(case)
    checked = check.check(recorded.findings, recorded.evidence, recorded.truth, case.expected)
    assert checked, "nothing was claimed"
    assert [str(c) for c in checked if c.result == check.FALSE] == []
    assert check.first_verdict(recorded.findings, recorded.truth) == ""
