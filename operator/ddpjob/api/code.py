"""The model of `spec.code`: the job's own code, and where its archive is."""

from typing import Annotated

from pydantic import Field

from ddpjob.api.base import SHA256, DnsSubdomain, Model, Rule, exactly_one_of
from ddpjob.api.podtypes import FilePath, MountPath, VolumeSource
from ddpjob.names import MAX_ARCHIVE_PARTS


class Code(Model):
    """`code` is the job's own code, so that no image has to be built for it.

    The agent unpacks it into `mountPath` before each start of the ranks. That folder is their
    working directory, and comes first in PYTHONPATH.
    """

    config_maps: (
        Annotated[list[DnsSubdomain], Field(min_length=1, max_length=MAX_ARCHIVE_PARTS)] | None
    ) = None
    """`configMaps` are the names of ConfigMaps of the namespace. Each has a part of the archive
    under the key `code.tar.gz`, in this order. The archive is a tar.gz of files and folders."""
    volume: VolumeSource | None = None
    """`volume` is a volume source without a name, for an archive that is too large for ConfigMaps.
    The pods mount it read-only."""
    path: FilePath | None = None
    """`path` is the path of the archive in `volume`."""
    sha256: Annotated[str, Field(max_length=64, pattern=SHA256)]
    """`sha256` is the SHA-256 of the whole archive. If it has another one, the attempt
    fails with reason CodeInvalid."""
    mount_path: MountPath = "/src"
    """`mountPath` is the folder into which the archive is unpacked. The trainer gets the path as
    DDPJOB_CODE_DIR. The folder is emptied before each start, so the ranks should write nothing
    there that they want to keep."""
    checks = (
        exactly_one_of("configMaps", "volume"),
        Rule(
            "!has(self.configMaps) || "
            "self.configMaps.all(a, self.configMaps.exists_one(b, a == b))",
            lambda self: len(set(self.config_maps or ())) == len(self.config_maps or ()),
            "has a name twice",
            "configMaps",
        ),
        Rule(
            "has(self.volume) == has(self.path)",
            lambda self: (self.volume is None) == (self.path is None),
            "goes with volume: it is the archive's path in it",
            "path",
        ),
    )
