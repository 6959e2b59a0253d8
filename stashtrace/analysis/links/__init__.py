"""Speed of transfers, the paths that they took, and the certainty of both."""
