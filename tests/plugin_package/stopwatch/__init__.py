"""Stopwatch files: an example of what a package can add to stashtrace."""
