"""`python -m ddpjob` is `ddpjob`."""

from ddpjob.cli import main

main()
