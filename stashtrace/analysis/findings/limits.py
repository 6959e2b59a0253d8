"""What a recording lacks: claims for an answer that stands without the summary around it."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.analysis.findings.claims import killed_claims, one_recording
from stashtrace.analysis.findings.losses import loss_claims
from stashtrace.analysis.findings.rows import Claim
from stashtrace.analysis.findings.trust import ending_claims, left_out_claims
from stashtrace.model.trace import Trace


def limit_claims(trace: Trace) -> list[Claim]:
    """Collect what was lost or left out, and how the job ended if not well; none of a whole recording.

    The claims are those of the summary. They cost a look at the tables of losses, processes and phases, no analysis.
    """
    losses = loss_claims(trace)
    whole = [Claim("headline", "steps", name="recording", items_count=1)] if one_recording(trace) else []
    return [
        *(claim for claim in losses if claim.section == "headline"),
        *whole,
        *left_out_claims(trace),
        *killed_claims(trace),
        *ending_claims(trace)[:1],
        *(claim for claim in losses if claim.section == "loss"),
    ]
