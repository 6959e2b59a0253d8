"""Starts every test from the same signals, however the runner itself was started."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import signal

# A runner in the background of a shell, or under nohup, inherits these as ignored and would hand that on to every
# job that a test starts. An ignored SIGINT also keeps Python from setting its own handler.
for _number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
