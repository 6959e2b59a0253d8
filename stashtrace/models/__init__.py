"""Models: numbers fitted to columns (what a link can do), and their files. No analysis, no device, no printing."""

# SPDX-License-Identifier: Apache-2.0
