"""Chooses which files of a folder are a job's code, and packs them."""
