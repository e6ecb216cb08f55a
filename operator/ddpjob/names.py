"""Every name that more than one module or an outside reader must agree on.

Labels, environment, paths, derived names.
"""

import re

GROUP = "ddpjob.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "DDPJob"
PLURAL = "ddpjobs"

# What is kept of an object's metadata wherever a part of the object is kept.
METADATA = (
    *("name", "namespace", "uid", "resourceVersion", "generation"),
    *("creationTimestamp", "deletionTimestamp"),
)

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "ddpjob"
MANAGER = f"{GROUP}/operator"  # spec.managedBy of jobs that are ours
JOB_LABEL = f"{GROUP}/job"  # the job's name
JOB_UID_LABEL = f"{GROUP}/job-uid"  # the job's uid: tells two jobs of one name apart
ATTEMPT_LABEL = f"{GROUP}/attempt"  # 0, 1, …: status.attempt when the pod was created
RANK_LABEL = f"{GROUP}/rank"  # the pod's node rank, 0 … nnodes-1
AGENT_ANNOTATION = f"{GROUP}/agent"  # name of the ConfigMap that holds the pod's agent
PROOF_ANNOTATION = f"{GROUP}/proof"  # that the operator has made the pod; see proof.py
SPEC_HASH_ANNOTATION = f"{GROUP}/spec-hash"  # all pods of an attempt carry the same one

TRAINER_CONTAINER = "trainer"
MASTER_PORT = 29500  # torchrun's own default
AGENT_PORT = 29499
AGENT_PORT_ANNOTATION = f"{GROUP}/agent-port"  # only where pods share an address

AGENT_DIR = "/ddpjob/agent"  # where the ConfigMap with the agent is mounted
AGENT_ZIP = "agent.pyz"  # its only key
RUN_DIR = "/ddpjob/run"  # emptyDir: progress file, error files, step counts
HOME_DIR = "/ddpjob/home"  # emptyDir: HOME and caches
PROGRESS_FILE = f"{RUN_DIR}/progress.json"
TERMINATION_LOG = "/dev/termination-log"

# Set by the operator, so refused in spec.env.
RESERVED_ENV = (
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
)
RESERVED_ENV_PREFIXES = ("PET_", "DDPJOB_")


def pod_name(job: str, attempt: int, rank: int | str) -> str:
    """Name, and hostname, of the pod of node rank `rank` in attempt `attempt`."""
    return f"{job}-{attempt}-{rank}"


MAX_ATTEMPT = 999_999_999  # nine digits in a pod's name
_PLACE = re.compile(r"(0|[1-9][0-9]{0,8})-(0|[1-9][0-9]{0,5})", re.ASCII)


def parse_pod_name(job: str, pod: str) -> tuple[int, int] | None:
    """(attempt, node rank) of the job's pod of this name; None if `pod_name` makes no such name."""
    found = _PLACE.fullmatch(pod.removeprefix(f"{job}-")) if pod.startswith(f"{job}-") else None
    return (int(found[1]), int(found[2])) if found else None


def service_name(job: str) -> str:
    """Name of the headless Service, which is the subdomain of the job's pods."""
    return job


def network_policy_name(job: str) -> str:
    """Name of the NetworkPolicy."""
    return job


def agent_config_name(job: str, digest: str) -> str:
    """Name of the immutable ConfigMap with the agent whose zip hashes to `digest`."""
    return f"{job}-agent-{digest[:8]}"


def is_agent_config_name(job: str, name: str) -> bool:
    """Whether `agent_config_name` makes such a name: an annotation may say anything."""
    digest = name.removeprefix(f"{job}-agent-")
    return len(digest) < len(name) and re.fullmatch("[0-9a-f]{8}", digest) is not None
