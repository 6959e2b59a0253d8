"""Copy files to a faster disk, and measure what that brings."""

# SPDX-License-Identifier: Apache-2.0
