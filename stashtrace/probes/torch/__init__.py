"""Probes of torch: steps, batches, collectives, synthetic data."""
