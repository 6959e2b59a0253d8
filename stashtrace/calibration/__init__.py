"""What the links of a machine can do: the file, and the fits behind it."""
