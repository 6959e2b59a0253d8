"""The work of each device, and the calls that requested it."""

# SPDX-License-Identifier: Apache-2.0
