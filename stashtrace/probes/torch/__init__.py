"""Probes of torch: steps, batches, collectives, synthetic data."""

# SPDX-License-Identifier: Apache-2.0
