"""Shares the event loop's time among the namespaces whose agents answer."""

import time
from collections.abc import Callable

# So much of the time goes into agents' answers, before their namespaces wait.
PART = 1 / 3
# Seconds that may be spent in advance.
SLACK = 0.2
# Namespaces that wait no more are forgotten so often.
PRUNE_SECONDS = 1.0


class Shares:
    """What agents' answers have cost, of all jobs together and of each namespace.

    Nobody waits as long as all together take no more than their part. Beyond it each namespace has
    an equal share, so one whose answers are few or cheap does not wait for the others.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._clock = clock
        self._paid = 0.0  # when all that was spent will have been made up for
        self._turns: dict[str, float] = {}  # the same of each namespace beyond the part
        self._pruned = 0.0

    def take(self, namespace: str, seconds: float) -> float:
        """Charge a namespace so many seconds of the loop; return those until it is its turn."""
        now = self._clock()
        is_beyond = self._paid - now > SLACK
        self._paid = max(self._paid, now) + seconds / PART
        if now - self._pruned >= PRUNE_SECONDS:
            self._turns = {name: turn for name, turn in self._turns.items() if turn > now}
            self._pruned = now
        if not is_beyond:
            return 0.0
        turn = max(self._turns.get(namespace, now), now)
        self._turns[namespace] = turn  # one more to share with
        self._turns[namespace] += seconds * len(self._turns) / PART
        return turn - now
