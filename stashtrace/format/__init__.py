"""Read and write ``.stash`` files as arrays."""
