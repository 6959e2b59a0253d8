"""Lines of the user's code: in which of them each kind of time was spent, and on which rank it takes longer."""
