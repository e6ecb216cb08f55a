"""Which of several operators works."""
