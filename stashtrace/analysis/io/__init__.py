"""Files that were read and written, the pattern of access, and advice."""
