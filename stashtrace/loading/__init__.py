"""Load paths as a Trace: identify the process of each file, align all clocks, record what is missing."""
