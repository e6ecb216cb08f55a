"""What the ranks of a round leave behind in their pod."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile

from ddpjob_agent.environment import prepare_folders

# What ranks leave in /dev/shm and in the folder for temporary files.
LEFT = re.compile(r"(torch_|sem\.mp-|psm_|nccl-|pymp-|torchelastic_)")


def tidy(run_dir: str) -> None:
    """Remove what the ranks of the round before have left."""
    prepare_folders(run_dir)
    if os.getpid() != 1:  # these folders are not the pod's own
        return
    remove_left("/dev/shm")
    with contextlib.suppress(OSError):  # no folder for such files, or a full disk
        remove_left(tempfile.gettempdir())


def remove_left(folder: str) -> None:
    """Remove what ranks, and torchrun, leave in a folder if they are killed."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            with contextlib.suppress(OSError):
                is_ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
                if not (LEFT.match(entry.name) and is_ours):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)
