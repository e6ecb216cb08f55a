"""The scripts that `test_warm.py` runs both ways."""

from pathlib import Path

from tests.trainer.warm_bench import Case

OBSERVED = Path(__file__).with_name("warm_observed.py").read_text()
WHO = "import sys\nprint(__name__, __file__, __package__, sys.argv, sys.path[:1])\n"
BOOM = "def broken():\n    raise ValueError('boom')\n"

# ---- What a script sees

SEEN = {
    "seen": Case(OBSERVED, ("script.py", "an argument", "")),
    "seen with torch": Case(OBSERVED, ("script.py", "torch")),
    "future": Case(
        "from __future__ import annotations\ndef f(x: int): pass\nprint(f.__annotations__)",
        told="{'x': 'int'}",
    ),
    "main": Case(
        """
        import __main__, inspect, os, runpy, sys
        class Row: pass
        if __name__ == "__main__":
            print(vars(__main__) is globals(), sys.modules[__name__] is __main__)
            print(inspect.getsource(sys.modules["__main__"])[:20], inspect.getfile(Row))
            print(sorted(runpy.run_path(__file__, run_name="again")))
            print(open(os.path.join(os.path.dirname(__file__), "data.txt")).read())
            print([frame.function for frame in inspect.stack()][:1])
        """,
        files={"data.txt": "rows"},
        told="rows",
    ),
    "variables that are set late": Case(
        """
        import os
        os.environ["MASTER_ADDR"] = "127.0.0.9"
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        os.environ.update({"NCCL_DEBUG": "INFO", "TORCH_NCCL_BLOCKING_WAIT": "1"}, WANDB_MODE="off")
        print(sorted(name for name in os.environ if name.startswith(("TOK", "CUDA", "MASTER"))))
        import torch
        print(torch.cuda.device_count(), os.environ["MASTER_ADDR"])
        """,
        told="127.0.0.9",
    ),
    "input": Case("import sys\nprint(repr(sys.stdin.read(10)))"),
}

# ---- How a script is found

FOUND = {
    "folder": Case(words=("./code/train.py", "-x"), files={"code/train.py": WHO}, told="train.py"),
    "link": Case(
        words=("linked.py",),
        files={"code/train.py": WHO + "import beside", "code/beside.py": "print('beside')"},
        links={"linked.py": "code/train.py"},
        told="beside",
    ),
    "module": Case(words=("-m", "a.train", "x"), files={"a/__init__.py": WHO, "a/train.py": WHO}),
    "relative import": Case(
        words=("-m", "a.train"),
        files={"a/train.py": "from . import b\nprint(b.X)", "a/b.py": "X = 'beside'"},
        told="beside",
    ),
    "no module": Case(words=("-m", "missing.train"), code=1, told="No module named 'missing'"),
    "module that fails": Case(
        words=("-m", "a.train"), files={"a/train.py": BOOM + "broken()"}, code=1, told="boom"
    ),
    "cookie": Case(
        files={"script.py": b"# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))\n"}, told="xe9"
    ),
    "module written by the script": Case(
        """
        import pathlib
        pathlib.Path(__file__).with_name("fresh.py").write_text("X = 'fresh'")
        import fresh
        print(fresh.X)
        """,
        told="fresh",
    ),
}

# ---- How a script ends

