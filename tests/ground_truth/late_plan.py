"""When the job of late_job.py has its faults, for the job and for its test, which does without the import of torch."""

from __future__ import annotations

STEPS, FAULT_EVERY, FAULTY = 34, 4, 1


def faulty_step(step: int) -> bool:
    return step >= 6 and step % FAULT_EVERY == 1
