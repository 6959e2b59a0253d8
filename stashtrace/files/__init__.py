"""Read and write files that others may have made or may read at once: whole, bounded, checked."""
