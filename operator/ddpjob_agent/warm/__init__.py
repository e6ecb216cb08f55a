"""torchrun and its ranks, forked from a process that has imported torch."""
