"""Write traces and analyses as files of other tools. The list is in ``registry.py``; nothing here prints."""
