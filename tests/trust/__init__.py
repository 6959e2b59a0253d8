"""What must not happen to a job: kills, damaged files, programs, scenes."""

# SPDX-License-Identifier: Apache-2.0
