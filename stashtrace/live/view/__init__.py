"""What ``stashtrace live`` shows: where it comes from, all hosts together, and its text."""
