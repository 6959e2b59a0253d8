"""Train networks of many shapes, and fit what their gradients cost."""

# SPDX-License-Identifier: Apache-2.0