NESTED = """
try:
    {}['x']
except KeyError as error:
    raise RuntimeError('outer') from error
"""
# As every script with torch does. Without these, a recorded KeyboardInterrupt ends with code 1: the
# interpreter forgets it where recording imports what evaluates a text.
TRACED = "import json, traceback\n"
ENDS = {
    "exit 3": Case("import sys\nsys.exit(3)", code=3),
    "exception": Case(BOOM + "broken()", code=1, told="in broken"),
    "chained": Case(NESTED, code=1, told="direct cause"),
    "broken script": Case("return 1", code=1, told="SyntaxError"),
    "module fails": Case("import bad", files={"bad.py": BOOM + "broken()"}, code=1, told="bad.py"),
    "interrupted": Case(TRACED + "raise KeyboardInterrupt", code=-2, told="Keyboard"),
    "interrupt": Case(TRACED + "import os\nos.kill(os.getpid(), 2)\nwhile True: pass", code=-2),
    "killed": Case("import os\nprint(1)\nos.kill(os.getpid(), 9)", code=-9),
    "ended": Case("import os\nprint('now', end='')\nos._exit(5)", code=5, told="now"),
    "own handler": Case(
        "import os, signal, sys\n"
        "signal.signal(15, lambda *_: sys.exit(75))\nos.kill(os.getpid(), 15)",
        code=75,
    ),
    "at exit": Case(
        "import atexit\nfor n in 1, 2, 3: atexit.register(print, n)\nprint(0)", told="3\n2\n1"
    ),
    "error at exit": Case(
        "import atexit\natexit.register(lambda: 1 / 0)\natexit.register(print, 'first')",
        told="ZeroDivisionError",
    ),
    "thread": Case(
        """
        import threading, time
        def work():
            time.sleep(0.2)
            print("worked")
        threading.Thread(target=work).start()
        print("end")
        """,
        told="end\nworked",
    ),
    "thread that raises": Case(
        BOOM + "import threading\nt = threading.Thread(target=broken)\nt.start()\nt.join()",
        told="Exception in thread Thread-1",
    ),
    "destructor": Case(
        "class A:\n    def __del__(self): print('gone')\na = A()\nb = A()\nb.me = b\nprint('end')",
        told="end\ngone\ngone",
    ),
    "collected": Case(
        """
        import gc
        class A:
            def __del__(self): print("gone")
        a = A(); a.me = a; del a
        print(gc.collect() > 0, gc.isenabled())
        """,
        told="gone\nTrue",
    ),
    "hook as rich has it": Case(
        BOOM
        + """
import sys, traceback
def hook(kind, error, trace):
    for frame, line in traceback.walk_tb(trace):
        print(frame.f_code.co_filename, line)
sys.excepthook = hook
broken()
""",
        code=1,
        told="script.py",
    ),
    "no stdout": Case("import os\nos.close(1)\nprint('x')", code=1),
}

# ---- Other processes

