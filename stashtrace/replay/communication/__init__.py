"""Messages of a backward pass, their cost, and the cost of other buckets."""
