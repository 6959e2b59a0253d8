"""The rule for secrets in command lines, on the cases that the native half is held to as well."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import pytest

from stashtrace.scrubbing import scrub_arguments

CASES = json.loads((Path(__file__).parents[1] / "data/scrubbed_arguments.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("given", "expected"), CASES, ids=lambda words: " ".join(words))
def test_secrets_go_and_the_rest_stays(given: list[str], expected: list[str]) -> None:
    assert scrub_arguments(given) == expected
    assert scrub_arguments(expected) == expected, "a second time changes nothing"
