"""Old name of ``schema.kinds``; warns, and goes with the next version."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
import warnings

from stashtrace.schema import kinds as kinds

warnings.warn(
    "stashtrace.model.kinds is stashtrace.schema.kinds now",
    DeprecationWarning,
    stacklevel=2,
)
sys.modules["stashtrace.model.kinds"] = kinds
