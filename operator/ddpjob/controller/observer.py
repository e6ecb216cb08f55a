"""What the controller tells of its work, for who counts it."""

from ddpjob.api import DDPJob, Status


class Observer:
    """Is told of the controller's work, and keeps nothing of it."""

    def wrote(self, job: DDPJob, new: Status, now: float) -> None:
        """Take in that `new` has been stored instead of the status of `job`; `now` is Unix time."""

    def forget(self, uid: str) -> None:
        """Take in that the job with this uid is gone."""

    def reconciled(self, result: str, seconds: float) -> None:
        """Take in a decision about a job: `done`, `refused` by the API server, or `error`."""
