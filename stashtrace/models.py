"""Old name of ``calibration.file``; warns, and goes with the next version."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
import warnings

from stashtrace.calibration import file as calibration

warnings.warn(
    "stashtrace.models.calibration is stashtrace.calibration.file now",
    DeprecationWarning,
    stacklevel=2,
)
sys.modules["stashtrace.models.calibration"] = calibration
