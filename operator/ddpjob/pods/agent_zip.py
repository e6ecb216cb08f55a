"""Packs the agent's sources into one zip that Python runs as it is: `python3 agent.pyz …`."""

import io
import zipfile
from collections.abc import Mapping

PACKAGE = "ddpjob_agent"
PROGRAM = "__main__.py"


def pack(sources: Mapping[str, str]) -> bytes:
    """Return the zip of `sources`, by their paths in the package: always the same bytes."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path, source in sorted(sources.items()):
            name = path if path == PROGRAM else f"{PACKAGE}/{path}"
            member = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            member.external_attr = 0o644 << 16
            archive.writestr(member, source, zipfile.ZIP_DEFLATED, compresslevel=9)
    return content.getvalue()
