"""Rules about stalls: where the time of a step went, one file for each kind of verdict."""

# SPDX-License-Identifier: Apache-2.0
