"""Keys of ``metadata`` that importers write and analyses read."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

#: Of a process: nothing of its host was recorded, so an idle device says nothing of its launches.
HOST_NOT_RECORDED = "host_not_recorded"
#: Of a process: its pipeline stage, and its number among those that hold the same stage.
PIPELINE_STAGE, DATA_PARALLEL_RANK = "pipeline_stage", "data_parallel_rank"
#: Name of the one step of a recording in which nothing marks a step.
WHOLE_RECORDING = "whole recording"
