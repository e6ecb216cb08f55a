"""What is measured together, under one title of the page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from benchmarks.recovery import local, peer
from tests.e2e import silence
from tests.e2e.project import SAVED
from tests.e2e.recovery import FAULTS, HANG_SECONDS, LARGER, Fault

# Seconds from the fault to a step of all ranks, beside what a hang has to wait.
MOST_IN_PLACE, MOST_NEW_PODS, MOST_NODE_LOST = 0.8, 8.0, 90.0
MOST_REPLACED = 3.0  # one pod; the other one stays
MOST_LOCAL = 0.5  # in place, without a cluster
MOST_OUT_OF_MEMORY = 15.0  # it takes the script most of them to use the memory up
MOST_SILENT, MOST_SILENT_0 = 20.0, 25.0  # another node; that of rank 0
# More, where the operators are killed in the same moment: the Lease is theirs for 15 s.
MOST_WITHOUT_OPERATOR = 20.0
MOST_SWAPPED = 1.0  # a spare gets the rank
MOST_SILENT_SWAPPED = silence.TIMEOUT + 1.0  # the same for that of a silent node
MOST_LEADER = 30.0  # a silent node with the operator on it, of two
MOST_GROWN = 1.5  # a save is over once nothing has changed for 0.3 s
MOST_SAVED, MOST_SAVED_LOCAL = 1.5, 1.0  # a file that `ddpjob dev` sends

KILLED = FAULTS[:1]


class Place(Enum):
    """What keeps the job."""

    CLUSTER = auto()
    LOCAL = auto()
    """`ddpjob run --local`"""
    PYTORCHJOB = auto()
    """Kubeflow's Training Operator on the same nodes,"""
    ELASTIC_PYTORCHJOB = auto()
    """and torchrun beside it, which starts ended processes again."""


PEERS = frozenset({Place.PYTORCHJOB, Place.ELASTIC_PYTORCHJOB})


@dataclass(frozen=True)
class Series:
    """Faults that befall one kind of job."""

    title: str
    faults: Sequence[Fault]
    place: Place = Place.CLUSTER
    strategy: str = "InPlace"
    without_operator: bool = False
    """The operator is killed in the moment of the fault."""
    of_nodes: bool = False
    """Nodes are lost: each under a job of its own, and the operator on a node of its own."""
    of_leader: bool = False
    """It is the node of the operator that leads, of two by the chart's defaults."""
    saves: int = 0
    """Bytes of a folder that `ddpjob dev` watches."""
    job: Mapping[str, Any] = field(default_factory=dict)
    """More of `steady_job`'s arguments."""
    words: str = ""
    """What the page says of it."""

    def is_in_place(self, fault: Fault) -> bool:
        """Whether no pod is to end."""
        return fault.in_place and self.strategy == "InPlace"

    def promised(self, fault: Fault) -> float:
        """Seconds within which all ranks are to train again, as the median; infinite for peers."""
        if self.place in PEERS:
            return math.inf
        keeps = self.job.keys() & {"spares", "elastic"}
        if fault is LARGER:
            return MOST_GROWN
        if fault is SAVED:
            return MOST_SAVED_LOCAL if self.place is Place.LOCAL else MOST_SAVED
        if self.of_leader:
            return MOST_LEADER
        if fault.reason == "NodeSilent" and keeps:
            return MOST_SILENT_SWAPPED
        if fault.reason == "NodeSilent":
            return MOST_SILENT if fault.rank else MOST_SILENT_0
        in_place = MOST_LOCAL if self.place is Place.LOCAL else MOST_IN_PLACE
        most = in_place if self.is_in_place(fault) else MOST_NEW_PODS
        if fault.replaced and self.strategy == "InPlace" and not self.without_operator:
            most = MOST_REPLACED
            most = MOST_SWAPPED if keeps else most
        most = {"OOMKilled": MOST_OUT_OF_MEMORY, "NodeLost": MOST_NODE_LOST}.get(fault.reason, most)
        most += HANG_SECONDS + 2 if fault.reason == "Hang" else 0
        return most + (MOST_WITHOUT_OPERATOR if self.without_operator else 0)


