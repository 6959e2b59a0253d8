"""What followers on several hosts do together: tell each other of their ranks, and seal windows of all of them."""
