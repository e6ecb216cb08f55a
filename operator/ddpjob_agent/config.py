"""The agent's settings, which are the pod's environment; its exit codes; its lines in the log."""

from __future__ import annotations

import copy
import os
import re
import sys
from itertools import chain, islice
from typing import Mapping  # noqa: UP035 - Python 3.8

# Exit codes; else 128 + signal.
OK, USER_ERROR, SAVED, HANG, NO_RENDEZVOUS, SILENT = 0, 1, 75, 76, 77, 78
OUT_OF_MEMORY, TERMINATED = 137, 143
# torchrun's own limit for a static rendezvous.
RENDEZVOUS_SECONDS = 900
LOOPBACK = "127.0.0.1"
# They stand for the node rank of a pod that may get another one, and for the sizes of a group that
# may get smaller, in environment and command: `names.OWN_RANK` and others.
OWN_RANK, OWN_NNODES, OWN_WORLD_SIZE = "@ddpjob-rank@", "@ddpjob-nnodes@", "@ddpjob-world-size@"
FIRST_PROGRAM = "first"
# So many rounds in a row have ports of their own.
PORTS = 16


def say(text: str) -> None:
    """One line on stderr, which is the pod's log, in one piece."""
    print(f"ddpjob-agent: {text}\n", end="", file=sys.stderr, flush=True)


class ConfigError(ValueError):
    """The rule that the environment or the command line breaks."""


class Config:
    """The environment that the operator sets, read once."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """Read and check `env`. Raises ConfigError."""

        def text(name: str, default: str = "") -> str:
            if not (env.get(name) or default):
                raise ConfigError(f"{name} is not set")
            return env.get(name) or default

        def whole(name: str, least: int, default: object = "", most: int = 2**31 - 1) -> int:
            value = text(name, str(default))
            if re.match(r"[0-9]{1,10}\Z", value) and least <= int(value) <= most:
                return int(value)
            rule = f"must be an integer from {least} to {most}"
            raise ConfigError(f"{name} {rule}, got {value[:80]!r}")

        self.nnodes = whole("DDPJOB_NNODES", 1)
        self.nproc_per_node = whole("DDPJOB_NPROC_PER_NODE", 1)
        self.run_dir = text("DDPJOB_RUN_DIR", "/ddpjob/run")
        self.job = text("DDPJOB_JOB")
        self.namespace = text("DDPJOB_NAMESPACE", "default")
        self.attempt = whole("DDPJOB_ATTEMPT", 0)
        # The pod's first one. Where it is not 0, this pod is there in the place of another one.
        self.round = whole("DDPJOB_ROUND", 0, 0)
        self.restarts = whole("DDPJOB_RESTARTS", 0, 0)  # of the job, before this attempt
        # A spare has no rank at first, and is no node.
        self.is_spare = env.get("DDPJOB_NODE_RANK") == OWN_RANK
        # The group may get smaller, and then this pod another rank.
        self.is_elastic = env.get("PET_NNODES") == OWN_NNODES
        self.node_rank = -1
        if not self.is_spare:
            self.node_rank = whole("DDPJOB_NODE_RANK", 0, most=self.nnodes - 1)
        self.master_addr = text("MASTER_ADDR")
        self.master_port = whole("MASTER_PORT", 1, most=65535)
        file = os.path.join(self.run_dir, "progress.json")
        self.progress_file = text("DDPJOB_PROGRESS_FILE", file)
        self.result_file = os.path.join(self.run_dir, "result.json")
        self.checkpoint_dir = env.get("DDPJOB_CHECKPOINT_DIR", "")
        self.count_steps = env.get("DDPJOB_PROGRESS") != "file"
        self.pod_ip, self.host_ip = env.get("DDPJOB_POD_IP", ""), env.get("DDPJOB_HOST_IP", "")
        self.agent_port = whole("DDPJOB_AGENT_PORT", 1, 29499, 65535)
        # What this job's agents and the operator know each other by.
        self.token = env.get("DDPJOB_TOKEN", "")
        self.pod_uid = env.get("DDPJOB_POD_UID", "")
        self.grace_seconds = whole("DDPJOB_GRACE_SECONDS", 0, 60)
        self.termination_log = text("DDPJOB_TERMINATION_LOG", "/dev/termination-log")
        self.rendezvous_seconds = whole("DDPJOB_RENDEZVOUS_SECONDS", 1, RENDEZVOUS_SECONDS)
        # Without a step for so long the attempt ends; 0: for ever.
        self.hang_seconds = whole("DDPJOB_HANG_SECONDS", 0, 0)
        # Once all ranks have ended the pod stays for so long, to be asked on.
        self.keep_seconds = whole("DDPJOB_KEEP_SECONDS", 0, 0)
        self.warm_start = env.get("DDPJOB_WARM_START") != "0"
        # Ranks end where other nodes have not been heard for so long; 0: they never do. A single
        # node has nobody to hear.
        timeout = whole("DDPJOB_NODE_TIMEOUT", 0, 0, 3600)
        self.node_timeout = timeout if self.nnodes > 1 else 0
        # The folder of the job's own code, if it has some, and the archive to unpack there.
        self.code_dir = env.get("DDPJOB_CODE_DIR", "")
        self.code_parts = list(filter(None, env.get("DDPJOB_CODE_PARTS", "").split(os.pathsep)))
        self.code_sha256 = env.get("DDPJOB_CODE_SHA256", "")
        # The print of what the ranks run; none if it is what the attempt's first pods were made
        # with. Without the variable nothing else will ever run here.
        self.program = env.get("DDPJOB_PROGRAM", "")
        self.takes_programs = bool(self.program)
        self.program = "" if self.program == FIRST_PROGRAM else self.program
        # After a failure the processes may be started again in this pod.
        self.in_place = env.get("DDPJOB_RESTART") == "InPlace"

    @property
    def joins_others(self) -> bool:
        """Whether it comes when others have begun: in the place of another pod, or as a spare."""
        return self.round > 0 or self.is_spare

    @property
    def addresses(self) -> list[str]:
        """Where the agent listens. `kubectl port-forward` comes to the loopback address.

        It is only this pod's if the pod has a network of its own: with the node's it is the node's,
        and in local mode every pod has another loopback address.
        """
        own, host = self.pod_ip, self.host_ip
        is_apart = own and host and own not in (host, "::1") and not own.startswith("127.")
        return [own, LOOPBACK] if is_apart else [own]

    def own(self, text: str) -> str:
        """A text of the environment or the command, with this pod's rank and the group's sizes."""
        if "@ddpjob-" not in text:
            return text
        world_size = str(self.nnodes * self.nproc_per_node)
        text = text.replace(OWN_RANK, str(self.node_rank)).replace(OWN_NNODES, str(self.nnodes))
        return text.replace(OWN_WORLD_SIZE, world_size)

    def of_round(self, number: int, size: int = 0) -> Config:
        """The settings of a round of so many nodes; `self` has those of the first one."""
        config = copy.copy(self)
        config.round, config.nnodes = number, size or self.nnodes
        base = self.master_port
        ports = chain(range(base, min(base + PORTS, 65535) + 1), range(base - 1, 0, -1))
        free = (port for port in ports if port != self.agent_port)
        config.master_port = next(islice(free, number % PORTS, None))
        return config
