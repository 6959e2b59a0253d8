"""What a run says of its DataLoaders: where they are made, and with which settings."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stashtrace.run_facts import json_object
from stashtrace.schema.trace import Trace

#: The same in ``probes/torch/loader_settings.py``.
FACT = "loader_settings"


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """A DataLoader of the script."""

    #: Where it is made.
    file: str
    line: int
    #: What was set in place of what the script gives, and what holds, by name.
    applied: Mapping[str, Any]
    now: Mapping[str, Any]


def loader_facts(trace: Trace) -> list[LoaderFacts]:
    """Return the loaders, alike ones of several ranks once; facts that cannot be read are ignored."""
    found: dict[str, LoaderFacts] = {}
    for key, value in zip(trace.metadata["key_code"].tolist(), trace.metadata["value_code"].tolist(), strict=True):
        text = trace.text(value)
        if text in found or not re.fullmatch(rf"{FACT} \d+", trace.text(key)):
            continue
        try:
            content = json_object(text.encode())
            found[text] = LoaderFacts(content["file"], content["line"], content["applied"], content["now"])
        except (ValueError, KeyError):
            continue
    return list(found.values())
