"""What changed between two jobs, of one run or several each, and how sure that is."""
