"""Real traces of others, where they lie next to the checkout; without them their tests are skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

CORPUS = Path(__file__).resolve().parents[3] / "shared/corpus"


def corpus(name: str) -> Path:
    """A file or folder of the corpus; skips the test where it is absent."""
    found = next((p for p in (CORPUS / name, CORPUS.parents[2] / "shared/corpus" / name) if p.exists()), None)
    if found is None:
        pytest.skip(f"the corpus of real traces is not next to the checkout ({name})")
    return found


def reference(name: str) -> Any:
    """What independent tools found in a file of the corpus."""
    return json.loads(corpus(f"reference/{name}").read_text(encoding="utf-8"))
