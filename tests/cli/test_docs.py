"""The command line reference is what the parsers say."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib.util

from command_line import ROOT

from stashtrace import errors


def test_cli_page_is_fresh() -> None:
    spec = importlib.util.spec_from_file_location("generate_cli", ROOT / "docs/generate_cli.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run python docs/generate_cli.py"


def test_exit_codes_page_names_the_codes_of_all_errors() -> None:
    page = (ROOT / "docs/reference/exit-codes.md").read_text(encoding="utf-8")
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.StashtraceError)]
    assert {c.exit_code for c in classes} == {2, 3, 4}
    assert all(f"| {c.exit_code} |" in page for c in classes)
