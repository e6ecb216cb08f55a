"""The loop: events queue jobs, each is decided on, and decisions become requests."""
