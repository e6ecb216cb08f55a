"""The names that several modules or outside readers share: labels, variables, paths, objects."""

import re

GROUP = "ddpjob.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "DDPJob"
PLURAL = "ddpjobs"
# Where people read the documentation.
DOCS = "https://github.com/ddpjob/ddpjob/blob/main/docs"

# What is kept of an object's metadata wherever a part of the object is kept.
METADATA = (
    *("name", "namespace", "uid", "resourceVersion", "generation"),
    *("creationTimestamp", "deletionTimestamp"),
)

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "ddpjob"
# `spec.managedBy` of the jobs that the operator runs.
MANAGER = f"{GROUP}/operator"
# The job's name, which its Service, the subdomain of its pods, and its NetworkPolicy have too.
JOB_LABEL = f"{GROUP}/job"
# The job's uid. Two jobs of one name have different uids.
JOB_UID_LABEL = f"{GROUP}/job-uid"
# The `status.attempt` for which the pod was created: 0, 1, …
ATTEMPT_LABEL = f"{GROUP}/attempt"
# The pod's node rank, from 0 to nnodes - 1; of a spare `s` and its number, as in its name.
RANK_LABEL = f"{GROUP}/rank"
# What the job's agents and the operator know each other by, on the job's Service.
TOKEN_ANNOTATION = f"{GROUP}/token"
# On pods that a version before that has made: the job's own ConfigMap with the token.
OLD_AGENT_ANNOTATION = f"{GROUP}/agent"
# The same in the environment of the job's trainers.
TOKEN_VARIABLE = "DDPJOB_TOKEN"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32}")
# They stand for the node rank of a pod that may get another one, and for the sizes of a group that
# may get smaller, in environment and command. The agent puts those of a round in their places.
OWN_RANK, OWN_NNODES, OWN_WORLD_SIZE = "@ddpjob-rank@", "@ddpjob-nnodes@", "@ddpjob-world-size@"
# What the pods of an attempt run at first, of those whose ranks can be given something else.
FIRST_PROGRAM = "first"
# The proof that the operator has created the pod; see plan/own.py.
PROOF_ANNOTATION = f"{GROUP}/proof"
# The hash of the pods of an attempt. All pods of the attempt have the same one.
SPEC_HASH_ANNOTATION = f"{GROUP}/spec-hash"
# How the pod's agent takes a failure: `InPlace` if it waits to be asked for another round.
RESTART_ANNOTATION = f"{GROUP}/restart"
# The seconds after which a node that nobody hears counts as silent.
NODE_TIMEOUT_ANNOTATION = f"{GROUP}/node-timeout"
# The name of the first job, on those that `ddpjob rerun` has made of it.
RERUN_ANNOTATION = f"{GROUP}/rerun-of"
# The user's name, on jobs that the client has made. Anybody may write any name: a hint.
USER_ANNOTATION = f"{GROUP}/user"
# The commit of the code that was sent with the job.
REVISION_ANNOTATION = f"{GROUP}/code-revision"
# The ConfigMaps of the code that a job had before, with commas in between.
PREVIOUS_CODE_ANNOTATION = f"{GROUP}/previous-code"

# Kueue's, on a DDPJob: the LocalQueue that it waits in, and its WorkloadPriorityClass.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
# The labels of a DDPJob that the operator reads.
LABELS = (QUEUE_LABEL, PRIORITY_LABEL)

# By which a pod names its PodGroup: Volcano's, and coscheduling's.
GANG_ANNOTATION = "scheduling.k8s.io/group-name"
GANG_LABEL = "scheduling.x-k8s.io/pod-group"

TRAINER_CONTAINER = "trainer"
# torchrun's own default.
MASTER_PORT = 29500
AGENT_PORT = 29499
# The agent's port. Only pods that share an address have this annotation.
AGENT_PORT_ANNOTATION = f"{GROUP}/agent-port"

