"""Where each nanosecond of a step went: layers of causes, painted by priority."""

# SPDX-License-Identifier: Apache-2.0
