"""The document of a report as one HTML file, or as Markdown."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.report.page.markdown import markdown
from stashtrace.report.page.page import page

__all__ = ["markdown", "page"]