# The folder at which the ConfigMap with the agent is mounted.
AGENT_DIR = "/ddpjob/agent"
# The start of that ConfigMap's name, and its key.
AGENT_PREFIX = "ddpjob-agent-"
AGENT_ZIP = "agent.pyz"
# The archive with the job's own code: the folder below which it is mounted, and its key in a
# ConfigMap.
ARCHIVE_DIR = "/ddpjob/code"
ARCHIVE_KEY = "code.tar.gz"
# Such ConfigMaps have the first digits of the archive's SHA-256.
CODE_LABEL = f"{GROUP}/code"
# Parts of an archive, each in a ConfigMap of its own.
MAX_ARCHIVE_PARTS = 4
# The pod's volumes for it: the names of those with the archive begin so, and the other one is the
# emptyDir into which the agent unpacks it.
ARCHIVE_VOLUME = "ddpjob-code"
SOURCE_VOLUME = "ddpjob-src"
# An emptyDir with the progress file, error files and step counts.
RUN_DIR = "/ddpjob/run"
# An emptyDir with HOME and caches.
HOME_DIR = "/ddpjob/home"
TMP_VOLUME = "ddpjob-tmp"
# Bytes of a result. A termination message has 4096, and other things to tell.
MAX_RESULT = 2048
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
# "0" has nothing saved on notice: a job sets it itself.
SAVE_ON_NOTICE = "DDPJOB_SAVE_ON_NOTICE"

# Extended resources that count as GPUs: these names, and all names that begin with one that ends in
# - or /.
GPU_RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-", "amd.com/gpu", "gpu.intel.com/")


def is_gpu(resource: str) -> bool:
    """Return whether this extended resource counts as a GPU."""
    return any(
        resource.startswith(name) if name[-1] in "-/" else resource == name
        for name in GPU_RESOURCES
    )


def pod_name(job: str, attempt: int, rank: int | str, since: int = 0) -> str:
    """Return the name, and hostname, of the pod of node rank `rank` in attempt `attempt`.

    `since` is the first round of a pod that replaces another one, and 0 for all other pods. A rank
    of -1 is the first spare, which keeps its name when it gets a rank.
    """
    return f"{job}-{attempt}-{rank_text(rank)}" + (f"-r{since}" if since else "")


def rank_text(rank: int | str) -> str:
    """Return a node rank as names and labels of pods have it: `3`, or `s1` of the first spare."""
    return f"s{-rank}" if isinstance(rank, int) and rank < 0 else str(rank)


def gang_name(job: str, attempt: int) -> str:
    """Return the name of the PodGroup of attempt `attempt`."""
    return f"{job}-{attempt}"


def workload_name(job: str, uid: str) -> str:
    """Return the name of the Workload by which Kueue knows a job."""
    return f"ddpjob-{job}-{uid[:5]}"


# An attempt has at most nine digits in a pod's name.
MAX_ATTEMPT = 999_999_999
# Characters.
MAX_HOSTNAME = 63
_PLACE = re.compile(
    r"(?:.*-)?(0|[1-9][0-9]{0,8})-(?:(0|[1-9][0-9]{0,5})(?:-r([1-9][0-9]{0,8}))?|s([1-9][0-9]{0,5}))",
    re.ASCII,
)


def parse_pod_name(job: str, pod: str) -> tuple[int, int, int] | None:
    """Return (attempt, node rank, since) of a pod of the job, as `pod_name` has them.

    Returns None if `pod_name` makes no such name.
    """
    found = place(pod)
    return found if found and pod == pod_name(job, *found) else None


def place(pod: str) -> tuple[int, int, int] | None:
    """Return the same of a pod of whatever job."""
    found = _PLACE.fullmatch(pod)
    if found is None:
        return None
    return int(found[1]), -int(found[4]) if found[4] else int(found[2]), int(found[3] or 0)


def agent_config_name(digest: str) -> str:
    """Return the name of the ConfigMap with the agent whose zip has this digest."""
    return f"{AGENT_PREFIX}{digest[:12]}"


def code_config_name(sha256: str, part: int) -> str:
    """Return the name of the ConfigMap with this part of the archive that has this SHA-256."""
    return f"ddpjob-code-{sha256[:12]}" + (f"-{part}" if part else "")


def as_token(text: object) -> str:
    """Return a text from the cluster if it is a token of ours, else ""."""
    return text if isinstance(text, str) and _TOKEN.fullmatch(text) else ""
