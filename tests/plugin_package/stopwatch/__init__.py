"""Stopwatch files: an example of what a package can add to stashtrace."""

# SPDX-License-Identifier: Apache-2.0
