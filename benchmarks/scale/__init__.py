"""Promises of scale, each on a real API server: `python -m benchmarks.scale`, or `make bench`.

The operator is a process of its own, nodes and agents are played. Each scenario is a module with
what it promises; `result` makes the page's section of all.
"""
