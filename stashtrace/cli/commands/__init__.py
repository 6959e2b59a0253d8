"""The commands: one file per command, with its ``parser()`` and its ``main(argv)``."""
