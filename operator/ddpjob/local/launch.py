"""What a pod's container becomes on this machine: arguments, environment, working folder. Pure."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpjob import names
from ddpjob.errors import DDPJobError
from ddpjob.json_depth import Body
from ddpjob.local.gpus import Share
from ddpjob.local.gpus import variables as device_variables

# What a pod's processes may see of the environment that ddpjob was started in: where programs and
# libraries are, which devices, the language, the way out. Nothing else, tokens above all: a job
# must say what it needs, or it works here and not in the cluster.
INHERITED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TERM|TZ|LANG|LANGUAGE|LC_\w+|VIRTUAL_ENV|CONDA_PREFIX"
    r"|PYTHONPATH|LD_LIBRARY_PATH|DYLD_\w+|CUDA_\w+|NVIDIA_\w+|HIP_\w+|ROCR_\w+"
    r"|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|(?i:https?_proxy|no_proxy|all_proxy)"
)
PYTHONS = ("python", "python3")

_REFERENCE = re.compile(r"\$(?:\$|\((?P<name>[^)]*)\))")
_KEYED = re.compile(r"metadata\.(?P<field>labels|annotations)\['(?P<key>[^']+)'\]")


class CannotStart(DDPJobError):
    """The pod asks for something that this machine does not have, so a new try does not help."""


@dataclass(frozen=True)
class Place:
    """The addresses, ports and folders that stand in for the cluster's parts of a pod."""

    address: str
    host_address: str
    variables: Mapping[str, str]  # replaces the values of variables that the container sets
    folders: Mapping[str, Path]  # mount path -> folder
    defaults: dict[str, str]  # for variables that the container does not set
    share: Share = field(default_factory=dict)  # of this machine's GPUs


@dataclass(frozen=True)
class Launch:
    """A process to start."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path


def main_container(pod: Body) -> Body:
    """Return the container that is run: `trainer`, or the first one."""
    containers: list[Body] = pod["spec"]["containers"]
    return next((c for c in containers if c.get("name") == names.TRAINER_CONTAINER), containers[0])


def launch(
    pod: Body,
    place: Place,
    *,
    inherited: Mapping[str, str],
    python: str,
    cwd: Path,
) -> Launch:
    """Return the process to start for `pod`.

    The variables are resolved as Kubernetes does, paths below mounts then become paths of this
    machine. Raises CannotStart.
    """
    container = main_container(pod)
    rewrite = path_rewriter(place.folders)
    variables = _variables(pod, container, place)
    command = [*(container.get("command") or []), *(container.get("args") or [])]
    if not container.get("command"):
        raise CannotStart("the image's own entry point is unknown here: give a command")
    argv = [rewrite(expand(word, variables)) for word in command]
    if argv[0] in PYTHONS:
        argv[0] = python
    env = {name: value for name, value in inherited.items() if INHERITED.fullmatch(name)}
    env["PATH"] = f"{Path(python).parent}:{env.get('PATH', '/usr/bin:/bin')}"
    env |= place.defaults | {name: rewrite(value) for name, value in variables.items()}
    env |= device_variables(place.share, variables)
    folder = Path(rewrite(container.get("workingDir") or "."))
    return Launch(tuple(argv), env, folder if folder.is_absolute() and folder.is_dir() else cwd)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Return `text` with each known `$(NAME)` replaced; `$$` is a dollar sign, as in a pod."""

    def value(match: re.Match[str]) -> str:
        return "$" if match["name"] is None else variables.get(match["name"], match[0])

    return _REFERENCE.sub(value, text)


def path_rewriter(folders: Mapping[str, Path]) -> Callable[[str], str]:
    """Return a function that replaces whole mount paths: not /data in /data2 or /my/data."""
    paths = "|".join(re.escape(path) for path in sorted(folders, key=len, reverse=True))
    pattern = re.compile(rf"(?:(?<![\w./~-])|(?<=file://))(?:{paths})(?![\w.-])")
    return lambda text: pattern.sub(lambda match: str(folders[match[0]]), text)


def _variables(pod: Body, container: Body, place: Place) -> dict[str, str]:
    """Return the container's variables, each of which sees those before it."""
    if container.get("envFrom"):
        raise CannotStart("envFrom: ConfigMaps and Secrets are not read here; use env")
    seen: dict[str, str] = {}
    for variable in container.get("env") or []:
        name, source = variable["name"], variable.get("valueFrom") or {}
        if not source:
            value = expand(variable.get("value") or "", seen)
        elif path := source.get("fieldRef", {}).get("fieldPath"):
            value = _field(pod, path, place, name)
        else:
            raise CannotStart(f"env[{name}]: {', '.join(source)} is not read here; set a value")
        seen[name] = place.variables.get(name, value)
    return seen


def _field(pod: Body, path: str, place: Place, name: str) -> str:
    meta, spec = pod["metadata"], pod["spec"]
    if keyed := _KEYED.fullmatch(path):
        return str((meta.get(keyed["field"]) or {}).get(keyed["key"], ""))
    known: dict[str, Any] = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta["namespace"],
        "metadata.uid": meta["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": place.address,
        "status.podIPs": place.address,
        "status.hostIP": place.host_address,
        "status.hostIPs": place.host_address,
    }
    if path not in known:
        raise CannotStart(f"env[{name}]: fieldRef {path} is not known here")
    return str(known[path])


# The variables that have the agent unpack an archive.
ARCHIVE_VARIABLES = ("DDPJOB_CODE_PARTS", "DDPJOB_CODE_SHA256")


def without_archive(pod: Body) -> Body:
    """Return `pod` without the archive of its code, so that its agent unpacks nothing.

    The agent empties the folder that it unpacks into, so nothing of the archive may be left.
    """
    spec, container = pod["spec"], main_container(pod)
    here = {
        **container,
        "env": [v for v in container.get("env") or [] if v["name"] not in ARCHIVE_VARIABLES],
        "volumeMounts": [m for m in container.get("volumeMounts") or [] if not _is_archive(m)],
    }
    volumes = [
        v for v in spec.get("volumes") or [] if not v["name"].startswith(names.ARCHIVE_VOLUME)
    ]
    containers = [here if each is container else each for each in spec["containers"]]
    return {**pod, "spec": {**spec, "volumes": volumes, "containers": containers}}


def _is_archive(mount: Body) -> bool:
    return f"{mount['mountPath']}/".startswith(f"{names.ARCHIVE_DIR}/")
