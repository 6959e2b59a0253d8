"""Probes of torchdata's loader, which stands beside torch's own."""
