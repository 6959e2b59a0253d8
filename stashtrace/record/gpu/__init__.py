"""GPUs of this machine: programs that ask the vendor's libraries, each in a separate process, and their answers."""
