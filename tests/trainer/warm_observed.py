"""What a script can see of its process, one line of JSON each; `test_warm.py` runs it."""

import sys

SEEN = [("modules", "torch" in sys.modules)]

import builtins  # noqa: E402
import gc  # noqa: E402
import json  # noqa: E402
import locale  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import threading  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, TextIO  # noqa: E402


def stream(file: TextIO) -> list[Any]:
    """All that is to be known of a standard stream."""
    buffer: Any = file.buffer
    known: Any = file
    return [
        [type(file).__name__, type(buffer).__name__, file.name, file.mode, file.fileno()],
        [known.line_buffering, known.write_through, file.encoding, file.errors],
        [known.newlines, file.isatty(), file.closed, file.readable(), file.writable()],
    ]


def handler(number: int) -> str:
    """A signal's handler, as a text."""
    found = signal.getsignal(number)
    return getattr(found, "__name__", None) or str(found)


def status(*names: str) -> dict[str, str]:
    """Fields of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {name: fields[name].strip() for name in names}


def files() -> dict[str, str]:
    """The open descriptors; one that was open for the look is closed again."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        flags = Path(f"/proc/self/fdinfo/{name}").read_text().split()[3]
        found[name] = f"{target} {flags}"
    return found


def see(name: str, value: Any) -> None:
    """Keep an observation."""
    SEEN.append((name, value))


def look() -> None:
    """Everything that is there before torch is imported."""
    main = sys.modules["__main__"]
    see("files", files())
    see("environ", dict(os.environ))
    see("environ order", list(os.environ))
    see("environ bytes", Path("/proc/self/environ").read_bytes().decode().split("\0"))
    see("cmdline", Path("/proc/self/cmdline").read_bytes().decode().split("\0"))
    see("exe", os.readlink("/proc/self/exe"))
    see("cwd", [os.getcwd(), os.readlink("/proc/self/cwd")])
    see("argv", [sys.argv, sys.orig_argv])
    see("path", sys.path)
    see("path hooks", [repr(hook) for hook in sys.path_hooks])
    finders = [getattr(f, "__name__", None) or type(f).__name__ for f in sys.meta_path]
    see("meta path", [name for name in finders if name != "ModuleFinder"])  # waits for torch
    see("flags", str(sys.flags))
    see("executable", [sys.executable, sys.prefix, sys.base_prefix, sys.exec_prefix])
    see("options", [sys.warnoptions, sys._xoptions, sys.dont_write_bytecode, sys.pycache_prefix])
    see("main", [main.__doc__, main.__package__, main.__spec__, main.__name__])
    see("main file", [main.__file__, vars(main).get("__cached__", "none")])
    see("main loader", [type(main.__loader__).__name__, vars(main.__loader__)])
    see("main names", sorted(name for name in vars(main) if name.startswith("__")))
    see("main builtins", vars(main)["__builtins__"] is builtins)
    see("main annotations", vars(main).get("__annotations__", "none"))
    see("main is here", main.__dict__ is globals())
    see("sitecustomize", [sys.modules[n].__file__ for n in ("sitecustomize",) if n in sys.modules])
    see("handlers", {n: handler(n) for n in sorted(signal.valid_signals())})
    see("mask", sorted(map(str, signal.pthread_sigmask(signal.SIG_BLOCK, []))))
    see("status", status("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd", "Threads", "Umask"))
    see("name", status("Name"))
    see("leader", [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()])
    see("parent", Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0"))
    see("oom", int(Path("/proc/self/oom_score_adj").read_text()))
    see("collector", [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)])
    see("streams", [stream(sys.stdout), stream(sys.stderr), stream(sys.stdin)])
    see("streams kept", [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__])
    hooks = [sys.excepthook, sys.exit, os._exit, sys.displayhook, sys.unraisablehook]
    see("hooks", [[getattr(h, "__qualname__", ""), getattr(h, "__module__", "")] for h in hooks])
    see("handlers of exits", [sys.__excepthook__.__name__, hasattr(sys, "last_value")])
    see("thread", [threading.current_thread() is threading.main_thread(), threading.active_count()])
    see("thread name", [threading.main_thread().name, threading.main_thread().daemon])
    see("thread id", threading.main_thread().native_id == os.getpid() == threading.get_native_id())
    see("locale", [locale.setlocale(locale.LC_ALL, None), locale.getpreferredencoding(False)])


def look_at_torch() -> None:
    """What importing torch leads to."""
    import faulthandler
    import logging
    import multiprocessing
    import random
    import tempfile
    import warnings

    import torch

    filters = [str(entry) for entry in warnings.filters]
    see("filters", [entry for entry in filters if "SymPyDeprecation" not in entry])  # by dynamo
    see("showwarning", warnings.showwarning.__module__)
    see("root", [str(logging.root.handlers), logging.root.level, logging.lastResort is not None])
    torchs = logging.getLogger("torch")
    see("torch logger", [str(torchs.handlers), torchs.level])
    see("faulthandler", faulthandler.is_enabled())
    see("start method", multiprocessing.get_start_method(allow_none=True))
    process = multiprocessing.current_process()
    see("process", [process.name, type(process).__name__, process.pid == os.getpid()])
    see("parent process", multiprocessing.parent_process())
    see("children", multiprocessing.active_children())
    see("temporary", tempfile.gettempdir())
    see("seeded", [torch.manual_seed(7).initial_seed(), torch.rand(3).tolist()])
    random.seed(7)
    see("seeded too", [random.random(), random.gauss(0, 1)])
    see("threads", [torch.get_num_threads(), torch.get_num_interop_threads()])
    see("default", [str(torch.get_default_dtype()), str(torch.get_default_device())])
    see("grad", [torch.is_grad_enabled(), torch.is_inference_mode_enabled()])
    see("deterministic", torch.are_deterministic_algorithms_enabled())
    see("cuda", [torch.cuda.is_available(), torch.cuda.device_count()])
    see("distributed", [torch.distributed.is_available(), torch.distributed.is_initialized()])
    see("threads after", len(os.listdir("/proc/self/task")))


look()
if "torch" in sys.argv:
    look_at_torch()
for entry in SEEN:
    print(json.dumps(entry))
