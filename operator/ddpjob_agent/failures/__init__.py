"""What stands still, what has failed, and why."""
