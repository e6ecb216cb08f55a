"""The job that `launch` has made."""

from ddpjob.client.job import Job


class Run(Job):
    """A job that `launch` has made, in a cluster or on this machine."""
