"""What runs inside the user's Python processes: standard library and ``stashtrace._native`` only."""
