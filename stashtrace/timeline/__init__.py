"""Convert a Trace into a timeline for the Perfetto UI, and serve it. Binds to the loopback interface alone."""
