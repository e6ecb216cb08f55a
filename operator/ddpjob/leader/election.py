"""Who leads, as one candidate sees it: pure, told what was read, what was stored, and the time.

The time is the candidate's own monotonic clock; times of different machines are never compared. A
holder leads for `deadline` seconds from before it asked for its last renewal. Another one takes
over when it has seen the same record for `lease` seconds, of which the first was after that renewal
was stored: the difference of the two is for what is still on its way.
"""

from dataclasses import dataclass

from ddpjob.json_depth import Body

LONGEST_LEASE = 60.0  # s


@dataclass(frozen=True)
class Terms:
    """Seconds; the numbers are client-go's."""

    lease: float = 15.0
    """After so long without a renewal the Lease is anybody's."""
    deadline: float = 10.0
    """A holder that could not renew for so long no longer leads."""
    retry: float = 2.0
    """Between two renewals, and between two looks of a candidate that waits."""


class Election:
    """One candidate's part in it."""

    def __init__(self, identity: str, terms: Terms | None = None) -> None:
        """`identity` must be new with every process: it tells this one from its own past."""
        self.identity, self.terms = identity, terms or Terms()
        self.lease: Body | None = None
        """The Lease as last seen; None if there was none."""
        self._term: Body = {}
        """The spec last seen: a Lease that somebody deletes still has a holder, who leads."""
        self._unchanged_since = 0.0
        self._leads_until: float | None = None
        """None: never led, or has stepped down."""
        self._retired = False

    @property
    def holder(self) -> str:
        """Identity of who holds the Lease, or held it when it was deleted; empty if nobody does."""
        return str(self._term.get("holderIdentity") or "")

    def saw(self, lease: Body | None, now: float) -> None:
        """This is the Lease as just read, None if there is none."""
        # Not its resourceVersion: somebody who edits a label does not renew.
        if _spec(lease) != _spec(self.lease):
            self._unchanged_since = now
        self.lease = lease
        if lease is not None:
            self._term = _spec(lease)

    def bid(self, now: float, stamp: str) -> Body | None:
        """The spec to write, under the version that was seen; None while another holds the Lease.

        `stamp` is the time of day, which is written for people and read by nobody here.
        """
        old = self._term
        theirs = self.holder not in ("", self.identity) and now < self._expires_at(old)
        if theirs or self._retired:
            return None
        spec = {
            **old,
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(self.terms.lease),
            "renewTime": stamp,
        }
        if self.holder != self.identity:
            spec["acquireTime"] = stamp
            spec["leaseTransitions"] = (old.get("leaseTransitions") or 0) + 1
        return spec

    def _expires_at(self, spec: Body) -> float:
        # The holder's own promise: it may be of a version with other numbers. Not for ever: what
        # somebody else wrote there must not keep everybody away.
        promised = spec.get("leaseDurationSeconds") or self.terms.lease
        return self._unchanged_since + min(promised, LONGEST_LEASE)

    def won(self, lease: Body, asked_at: float) -> None:
        """What was bid is stored, as `lease`; the request for it began at `asked_at`."""
        self.saw(lease, asked_at)
        self._leads_until = asked_at + self.terms.deadline

    def leads(self, now: float) -> bool:
        """Whether this candidate may act."""
        mine = self.holder in ("", self.identity)
        return self._leads_until is not None and now < self._leads_until and mine

    def lost(self, now: float) -> bool:
        """Whether this candidate led and may not go on."""
        return self._leads_until is not None and not self.leads(now)

    def seconds_left(self, now: float) -> float | None:
        """Until this candidate has to stop, unless it renews; None if it has not led."""
        return None if self._leads_until is None else max(0.0, self._leads_until - now)

    def step_down(self) -> Body | None:
        """Never lead again. The spec that leaves the Lease to others, None if it is not ours.

        Nothing may be under way any more that only a leader does.
        """
        self._leads_until, self._retired = None, True
        if self.lease is None or self.holder != self.identity:
            return None
        gone = ("holderIdentity", "acquireTime", "renewTime")
        return {name: value for name, value in self._term.items() if name not in gone}


def _spec(lease: Body | None) -> Body:
    return (lease or {}).get("spec") or {}
