"""kinds.py repeats the CODES of records.def exactly."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections import defaultdict

import pytest

from stashtrace import _native
from stashtrace.schema import kinds

DECLARED: dict[str, dict[str, int]] = defaultdict(dict)
for code in _native.schema()["codes"]:
    DECLARED[code["enumeration"]][code["name"].upper()] = code["value"]


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_same_codes(name: str) -> None:
    ours = {member.name: member.value for member in getattr(kinds, name)}
    assert ours == DECLARED[name]
