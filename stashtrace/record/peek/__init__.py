"""A peek at living processes from outside: states, system calls, Python stacks, and whether anything still moves."""
