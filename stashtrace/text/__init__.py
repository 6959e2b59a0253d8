"""How texts and numbers are written for people, and kept safe for terminals."""
