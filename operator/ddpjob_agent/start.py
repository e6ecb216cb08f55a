"""How the launcher of a round is started: its command and its environment."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ddpjob_agent.config import Config
from ddpjob_agent.environment import (
    ACCELERATE,
    PROGRAM,
    absolute_name,
    can_fork,
    compile_hooks,
    fork_server,
    launcher_env,
    offer_callback,
    prepare_folders,
)
from ddpjob_agent.processes import DESCRIPTOR, Launcher
from ddpjob_agent.records import read_text
from ddpjob_agent.requests import python_words

if TYPE_CHECKING:
    from typing import Mapping  # noqa: UP035 - Python 3.8

    from ddpjob_agent.output import Output


class Setup:
    """What the ranks of all rounds find in the pod, and in its environment."""

    def __init__(self, config: Config) -> None:
        prepare_folders(config.run_dir)
        # What the ranks write, if there are several.
        self.output: Output | None = None
        if not config.is_spare:
            self.tell_ranks_apart(config)
        # The token of transformers' callback; "" where it does not report to the agent.
        self.callback_token = offer_callback(config, os.environ)
        # The folder with the compiled hooks; "" where there is none.
        self.hooks = compile_hooks(config.run_dir)

    def tell_ranks_apart(self, config: Config) -> None:
        """Have the lines of several ranks told apart from now on, by the ranks that they have."""
        if self.output is not None:
            self.output.begin_at(config.node_rank * config.nproc_per_node)
        elif config.nproc_per_node > 1:
            from ddpjob_agent.output import make_output

            self.output = make_output(config)


def start(launcher: Launcher, config: Config, mode: str, arguments: list[str], setup: Setup) -> str:
    """Start the launcher of `config.round`; the name by which it asks for node rank 0."""
    variables, resolv_conf = of_round(config, os.environ), read_text("/etc/resolv.conf")
    env = launcher_env(config, variables, resolv_conf, setup.hooks)
    arguments = [config.own(word) for word in arguments]
    command, server, brings_server = arguments, None, False
    if mode == "torchrun":
        env["DDPJOB_LAUNCHER"] = "1"  # tells the hooks to leave this one alone
        brings_server = can_fork(config)
        how = DESCRIPTOR if brings_server else "cold"
        command = [sys.executable, "-u", PROGRAM, "launch", how, *arguments]
    else:
        command = with_master(arguments, env)
        server = fork_server(config, mode, command, env)
    launcher.start(command, env, server, brings_server=brings_server)
    return env["MASTER_ADDR"]


def prepare(
    launcher: Launcher, config: Config, mode: str, arguments: list[str], setup: Setup
) -> None:
    """Have the fork server there before the launcher, which is to wait for other pods."""
    env = launcher_env(config, os.environ, read_text("/etc/resolv.conf"), setup.hooks)
    server = fork_server(config, mode, arguments, env)
    if mode == "torchrun" and can_fork(config):
        env["DDPJOB_LAUNCHER"] = "1"
        if config.nproc_per_node > 1:  # as torchrun has it for its workers
            env.setdefault("OMP_NUM_THREADS", "1")
        server = [sys.executable, "-u", PROGRAM, "forkserver"], env
    if server is not None:
        launcher.start_server(*server)


def master_of(config: Config) -> str:
    """The name, or the address, by which this pod asks for node rank 0."""
    return absolute_name(config.master_addr, config.namespace, read_text("/etc/resolv.conf"))


def of_round(config: Config, env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a round: each has its own port, and its own id of the rendezvous.

    A worker of an earlier round that is still there would otherwise reach the next one's store.
    """
    result = {name: config.own(value) for name, value in env.items()}
    result["DDPJOB_ROUND"] = str(config.round)
    result["DDPJOB_RESTARTS"] = str(config.restarts + config.round)
    if config.is_elastic:
        result["DDPJOB_NODE_RANK"] = str(config.node_rank)
        result["DDPJOB_NNODES"] = str(config.nnodes)
    if config.round:
        result["MASTER_PORT"] = str(config.master_port)
        if "PET_MASTER_PORT" in env:
            result["PET_MASTER_PORT"] = result["MASTER_PORT"]
        if "PET_RDZV_ID" in env:
            result["PET_RDZV_ID"] = f"{env['PET_RDZV_ID']}-{config.round}"
    return result


def with_master(command: list[str], env: Mapping[str, str]) -> list[str]:
    """An `accelerate launch` command with the round's master; every other one as it is."""
    if python_words(command)[1:2] != [ACCELERATE]:
        return command
    found = list(command)
    options = {"--main_process_ip": "MASTER_ADDR", "--main_process_port": "MASTER_PORT"}
    for place, word in enumerate(found[:-1]):
        if name := options.pop(word, ""):
            found[place + 1] = env[name]
    option = found.index(ACCELERATE) + 1
    is_left = "DDPJOB_MAX_WORLD_SIZE" in env and env["DDPJOB_WORLD_SIZE"] == "1"
    if is_left and found[option : option + 1] == ["--multi_gpu"]:
        del found[option]  # for one process accelerate refuses it
    return found
