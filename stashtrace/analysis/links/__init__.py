"""How fast transfers were, which way they went, and how sure that is."""

# SPDX-License-Identifier: Apache-2.0
