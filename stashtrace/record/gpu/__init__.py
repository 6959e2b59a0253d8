"""GPUs of this machine: programs that ask the vendor's libraries, each in a process of its own, and their answers."""