PROCESSES = {
    "pickle": Case(
        """
        import copy, pickle, sys
        class Row:
            def __init__(self): self.x = [1]
        row = pickle.loads(pickle.dumps(Row()))
        print(type(row) is Row, Row.__module__, copy.deepcopy(row).x, pickle.dumps(Row())[:40])
        """,
        told="True __main__",
    ),
    "multiprocessing": Case(
        """
        import multiprocessing, os, sys
        FLAG = []
        def work(n):
            name = multiprocessing.current_process().name
            print(n, __name__, name, sys.argv[1:], FLAG, os.getcwd())
        if __name__ == "__main__":
            FLAG.append(1)
            for method in ("spawn", "fork", "forkserver"):
                context = multiprocessing.get_context(method)
                process = context.Process(target=work, args=(method,))
                process.start()
                process.join()
                print(process.exitcode, process.name)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(len, [[1, 2]]))
        """,
        ("script.py", "argument"),
        told="forkserver __mp_main__",
    ),
    "subprocess": Case(
        """
        import os, subprocess, sys
        print(os.path.basename(sys.executable))
        child = "import sys; print('torch' in sys.modules, hasattr(sys.exit, '__self__'), sys.argv)"
        subprocess.run([sys.executable, "-c", child, "x"], check=True)
        subprocess.run([sys.executable, "other.py"], check=True)
        print(subprocess.Popen.__module__, subprocess.Popen.__mro__)
        """,
        files={"other.py": "import sys\nprint('torch' in sys.modules, __file__)"},
        told="False True ['-c', 'x']",
    ),
    "fork": Case(
        """
        import os, sys
        pid = os.fork()
        if pid == 0:
            print("child", os.getppid() > 1)
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
        told="child True\n3",
    ),
    "exec": Case(
        "import os, sys\nif 'x' not in sys.argv:\n"
        "    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], 'x'])\n"
        "print(sys.argv)",
        told="'x'",
    ),
    "no children": Case(
        "import os\ntry:\n    os.wait()\nexcept ChildProcessError:\n    print('none')", told="none"
    ),
    "loaders": Case(
        """
        import os, torch, torch.multiprocessing
        from torch.utils.data import DataLoader, Dataset
        class Rows(Dataset):
            def __len__(self): return 6
            def __getitem__(self, i): return torch.full((2,), float(i))
        def work(rank, word):
            print(rank, word, __name__)
        def main():
            torch.manual_seed(3)
            for context, workers in (("fork", 2), ("spawn", 1)):
                rows = DataLoader(
                    Rows(), 2, shuffle=True, num_workers=workers, multiprocessing_context=context
                )
                print(context, [batch.tolist() for batch in rows])
            torch.multiprocessing.spawn(work, ("spawned",), nprocs=1)
        if __name__ == "__main__":
            main()
        """,
        told="spawned __mp_main__",
    ),
}

# ---- What must start cold

SET = "sets OMP_NUM_THREADS, which may be read at import"
COLD = {
    "broken": Case("x = = 2", cold="script.py cannot be read", code=1, told="SyntaxError"),
    "buffered": Case(
        "import os, sys\nprint('kept back')\nprint('told', file=sys.stderr)\nos._exit(0)",
        options=(),
        env={"PYTHONUNBUFFERED": ""},
        cold="-",
        told="told",
    ),
    "sets a variable": Case(
        "import os\nos.environ['OMP_NUM_THREADS'] = '2'\n"
        "import torch\nprint(torch.get_num_threads())",
        cold=f"script.py:2 {SET}",
        told="2",
    ),
    "a module sets it": Case(
        "import settings\nimport os\nprint(os.environ['OMP_NUM_THREADS'])",
        files={"settings.py": "import os\nos.environ['OMP_NUM_THREADS'] = '3'"},
        cold=f"settings.py:2 {SET}",
        told="3",
    ),
    "random beside it": Case(
        "import random\nprint(random.WHOSE)",
        files={"random.py": "WHOSE = 'mine'"},
        cold="random.py hides a module that is imported already",
        told="mine",
    ),
    "another path": Case(
        "import beside\nprint(beside.X)",
        files={"lib/beside.py": "X = 'found'"},
        env={"PYTHONPATH": "@PYTHONPATH:lib"},
        cold="PYTHONPATH is not as it was when torch was imported",
        told="found",
    ),
    "no script": Case(words=("missing.py",), cold="no script", code=2, told="can't open file"),
    "options of the interpreter": Case(
        "import sys\nprint(sys.flags.optimize)", options=("-u", "-O"), cold="-", told="1"
    ),
}

# ---- What no two processes may share

DRAWN = """
import json, multiprocessing, os, random, secrets, sys, tempfile, uuid
import numpy, torch
SEEN = {
    "random": random.random(),
    "numpy": numpy.random.rand(),
    "urandom": os.urandom(8).hex(),
    "uuid4": str(uuid.uuid4()),
    "secrets": secrets.token_hex(),
    "temporary": next(tempfile._get_candidate_names()),
    "authkey": bytes(multiprocessing.current_process().authkey).hex(),
    "torch": torch.rand(1).item(),
    "initial seed": torch.initial_seed(),
}
torch.manual_seed(3)
EQUAL = {"seeded": torch.rand(1).item(), "cuda": str(torch.cuda.is_initialized())}
print(json.dumps([SEEN, EQUAL]))
"""
RANDOM = {"one rank's": Case(DRAWN), "other rank's": Case(DRAWN)}

CASES = {**SEEN, **FOUND, **ENDS, **PROCESSES, **COLD, **RANDOM}
