"""What followers on several hosts do together: share their ranks, and seal windows of all of them."""
