"""Python functions that threads were in, where stacks were sampled."""

# SPDX-License-Identifier: Apache-2.0
