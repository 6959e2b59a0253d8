"""``python -m stashtrace`` is the ``stashtrace`` command."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
