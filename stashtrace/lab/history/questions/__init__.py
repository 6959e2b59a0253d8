"""What a history is asked: one file a question, each with its table and its rule against findings of chance."""
