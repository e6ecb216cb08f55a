"""The launcher's environment, and the hooks that every Python process of the pod finds by it."""

from __future__ import annotations

import contextlib
import importlib.util
import marshal
import os
import re
import signal
import socket
import sys
from typing import TYPE_CHECKING, Mapping, MutableMapping  # noqa: UP035 - Python 3.8
from zipimport import zipimporter

from ddpjob_agent.config import LOOPBACK, Config, say
from ddpjob_agent.requests import is_buffered, python_words

if TYPE_CHECKING:
    from ddpjob_agent.processes import ServerCommand

# Python stacks are asked for by a signal that nobody else uses: scripts have SIGUSR1 and SIGUSR2
# for purposes of their own (submitit requeues, Kineto profiles).
STACK_SIGNAL = int(getattr(signal, "SIGRTMAX", signal.SIGUSR2))
HERE = os.path.dirname(os.path.abspath(__file__))
# The zip in which this package is.
PROGRAM = os.path.dirname(HERE)
HOOKS = os.path.join(HERE, "hooks")
# The module that `accelerate launch` is.
ACCELERATE = "accelerate.commands.launch"
HOOK_FILES = ("sitecustomize.py", "ddpjob_ends.py", "ddpjob_counts.py", "ddpjob_saves.py")
# What turns on transformers' KubeflowCallback, and where it reports to the agent (report.py).
CALLBACK_URL, CALLBACK_TOKEN = "KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN"
CALLBACK_PATH = "/trainer-status"
CACHES = ("HOME", "HF_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME")


def prepare_folders(run_dir: str) -> None:
    """Create the folders that the environment names; empty ours of an earlier run."""
    for name in ("DDPJOB_RUN_DIR", *CACHES):
        try:
            os.makedirs(os.environ.get(name) or run_dir, exist_ok=True)
        except OSError as problem:
            say(f"{name}: {problem}")
    with contextlib.suppress(OSError):
        for file in os.listdir(run_dir):
            if re.match(r"(steps-|error-|exit-|launch|progress|result).*(json|page)", file):
                with contextlib.suppress(OSError):  # a folder, of the script's
                    os.remove(os.path.join(run_dir, file))


def is_ip(host: str) -> bool:
    """Whether `host` is an IPv4 or IPv6 address."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host)
            return True
    return False


def absolute_name(host: str, namespace: str, resolv_conf: str) -> str:
    """`host` completed by the namespace's search domain (else the first one) and a dot.

    A name without the dot is asked for with every search domain in turn (ndots:5).
    """
    if is_ip(host) or host.endswith(".") or host == "localhost":
        return host
    lines = [line.split() for line in resolv_conf.splitlines()]
    domains = next((words[1:] for words in reversed(lines) if words[:1] == ["search"]), [])
    if not domains:
        return host
    domain = next((d for d in domains if d.startswith(namespace + ".svc.")), domains[0]).strip(".")
    return host + "." if host.endswith("." + domain) else f"{host}.{domain}."


def launcher_env(
    config: Config, env: Mapping[str, str], resolv_conf: str, hooks: str = ""
) -> dict[str, str]:
    """The launcher's environment: absolute master, our hooks, the job's code, torchrun's time-outs.

    `hooks` is the folder with the compiled ones, if there is one.
    """
    result = dict(env)
    result["MASTER_ADDR"] = absolute_name(config.master_addr, config.namespace, resolv_conf)
    if "PET_MASTER_ADDR" in env:
        result["PET_MASTER_ADDR"] = result["MASTER_ADDR"]
    paths = [hooks or HOOKS, config.code_dir, env.get("PYTHONPATH", "")]
    result["DDPJOB_RESULT_FILE"] = config.result_file
    result["DDPJOB_STACK_SIGNAL"] = str(STACK_SIGNAL)
    result["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    result.setdefault("PET_RDZV_CONF", f"timeout={config.rendezvous_seconds}")
    grace = config.grace_seconds  # torchrun grants its workers 10 s less; half of a short grace
    shutdown = grace - 10 if grace >= 20 else max(1, grace // 2)
    result.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(shutdown))
    return result


def offer_callback(config: Config, env: MutableMapping[str, str]) -> str:
    """Have transformers' callback report to the agent: its token; "" where it is not to.

    Where it reports elsewhere, by the job's own `env`, it stays so.
    """
    if not config.count_steps or CALLBACK_URL in env:
        return ""
    token, path = os.urandom(16).hex(), os.path.join(config.run_dir, "callback-token")
    try:
        with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(token)
    except OSError as problem:
        say(f"transformers' callback is not served: {problem}")
        return ""
    address = config.addresses[-1] or LOOPBACK
    host = f"[{address}]" if ":" in address else address
    env[CALLBACK_URL] = f"http://{host}:{config.agent_port}{CALLBACK_PATH}"
    env[CALLBACK_TOKEN] = path
    if any(name.lower() in ("http_proxy", "all_proxy") for name in env):  # it is for others
        for name in [n for n in ("no_proxy", "NO_PROXY") if n in env] or ["no_proxy"]:
            env[name] = ",".join(filter(None, (env.get(name), address)))
    return token


def fork_server(
    config: Config, mode: str, command: list[str], env: Mapping[str, str]
) -> ServerCommand | None:
    """Command and environment of the fork server from which `command` is to be forked, if any.

    torchrun needs none: it forks one itself.
    """
    words = python_words(command) if mode == "python" and can_fork(config) else []
    if not words or is_buffered(command, env):
        return None
    result = {**env, "DDPJOB_LAUNCHER": "1"}  # the hooks leave it alone, too
    if words[1:2] == [ACCELERATE]:  # sets it for its workers
        result.setdefault("OMP_NUM_THREADS", "1")
    return [command[0], "-u", PROGRAM, "forkserver"], result  # the descriptor follows


def can_fork(config: Config) -> bool:
    """Whether processes may start warm: on Linux with the C library for which torch is built.

    macOS' frameworks start threads.
    """
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        return False
    return config.warm_start and libc.startswith("glibc")


def compile_hooks(run_dir: str) -> str:
    """A folder with our hooks, compiled for every Python like this one; "" where none can be made.

    HOOKS is a read-only mount: each Python process of the pod would compile them for itself.
    """
    folder = os.path.join(os.path.abspath(run_dir), "hooks")
    if os.pathsep in folder or sys.pycache_prefix is not None:  # Python has its own place for them
        return ""
    archive = zipimporter(PROGRAM)
    umask = os.umask(0o022)  # the script may be another user's
    try:
        os.makedirs(folder)  # a new one: another may be anybody's
        for name in HOOK_FILES:
            path = os.path.join(folder, name)
            source = archive.get_data(os.path.join(HOOKS, name))
            cached = importlib.util.cache_from_source(path)
            os.makedirs(os.path.dirname(cached), exist_ok=True)
            for target, content in ((path, source), (cached, bytecode(source, path))):
                with open(target, "wb") as file:
                    file.write(content)
    except Exception as problem:  # such as a Python that keeps no bytecode at all
        say(f"hooks are compiled in every process: {problem}")
        return ""
    finally:
        os.umask(umask)
    return folder


def bytecode(source: bytes, path: str) -> bytes:
    """The .pyc of `source`, of the kind that is checked by the source's hash: PEP 552."""
    header = importlib.util.MAGIC_NUMBER + (0b11).to_bytes(4, "little")
    code = marshal.dumps(compile(source, path, "exec", dont_inherit=True))
    return header + importlib.util.source_hash(source) + code
