"""The pod of a job with its own code, where the folder itself is at hand. Pure."""

from ddpjob import names
from ddpjob.json_depth import Body
from ddpjob.runner.launch import main_container

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
