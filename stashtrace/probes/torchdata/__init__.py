"""Probes of torchdata's loader, which stands beside torch's own."""

# SPDX-License-Identifier: Apache-2.0
