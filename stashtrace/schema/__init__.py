"""What a record, a table, a column and a kind is, and how rows are grouped."""
