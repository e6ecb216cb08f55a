"""Measured claims: `python -m benchmarks` (or `make bench`) writes docs/benchmarks.md anew.

Every trial gets a control plane of its own (tests/cluster), so none inherits what another has left
in etcd. Trials of the two sides alternate, and their ratio is taken pair by pair.
"""
