"""Decides who leads, as one candidate sees it. Pure: Leases and the time are arguments.

The time is the candidate's own monotonic clock; times of different machines are never compared. A
holder leads for `deadline` seconds from before it asked for its last renewal. Another one takes
over when it has seen the same record for `lease` seconds, of which the first was after that renewal
was stored: the difference of the two is for what is still on its way.
"""

from dataclasses import dataclass

from ddpjob.json_depth import Body

# The longest time in seconds for which a Lease of another version is respected.
LONGEST_LEASE = 60.0


@dataclass(frozen=True)
class Terms:
    """The times of an election in seconds. The numbers are client-go's."""

    lease: float = 15.0
    """A Lease that was not renewed for so long has expired."""
    deadline: float = 10.0
    """A holder that could not renew for so long no longer leads."""
    retry: float = 2.0
    """The time between two renewals, and between two reads of a candidate that waits."""


class Election:
    """One candidate's part in it."""

    def __init__(self, identity: str, terms: Terms | None = None) -> None:
        """`identity` must be new with every process, even in the same pod."""
        self.identity, self.terms = identity, terms or Terms()
        self.lease: Body | None = None
        """The Lease as last seen; None if there was none."""
        self._term: Body = {}
        """The spec last seen: a Lease that somebody deletes still has a holder, who leads."""
        self._unchanged_since = 0.0
        self._leads_until: float | None = None
        """None: never led, or has stepped down."""
        self._outlives = False
        """The last bid was for the Lease of a holder that had let it expire."""
        self._retired = False

    @property
    def holder(self) -> str:
        """Return the identity of the holder of the Lease, even if it was deleted; empty if none."""
        return str(self._term.get("holderIdentity") or "")

    def saw(self, lease: Body | None, now: float) -> None:
        """Take in the Lease as it was just read; None if there is none."""
        # Not its resourceVersion: somebody who edits a label does not renew.
        if _spec(lease) != _spec(self.lease):
            self._unchanged_since = now
        self.lease = lease
        if lease is not None:
            self._term = _spec(lease)

    def bid(self, now: float, timestamp: str) -> Body | None:
        """Return the spec to write under the version that was read; None if another one leads.

        `timestamp` is the time of day. It is written for people, and no candidate reads it.
        """
        old = self._term
        theirs = self.holder not in ("", self.identity) and now < self._expires_at(old)
        if theirs or self._retired:
            return None
        if self.holder != self.identity:
            self._outlives = bool(self.holder)
        spec = {
            **old,
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(self.terms.lease),
            "renewTime": timestamp,
        }
        if self.holder != self.identity:
            spec["acquireTime"] = timestamp
            spec["leaseTransitions"] = (old.get("leaseTransitions") or 0) + 1
        return spec

    def _expires_at(self, spec: Body) -> float:
        # The holder's own promise: it may be of a version with other numbers. Not for ever: what
        # somebody else wrote there must not keep everybody away.
        promised = spec.get("leaseDurationSeconds") or self.terms.lease
        return self._unchanged_since + min(promised, LONGEST_LEASE)

    def won(self, lease: Body, asked_at: float) -> None:
        """Take in that the bid is stored as `lease`; its request began at `asked_at`."""
        self.saw(lease, asked_at)
        self._leads_until = asked_at + self.terms.deadline

    def leads(self, now: float) -> bool:
        """Return whether this candidate may act."""
        mine = self.holder in ("", self.identity)
        return self._leads_until is not None and now < self._leads_until and mine

    @property
    def seconds_alone(self) -> float:
        """Return for how long nobody had led when this candidate's bid was stored, at least."""
        return self.terms.lease - self.terms.deadline if self._outlives else 0.0

    def lost(self, now: float) -> bool:
        """Return whether this candidate led and no longer leads."""
        return self._leads_until is not None and not self.leads(now)

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds until this candidate must stop or renew; None if it has not led."""
        return None if self._leads_until is None else max(0.0, self._leads_until - now)

    def step_down(self) -> Body | None:
        """Never lead again, and return the spec that frees the Lease; None if another holds it.

        The caller must have stopped everything that only a leader does.
        """
        self._leads_until, self._retired = None, True
        if self.lease is None or self.holder != self.identity:
            return None
        gone = ("holderIdentity", "acquireTime", "renewTime")
        return {name: value for name, value in self._term.items() if name not in gone}


def _spec(lease: Body | None) -> Body:
    return (lease or {}).get("spec") or {}
