"""The `run` fixture: a command line in an empty directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Answer, stashtrace


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Answer]:
    """``run(*words)`` in an empty directory."""

    def call(*words: object, **options: object) -> Answer:
        options.setdefault("cwd", tmp_path)
        return stashtrace(*words, **options)  # type: ignore[arg-type]

    return call
