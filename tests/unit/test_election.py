"""The election as a state machine: what each candidate knows, on a clock of its own."""

import copy
import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from ddpjob.controller.election import Election, Terms

TERMS = Terms(lease=15, deadline=10, retry=2)
NOON, LONG_AGO, FAR_OFF = (f"{year}-01-01T12:00:00.000000Z" for year in (2026, 1970, 2999))


def held(by: str, renewed: str = NOON, **fields: Any) -> dict[str, Any]:
    spec = {"holderIdentity": by, "leaseDurationSeconds": 15, "renewTime": renewed, **fields}
    return {"metadata": {"resourceVersion": "1"}, "spec": spec}


def wins(election: Election, asked_at: float = 0.0) -> Election:
    spec = election.bid(asked_at, NOON)
    assert spec is not None
    election.won({"metadata": {}, "spec": spec}, asked_at)
    return election


@pytest.mark.parametrize("lease", [None, {"metadata": {}}, {"metadata": {}, "spec": {}}, held("")])
def test_what_nobody_holds_is_taken_at_once(lease: dict[str, Any] | None) -> None:
    election = Election("a", TERMS)
    election.saw(lease, 100.0)
    spec = election.bid(100.0, NOON)
    assert spec is not None
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("a", 15)
    assert spec["acquireTime"] == spec["renewTime"] == NOON and spec["leaseTransitions"] == 1


def test_nobody_leads_before_the_bid_is_stored() -> None:
    election = Election("a", TERMS)
    election.saw(None, 100.0)
    election.bid(100.0, NOON)
    assert not election.leads(100.0) and not election.lost(100.0)
    election.saw(held("a"), 101.0)  # the answer was lost, and the Lease says that it was stored
    assert not election.leads(101.0) and election.bid(101.0, NOON) is not None


def test_the_deadline_counts_from_before_the_request_and_not_from_its_answer() -> None:
    election = wins(Election("a", TERMS), asked_at=100.0)
    assert election.leads(109.9) and not election.lost(109.9)
    assert not election.leads(110.0) and election.lost(110.0)


def test_a_renewal_prolongs_and_is_no_new_term() -> None:
    election = wins(Election("a", TERMS), asked_at=100.0)
    spec = election.bid(105.0, FAR_OFF)
    assert spec is not None
    assert (spec["acquireTime"], spec["renewTime"], spec["leaseTransitions"]) == (NOON, FAR_OFF, 1)
    election.won({"metadata": {}, "spec": spec}, 105.0)
    assert election.leads(114.9) and election.lost(115.0)


@pytest.mark.parametrize("time_of_day", [LONG_AGO, NOON, FAR_OFF])
def test_a_lease_expires_when_it_has_not_changed_here_whatever_time_it_names(
    time_of_day: str,
) -> None:
    election = Election("b", TERMS)
    for now in (100.0, 107.0, 114.9):
        election.saw(held("a", time_of_day), now)
        assert election.bid(now, NOON) is None
    election.saw(held("a", time_of_day), 115.0)
    spec = election.bid(115.0, NOON)
    assert spec is not None and spec["holderIdentity"] == "b"


def test_who_edits_a_label_does_not_renew() -> None:
    election = Election("b", TERMS)
    for number in range(16):
        lease = held("a")
        lease["metadata"] = {"resourceVersion": str(number), "labels": {"edit": str(number)}}
        election.saw(lease, 100.0 + number)
    assert election.bid(115.0, NOON) is not None


def test_a_deleted_lease_is_its_holder_s_until_it_would_have_expired() -> None:
    waiting = Election("b", TERMS)
    waiting.saw(held("a", leaseTransitions=3), 100.0)
    for now in (101.0, 110.0, 115.9):
        waiting.saw(None, now)
        assert waiting.bid(now, NOON) is None
    spec = waiting.bid(116.0, NOON)
    assert spec is not None and (spec["holderIdentity"], spec["leaseTransitions"]) == ("b", 4)
    holder = wins(Election("a", TERMS), asked_at=100.0)
    holder.saw(None, 102.0)
    assert holder.leads(102.0)
    assert (holder.bid(102.0, NOON) or {})["holderIdentity"] == "a"


