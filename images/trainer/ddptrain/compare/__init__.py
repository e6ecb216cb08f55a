"""`python -m ddptrain.compare`: one process, DataParallel and DDP, in one table.

main.py      the command: what to run, how often, and the report
rank.py      what one process of a variant runs and measures
table.py     the variants, and the table of their measurements
machine.py   the hardware that the report names
"""
