"""Code inside the job: Python's half of the recorder. Needs the standard library and ``libstashtrace.so`` alone."""
