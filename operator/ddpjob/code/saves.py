"""Looks for saves: sends the archive of a folder whenever its files have changed."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddpjob.code.archive import CodeArchive, pack
from ddpjob.code.files import NEVER
from ddpjob.errors import DDPJobError, InvalidJob

# Milliseconds without a save after which it is looked at, and after which it is in any case.
STEP, MOST = 50, 400


@dataclass(frozen=True)
class Saves:
    """A folder that is watched."""

    folder: Path
    names: Sequence[str]
    """Paths of files that are sent whatever they are."""
    archive: CodeArchive
    """What has been sent before."""

    def send(
        self,
        send: Callable[[CodeArchive], object],
        tell: Callable[[DDPJobError], object],
        is_over: threading.Event,
    ) -> None:
        """Call `send` with the folder's archive after each change of it, until `is_over`.

        `tell` gets the error if it cannot be packed or sent; the next save tries again. Raises
        InvalidJob if the folder cannot be watched.
        """
        sent = self.archive.sha256
        for _ in self._changes(is_over):
            try:
                archive = pack(self.folder, names=self.names)
                if archive.sha256 != sent:
                    send(archive)
                    sent = archive.sha256
            except DDPJobError as error:
                tell(error)

    def _changes(self, is_over: threading.Event) -> Iterator[None]:
        """Yield once the folder is watched, as a save may have been earlier, and at each change."""
        from watchfiles import watch  # 30 ms

        watched = watch(
            self.folder.resolve(),
            watch_filter=None,  # one of watchfiles' own would swallow the first changes
            debounce=MOST,
            step=STEP,
            rust_timeout=MOST,
            yield_on_timeout=True,
            stop_event=is_over,
            ignore_permission_denied=True,
        )
        try:
            for number, changes in enumerate(watched):
                if number == 0 or any(self.may_send(Path(path)) for _, path in changes):
                    yield
        except OSError as error:
            advice = "watch fewer files, or raise fs.inotify.max_user_watches"
            raise InvalidJob("code", f"cannot be watched: {error}", advice=advice) from None

    def may_send(self, path: Path) -> bool:
        """Return whether a change of this path may be one of what is sent."""
        folder = self.folder.resolve()
        return path.is_relative_to(folder) and not {*path.relative_to(folder).parts} & {*NEVER}
