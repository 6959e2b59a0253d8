"""Codes that this version does not know: a file of a newer one is shown, by the number."""

from __future__ import annotations

import numpy as np
import pytest

from stashtrace.schema.kinds import DeviceClock, IoOp


def test_an_unknown_code_has_its_number_for_a_name() -> None:
    assert IoOp(999).name == "UNKNOWN_999"
    assert DeviceClock(np.int64(-3)).name == "UNKNOWN_-3"
    assert IoOp(999) == 999


def test_the_known_ones_stay_what_they_are() -> None:
    before = list(IoOp)
    assert IoOp(999) not in before
    assert list(IoOp) == before
    assert IoOp(int(IoOp.READ)) is IoOp.READ


def test_what_is_no_number_is_no_code() -> None:
    with pytest.raises(ValueError, match="not a valid IoOp"):
        IoOp("read")
