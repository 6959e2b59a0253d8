"""Late ranks: which rank was late, why, and which ranks waited for it."""
