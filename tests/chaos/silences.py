"""What the auditor checks of nodes that nobody hears."""

from collections import defaultdict
from collections.abc import Callable, Iterable

from ddpjob import names
from ddpjob.json_depth import Body
from ddpjob.times import unix_seconds
from tests.chaos.network import banned_to, node_of
from tests.chaos.rounds import Deed, charged_of, place_of, placed

SILENT = "NodeSilent"
AVOID_SECONDS = 60.0  # a job keeps off a silent node for so long
NODE_DEEDS = ("stops", "goes-on", "unheard", "heard")
_Place = tuple[int, int, int]  # attempt, rank, since


class Silences:
    """Takes in deeds and changes, and tells `breach` what is wrong: (promise, words)."""

    def __init__(self, breach: Callable[[str, str], None]) -> None:
        self._breach = breach
        self._alive: defaultdict[str, dict[_Place, int]] = defaultdict(dict)
        """The rounds of nodes with ranks that may take a step, by uid of the job."""
        self._newest: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        """The latest attempt and round that have begun, by uid of the job."""
        self._stopped: set[tuple[str, _Place]] = set()
        self._unheard: set[tuple[str, int, int]] = set()

    def see(self, deed: Deed) -> None:
        """Take in what has been done."""
        here, node = (deed.attempt, deed.rank, deed.since), (deed.uid, deed.attempt, deed.rank)
        alive = self._alive[deed.uid]
        if deed.what in ("ends", "fails", "clean"):
            alive.pop(here, None)
            self._stopped.discard((deed.uid, here))
        elif deed.what == "stops":
            self._stopped.add((deed.uid, here))
        elif deed.what == "unheard":
            self._unheard.add(node)
        elif deed.what == "heard":
            self._unheard.discard(node)
        if deed.what != "goes-on":
            self._check(deed.uid)  # what goes on may end first
        if deed.what == "begins":
            alive[here] = deed.round
            self._newest[deed.uid] = max((deed.attempt, deed.round), self._newest[deed.uid])
            self._check(deed.uid)
        elif deed.what == "goes-on":
            self._stopped.discard((deed.uid, here))

    def at_rest(self) -> None:
        """Nothing is done any more."""
        for uid in self._alive:
            self._check(uid)

    def may_end(self, uid: str, attempt: int) -> bool:
        """Whether a node of this attempt may count as silent."""
        return any(node[:2] == (uid, attempt) for node in self._unheard)

    def write(self, old: Body, new: Body, pods: Iterable[Body]) -> None:
        """Take in a status write; `pods` are the job's."""
        attempt, _ = place_of(old)
        known = {each["name"] for each in old.get("silentNodes") or []}
        added = {each["name"] for each in new.get("silentNodes") or []} - known
        found = new.get("failure") or {}
        is_news = found.get("reason") == SILENT and found != (old.get("failure") or {})
        blamed = {found.get("pod")} if is_news and found.get("attempt") == attempt else set()
        for pod in pods:
            labels, name = pod["metadata"]["labels"], pod["metadata"]["name"]
            its, rank, _ = placed(pod, old)
            node = (labels[names.JOB_UID_LABEL], attempt, rank)
            ours = its == attempt and rank >= 0 and _runs(pod)
            if ours and (node_of(pod) in added or name in blamed) and node not in self._unheard:
                self._breach("S2", f"{name} counts as silent, and could be heard")
        if is_news and charged_of(new) > charged_of(old):
            self._breach("S3", f"the silence of {found.get('node')} is charged")

    def created(self, pod: Body, status: Body) -> None:
        """Take in that the operator has made a pod of a job with this status."""
        silent = _silent_nodes(status, pod["metadata"]["creationTimestamp"])
        if missing := silent - banned_to(pod):
            words = f"{pod['metadata']['name']} does not keep off {', '.join(sorted(missing))}"
            self._breach("S4", words)

    def deleted(self, pod: Body, sent: Body, status: Body) -> None:
        """Take in that the operator has deleted a pod of a job with this status."""
        forced = sent.get("gracePeriodSeconds") == 0
        is_silent = node_of(pod) in {each["name"] for each in status.get("silentNodes") or []}
        if forced and _runs(pod) and not is_silent and not _is_lost(pod):
            self._breach("S5", f"{pod['metadata']['name']} is deleted by force")

    def _check(self, uid: str) -> None:
        """No two attempts, or rounds, have ranks that may take a step."""
        moving = {p: n for p, n in self._alive[uid].items() if (uid, p) not in self._stopped}
        newest = self._newest[uid]
        if older := sorted(p for p, number in moving.items() if (p[0], number) < newest):
            self._breach("S1", f"ranks {older} live beside those of {newest}")


def _silent_nodes(status: Body, now: str) -> set[str]:
    """The nodes that a job keeps off."""
    at = unix_seconds(now)
    assert at is not None
    return {
        each["name"]
        for each in status.get("silentNodes") or []
        if at - (unix_seconds(each["time"]) or 0.0) < AVOID_SECONDS - 1  # whole seconds
    }


def _runs(pod: Body) -> bool:
    return bool((pod.get("status") or {}).get("phase") == "Running")


def _is_lost(pod: Body) -> bool:
    """Whether Kubernetes says that the pod's node is lost."""
    conditions = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or []}
    taint = conditions.get("DisruptionTarget", {}).get("reason") == "DeletionByTaintManager"
    return bool(taint or conditions.get("Ready", {}).get("status") == "False")
