"""Calls of torch that take time on the host and are no phase of a step: compilations, object collectives, samplers."""
