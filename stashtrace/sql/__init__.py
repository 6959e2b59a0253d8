"""SQL over the tables and analyses of one or several runs, by DuckDB."""
