"""What each device did, and what was asked of it."""

# SPDX-License-Identifier: Apache-2.0
