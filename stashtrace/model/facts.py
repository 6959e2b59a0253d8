"""Keys of ``metadata`` that importers write and analyses read."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

#: Of a process: nothing of its host was recorded, so an idle device says nothing of its launches.
HOST_NOT_RECORDED = "host_not_recorded"
#: Name of the one step of a recording in which nothing marks a step.
WHOLE_RECORDING = "whole recording"
