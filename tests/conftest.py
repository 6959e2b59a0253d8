"""Starts every test from the same signals and the same examples, however the runner itself was started."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import signal

from hypothesis import settings

# The same code gives the same verdict: properties are tried on examples that do not change from run to run, however
# slow the machine. `pytest --hypothesis-profile explore` looks for new ones.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", derandomize=False, deadline=None, database=None, max_examples=1000)
settings.load_profile("fixed")

# A runner in the background of a shell, or under nohup, inherits these as ignored and would hand that on to every
# job that a test starts. An ignored SIGINT also keeps Python from setting its own handler.
for _number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
