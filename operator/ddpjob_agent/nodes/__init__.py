"""What the agents of a group tell each other."""