def test_no_lease_promises_for_ever() -> None:
    election = Election("b", TERMS)
    election.saw(held("a stranger", leaseDurationSeconds=10**6), 100.0)
    assert election.bid(159.9, NOON) is None and election.bid(160.0, NOON) is not None


def test_who_sees_another_as_holder_has_lost() -> None:
    election = wins(Election("a", TERMS), asked_at=100.0)
    election.saw(held("b"), 102.0)
    assert not election.leads(102.0) and election.lost(102.0)
    assert election.bid(102.0, NOON) is None


def test_stepping_down_frees_the_lease_at_once_and_for_good() -> None:
    election = wins(Election("a", TERMS), asked_at=100.0)
    spec = election.step_down()
    assert spec == {"leaseDurationSeconds": 15, "leaseTransitions": 1}
    assert not election.leads(100.1) and not election.lost(1000.0)
    election.saw({"metadata": {}, "spec": spec}, 101.0)
    assert election.bid(101.0, NOON) is None
    other = Election("b", TERMS)
    other.saw({"metadata": {}, "spec": spec}, 0.0)
    bid = other.bid(0.0, NOON)
    assert bid is not None and bid["leaseTransitions"] == 2


def test_stepping_down_leaves_the_other_s_lease_alone() -> None:
    election = Election("b", TERMS)
    election.saw(held("a"), 100.0)
    assert election.step_down() is None


@dataclass
class World:
    """Candidates with clocks of their own before one Lease; requests are slow, and some get lost.

    Now and then one stalls for longer than any lease, wherever it is.
    """

    seed: int
    now: float = 0.0
    lease: dict[str, Any] | None = None
    version: int = 0
    leaders: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.living: dict[str, tuple[Election, float]] = {}
        """By first name: the candidate, and by how much its clock is off."""

    def run(self, seconds: float) -> None:
        turns = [(0.0, name, self.life(name)) for name in "abc"]
        while turns[0][0] < seconds:
            self.now, name, life = heapq.heappop(turns)
            heapq.heappush(turns, (self.now + next(life), name, life))
            leading = [n for n, (e, off) in self.living.items() if e.leads(self.now + off)]
            assert len(leading) <= 1, f"seed {self.seed}: {leading} lead at {self.now}"
            if leading and leading != self.leaders[-1:]:
                self.leaders += leading

    def life(self, name: str) -> Iterator[float]:
        """One process after the other, each a candidate; yields how long it waits."""
        while True:
            off = self.chance.uniform(-1e6, 1e6)
            one = Election(f"{name}_{self.chance.random()}", TERMS)
            self.living[name] = (one, off)
            while not one.lost(self.now + off):
                yield from self.turn(one, off)
                yield TERMS.retry + self.pause()

    def turn(self, one: Election, off: float) -> Iterator[float]:
        """Read unless it leads, bid, write: each request is seen by the server in its middle."""
        if not one.leads(self.now + off):
            yield self.pause()
            found = copy.deepcopy(self.lease)
            yield self.pause()
            if self.chance.random() < 0.1:
                return
            one.saw(found, self.now + off)
        asked_at = self.now + off
        spec, seen = one.bid(asked_at, str(self.chance.random())), _version(one.lease)
        if spec is None:
            return
        yield self.pause()
        if stored := seen == _version(self.lease):
            self.version += 1
            self.lease = {"metadata": {"resourceVersion": self.version}, "spec": spec}
        found = copy.deepcopy(self.lease)
        yield self.pause()
        if self.chance.random() < 0.1:
            return
        if stored:
            assert found is not None
            one.won(found, asked_at)
        else:
            one.saw(found, self.now + off)

    def pause(self) -> float:
        stall = self.chance.random() < 0.01
        return self.chance.uniform(5.0, 40.0) if stall else self.chance.uniform(0.001, 1.0)


def _version(lease: dict[str, Any] | None) -> Any:
    return lease and lease["metadata"]["resourceVersion"]


def test_no_two_ever_lead_whatever_is_slow_lost_or_late() -> None:
    for seed in range(200):
        world = World(seed)
        world.run(1200.0)
        assert len(world.leaders) > 1, f"seed {seed}: nobody ever took over"
