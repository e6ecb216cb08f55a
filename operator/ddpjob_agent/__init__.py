"""The agent: runs inside every pod, around the launcher. Standard library only, Python 3.8."""
