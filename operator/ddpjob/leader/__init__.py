"""Elects the one of several operators that works."""