ELASTIC = {"minNodes": 1, "replaceSeconds": 0, "growSeconds": 5}
CLAIM = {"volume": {"persistentVolumeClaim": {"claimName": "disk"}}}
CUT_OFF = silence.FAULTS[:2]
CHECKPOINT_MB = 500
SERIES = {
    "in place": Series(
        "With the operator at work",
        FAULTS,
        words=f"""\
Promised are {MOST_REPLACED:g} s where one pod is replaced. The new one takes most of them: a
kubelet and containerd take 1.8 s to start it, and its import of torch 1.4 s or, where the disk is
slow, more. Of a preempted one the scheduler has 0.6 s before. A spare has it all behind it.""",
    ),
    "operator killed": Series(
        "With the operator killed in the same moment", FAULTS, without_operator=True
    ),
    "new pods": Series(
        "With new pods: restartStrategy Recreate",
        [fault for fault in FAULTS if fault.in_place or fault.replaced],
        strategy="Recreate",
    ),
    "spare": Series(
        "With a spare",
        [fault for fault in FAULTS if fault.reason in ("PodDeleted", "Evicted")],
        job={"spares": 1},
        words="`spares: 1`. Each fault waits until there is one again, and 5 s for its imports.",
    ),
    "elastic": Series(
        "With a smaller group",
        [fault for fault in FAULTS if fault.reason in ("PodDeleted", "Evicted")],
        job={"elastic": ELASTIC},
        words="`elastic`, which waits for no pod. Each fault waits until both nodes run again.",
    ),
    "larger": Series(
        "A smaller group gets larger",
        [LARGER],
        job={"elastic": ELASTIC, "checkpoint": CLAIM},
        words="From a save, of one file, which is over once nothing has changed for 0.3 s.",
    ),
    "two processes": Series(
        "Two pods of two processes, in place",
        KILLED,
        job={"nproc": 2},
        words="Four ranks share the two cores.",
    ),
    "two processes, new pods": Series(
        "Two pods of two processes, with new pods", KILLED, strategy="Recreate", job={"nproc": 2}
    ),
    "checkpoint": Series(
        f"With a checkpoint of {CHECKPOINT_MB} MB, in place",
        KILLED,
        job={"checkpoint_mb": CHECKPOINT_MB},
        words="Each rank loads one with `torch.load` before its first step, from the host's disk.",
    ),
    "checkpoint, new pods": Series(
        f"With a checkpoint of {CHECKPOINT_MB} MB, with new pods",
        KILLED,
        strategy="Recreate",
        job={"checkpoint_mb": CHECKPOINT_MB},
    ),
    "local": Series(
        "`ddpjob run --local`, in place",
        local.FAULTS,
        place=Place.LOCAL,
        words="The same script as two nodes of one process each, without a cluster.",
    ),
    "local, new processes": Series(
        "`ddpjob run --local` with restartStrategy Recreate",
        local.FAULTS,
        place=Place.LOCAL,
        strategy="Recreate",
    ),
    "save": Series(
        "A file is saved, and `ddpjob dev` watches",
        [SAVED],
        saves=100_000,
        words="A folder of 100 KB; from the save until all ranks of two nodes step with it.",
    ),
    "save, 4 MB": Series(
        "A file is saved in a folder of 4 MB",
        [SAVED],
        saves=4_000_000,
        words="Of random bytes, which no archive makes fewer.",
    ),
    "save, local": Series(
        "A file is saved, and `ddpjob dev --local` watches",
        [SAVED],
        place=Place.LOCAL,
        saves=100_000,
        words="Two nodes on this machine, without a cluster.",
    ),
    "silent nodes": Series(
        "Silent nodes",
        silence.FAULTS,
        of_nodes=True,
        words=f"""\
Promised are {MOST_SILENT:g} s, and {MOST_SILENT_0:g} s for rank 0's node. The 15 s until the
decision are the timeout: before that a node that is cut off may not have ended its ranks. Then
the other pods end and new ones start, which takes 1.4 to 3 s, since a kubelet looks at its
containers once a second. The last 2 to 3 s are a warm start, most of it the import of torch. So
a lower `nodeTimeoutSeconds` is what makes it faster. It also makes shorter pauses of a network
count as the loss of a node.""",
    ),
    "silent nodes, spare": Series(
        "Silent nodes, with a spare",
        CUT_OFF,
        of_nodes=True,
        job={"spares": 1},
        words="""\
It befalls the node on which the spare is not. Promised is a second more than the timeout, 16 s. A
node is counted as silent after 15 s without a word, as above, and rank 0's after up to 16.5 s.""",
    ),
    "silent nodes, elastic": Series(
        "Silent nodes, with a smaller group",
        CUT_OFF,
        of_nodes=True,
        job={"elastic": ELASTIC},
        words="15 s are the timeout, of which rank 0's node may take 1.1.",
    ),
    "silent nodes, operator": Series(
        "Silent nodes, with the operator on them",
        CUT_OFF,
        of_nodes=True,
        of_leader=True,
        words="""\
By the chart's defaults. Promised are 30 s. The second replica takes over after 15 to 17 s, misses
three answers of the node in at least 5 s, and asks the other one; of a lost rank 0 it takes a
connection that does not come, 2 s, for the first miss.""",
    ),
    "PyTorchJob": Series(
        "PyTorchJob, with its defaults",
        peer.FAULTS,
        place=Place.PYTORCHJOB,
        strategy="",
        words=f"""\
Kubeflow's Training Operator v1.8.1 on the same nodes: the same script and image, a master and a
worker, nothing set that it does not ask for. Each fault meets a job of its own, in its worker, and
is waited for {peer.MOST_SECONDS:g} seconds long. The container's first process is the script, which
does not end upon SIGTERM, so a pod that is deleted or evicted takes its 30 s of grace.""",
    ),
    "PyTorchJob, elastic": Series(
        "PyTorchJob with an elasticPolicy",
        peer.ELASTIC_FAULTS,
        place=Place.ELASTIC_PYTORCHJOB,
        strategy="",
        words="""\
Two workers that run torchrun, which starts processes again in their pods; rendezvous by c10d, as
many restarts as they take.""",
    ),
}
