"""The command line reference is what the parsers say."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest
from command_line import ROOT

from stashtrace import errors


@pytest.fixture
def generator() -> ModuleType:
    """``scripts/docs/generate_cli.py``."""
    spec = importlib.util.spec_from_file_location("generate_cli", ROOT / "scripts/docs/generate_cli.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_fresh(generator: ModuleType) -> None:
    for path, make in generator.FILES.items():
        assert path.read_text(encoding="utf-8") == make(), "run python scripts/docs/generate_cli.py"


def test_table_of_errors_names_each_with_its_code(generator: ModuleType) -> None:
    page = generator.exit_codes_page()
    assert "| `UsageError` | 2 | The command line or an argument makes no sense. |" in page
    assert page.count(generator.FIRST_LINE) == page.count(generator.LAST_LINE) == 1


def test_exit_codes_page_names_the_codes_of_all_errors() -> None:
    page = (ROOT / "docs/reference/exit-codes.md").read_text(encoding="utf-8")
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.StashtraceError)]
    assert {c.exit_code for c in classes} == {2, 3, 4}
    assert all(f"| {c.exit_code} |" in page for c in classes)
