"""How processes end: exceptions that nothing catches, and the exit codes and signals of children."""
