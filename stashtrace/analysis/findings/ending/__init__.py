"""How a job ended: what it failed of, where it stood still, and what its ranks did last."""
