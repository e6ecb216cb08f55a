"""Failures of the script alone: no torch in it, so that each takes a moment.

`launcher: python`, two pods, of which the one that is not to blame waits; or torchrun, two
processes in one pod.
"""

from tests.api.failures.table import Cause, Kind, exception, exit_code, killed, text

HEAD = """
import os, resource, signal, sys, time
rank = int(os.environ["RANK"])
victim = rank == {rank}
if not victim:
    time.sleep(600)
"""
PYTHON = {"launcher": "python"}
LAUNCH = ["python3", "-m", "torch.distributed.run"]
ACCELERATE = ["python3", "-m", "accelerate.commands.launch"]
TORCHRUN = {"nnodes": 1, "nprocPerNode": 2}


def script(body: str, rank: int = 1) -> str:
    """Rank `rank` does this; the others wait."""
    return HEAD.format(rank=rank).lstrip() + text(body)


ARGUMENTS = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, required=True)
    parser.parse_args()
"""
CLICK = """
    import click

    @click.command()
    @click.option("--epochs", type=int)
    def train(epochs):
        pass

    train(["--epochs", "ten"])
"""
TYPER = """
    import typer

    def train(epochs: int):
        pass

    sys.argv[1:] = ["ten"]
    typer.run(train)
"""
LOGGED = """
    import logging

    def train():
        try:
            raise OSError("cannot read config.yaml")
        except OSError:
            logging.exception("training failed")
            return 1
        return 0

    sys.exit(train())
"""
PROBED = """
    import subprocess
    subprocess.call([sys.executable, "-c", "import nothing_of_that_name"])
    time.sleep(4)
    {end}
"""
SAVE = """
    os.makedirs("kept", exist_ok=True)
    os.chmod("kept", 0o700)
    if os.geteuid() == 0:  # whom permissions do not hold
        os.seteuid(65534)
    try:
        open("kept/step-100.pt", "wb")
    finally:
        os.seteuid(os.getuid())
"""
FILES = """
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    shards = []
    while True:
        shards.append(open(__file__))
"""
MEMORY = """
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
    rows = []
    while True:
        rows.append(bytearray(2**20))
"""
SMALL = """
    resource.setrlimit(resource.RLIMIT_AS, (2**27, 2**27))
    def load():
        rows = []
        while True:
            rows.append([len(rows)] * 4)
    load()
"""
SEGV = "import ctypes\nctypes.string_at(0)"
TAKES = "def parse(depth):\n    return parse(depth + 1)\nparse(0)"
LATE = """
    def parts(path):
        raise FileNotFoundError(2, "No such file or directory", path)

    try:
        parts("/data/train")
    except OSError as problem:
        raise RuntimeError("the data set cannot be read") from problem
"""

KINDS = (
    Kind(
        "exception on rank 1",
        exception("ValueError", "no such label: 11"),
        script("raise ValueError('no such label: 11')"),
        PYTHON,
    ),
    Kind(
        "exception on rank 0",
        exception("KeyError", "'weights'", rank=0),
        script("{}['weights']", 0),
        PYTHON,
    ),
    Kind(
        "exception, under torchrun, without @record",
        exception("ValueError", "no such label: 11", node_rank=0),
        script("raise ValueError('no such label: 11')"),
        TORCHRUN,
    ),
    Kind(
        "exception from another exception",
        exception("RuntimeError", "the data set cannot be read"),
        script(LATE),
        PYTHON,
    ),
    Kind(
        "missing data file",
        exception("FileNotFoundError", "/data/train.bin"),
        script("open('/data/train.bin')"),
        PYTHON,
    ),
    Kind(
        "exception at import of the user's module",
        exception("OSError", "no tokenizer"),
        script("import model"),
        PYTHON,
        files={"model.py": "raise OSError('no tokenizer')\n"},
    ),
    Kind(
        "SyntaxError in the script",
        exception("SyntaxError", "train.py, line 1", rank=0),
        "while True print('step')\n",
        {**PYTHON, "nnodes": 1},
    ),
    Kind(
        "SyntaxError in the user's module",
        exception("SyntaxError", "model.py, line 1"),
        script("import model"),
        PYTHON,
        files={"model.py": "class Model(:\n"},
    ),
    Kind(
        "missing import in the script",
        exception("ModuleNotFoundError", "No module named 'apexx'"),
        script("import apexx"),
        PYTHON,
    ),
    Kind("sys.exit(2)", exit_code(2), script("sys.exit(2)"), PYTHON),
    Kind("sys.exit(3), under torchrun", exit_code(3, node_rank=0), script("sys.exit(3)"), TORCHRUN),
    Kind("sys.exit(77)", exit_code(77), script("sys.exit(77)"), PYTHON),
    Kind("os._exit(5)", exit_code(5), script("os._exit(5)"), PYTHON),
    Kind(
        "sys.exit with a sentence",
        exit_code(1, "no GPU is free"),
        script("sys.exit('no GPU is free')"),
        PYTHON,
    ),
    Kind(
        "raise SystemExit with a sentence",
        exit_code(1, "no GPU is free"),
        script("raise SystemExit('no GPU is free')"),
        PYTHON,
    ),
    Kind(
        "sentence on stderr, then sys.exit(1)",
        exit_code(1, "last on stderr: no GPU is free"),
        script("print('no GPU is free', file=sys.stderr)\nsys.exit(1)"),
        PYTHON,
    ),
    Kind(
        "exception that is logged, then sys.exit after the handler",
        exit_code(1, "OSError: cannot read config.yaml"),
        script(LOGGED),
        PYTHON,
    ),
    Kind(
        "sys.exit(1), long after a helper process failed",
        exit_code(1, "exited with code 1"),
        script(PROBED.format(end="sys.exit(1)")),
        PYTHON,
    ),
    Kind(
        "sys.exit with a sentence, just after a helper process failed",
        exit_code(1, "no GPU is free", node_rank=0),
        script(PROBED.format(end="sys.exit('no GPU is free')").replace("sleep(4)", "sleep(0)")),
        TORCHRUN,
    ),
    Kind(
        "exit code 75: saved, and wants to go on",
        Cause("Preempted", exit_code=75, message=("saved and stopped",)),
        script("sys.exit(75)"),
        PYTHON,
    ),
    Kind(
        "exception that is caught, then sys.exit",
        exit_code(4, "cannot read config.yaml"),
        script(
            """
            try:
                raise OSError("cannot read config.yaml")
            except OSError as problem:
                print(problem)
                sys.exit(4)
            """
        ),
        PYTHON,
    ),
    Kind(
        "unknown argument for argparse",
        exit_code(2, "train.py: error: unrecognized arguments: --lr=0.1"),
        script(ARGUMENTS),
        PYTHON | {"args": ["--epochs", "3", "--lr=0.1"]},
    ),
    Kind(
        "--local_rank, which torchrun does not pass",
        exit_code(2, "required: --local_rank; torchrun sets LOCAL_RANK", node_rank=0),
        script(ARGUMENTS.replace("--epochs", "--local_rank")),
        TORCHRUN,
    ),
    Kind(
        "wrong value for click",
        exit_code(2, "'ten' is not a valid integer"),
        script(CLICK),
        PYTHON,
    ),
    Kind(
        "wrong value for typer, under torchrun",
        exit_code(2, "Invalid value for", node_rank=0),
        script(TYPER),
        TORCHRUN,
    ),
    Kind(
        "SIGKILL",
        killed("SIGKILL"),
        script("os.kill(os.getpid(), signal.SIGKILL)"),
        PYTHON,
    ),
    Kind(
        "SIGKILL of rank 0, under torchrun",
        killed("SIGKILL", rank=0),
        script("os.kill(os.getpid(), signal.SIGKILL)", 0),
        TORCHRUN,
    ),
    Kind("SIGSEGV", killed("SIGSEGV"), script(SEGV), PYTHON),
    Kind("SIGSEGV, under torchrun", killed("SIGSEGV", node_rank=0), script(SEGV), TORCHRUN),
    Kind("SIGABRT", killed("SIGABRT"), script("os.abort()"), PYTHON),
    Kind(
        "SIGTERM to itself",
        killed("SIGTERM"),
        script("os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)"),
        PYTHON,
    ),
    Kind(
        "SIGTERM to itself, under torchrun",
        killed("SIGTERM", node_rank=0),
        script("os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)"),
        TORCHRUN,
    ),
    Kind(
        "KeyboardInterrupt",
        # Python ends by SIGINT itself, so that a shell knows
        Cause("Exception", signal="SIGINT", exception="KeyboardInterrupt", message=("Keyboard",)),
        script("signal.raise_signal(signal.SIGINT)"),
        PYTHON,
    ),
    Kind(
        "missing script, launcher python",
        Cause("LaunchFailed", 0, exit_code=2, message=("/app/train.py",)),
        spec={**PYTHON, "nnodes": 1, "args": ["/app/train.py"]},
    ),
    Kind(
        "missing module for -m, launcher python",
        Cause("LaunchFailed", 0, exit_code=1, message=("No module named trainer",)),
        spec={**PYTHON, "nnodes": 1, "args": ["-m", "trainer"]},
    ),
    Kind(
        "missing script, torchrun",
        Cause("LaunchFailed", 0, message=("no script '/app/train.py'",)),
        spec={"nnodes": 1, "args": ["/app/train.py"]},
    ),
    Kind(
        "missing module for -m, torchrun",
        Cause("LaunchFailed", 0, message=("no module 'trainer.main'",)),
        spec={"nnodes": 1, "args": ["-m", "trainer.main"]},
    ),
    Kind(
        "option that torchrun does not know, in a command",
        Cause("LaunchFailed", 0, None, 2, None, None, ("arguments: --rdzv-port=1",)),
        spec={"nnodes": 1, "command": [*LAUNCH, "--rdzv-port=1", "/app/train.py"]},
    ),
    Kind(
        "option that accelerate does not know, in a command",
        Cause("LaunchFailed", 0, None, 2, None, None, ("unrecognized arguments: --num-gpus",)),
        spec={"nnodes": 1, "command": [*ACCELERATE, "--num-gpus", "2", "train.py"]},
    ),
    Kind(
        "option that torchrun does not know, behind a shell",
        Cause("LaunchFailed", 0, None, 2, None, None, ("arguments: --rdzv-port=1",)),
        spec={"nnodes": 1, "command": ["sh", "-c", " ".join([*LAUNCH, "--rdzv-port=1", "x.py"])]},
    ),
    Kind(
        "missing script, torchrun in a command",
        Cause("LaunchFailed", 0, exit_code=2, message=("no script '/app/train.py'",)),
        spec={"nnodes": 1, "command": [*LAUNCH, "--standalone", "/app/train.py"]},
    ),
    Kind(
        "missing script, launcher accelerate",
        Cause("LaunchFailed", 0, exit_code=2, message=("no script '/app/train.py'",)),
        spec={"launcher": "accelerate", "nnodes": 1, "args": ["/app/train.py"]},
    ),
    Kind(
        "missing module for -m, launcher accelerate, two processes",
        Cause("LaunchFailed", None, exit_code=1, message=("No module named trainer",)),
        spec={
            **{"launcher": "accelerate", "nnodes": 1, "nprocPerNode": 2},
            "args": ["-m", "trainer"],
        },
    ),
    Kind(
        "missing command",
        Cause("LaunchFailed", 0, message=("cannot start '/opt/bin/train'",)),
        spec={"nnodes": 1, "command": ["/opt/bin/train"]},
    ),
    Kind(
        "more processes than devices, under torchrun",
        exception("RuntimeError", "invalid device ordinal: 1", node_rank=0),
        """
        import os, time
        if int(os.environ["LOCAL_RANK"]) >= 1:
            raise RuntimeError(f"invalid device ordinal: {os.environ['LOCAL_RANK']}")
        time.sleep(600)
        """,
        TORCHRUN,
    ),
    Kind(
        "no space left on the disk",
        exception("OSError", "No space left on device"),
        script("with open('/dev/full', 'wb') as file:\n    file.write(bytes(10**6))"),
        PYTHON,
    ),
    Kind(
        "checkpoint over the file size limit",
        exception("OSError", "File too large"),
        script(
            """
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))
            with open("checkpoint.pt", "wb") as file:
                file.write(bytes(10**6))
            """
        ),
        PYTHON,
    ),
    Kind("too many open files", exception("OSError", "Too many open files"), script(FILES), PYTHON),
    Kind(
        "no permission on the checkpoint folder",
        exception("PermissionError", "Permission denied: 'kept/step-100.pt'"),
        script(SAVE),
        PYTHON,
    ),
    Kind(
        "damaged checkpoint",
        exception("EOFError", "Ran out of input"),
        script("import io, pickle\npickle.load(io.BytesIO(b''))"),
        PYTHON,
    ),
    Kind("recursion without end", exception("RecursionError"), script(TAKES), PYTHON),
    Kind("MemoryError, large arrays", exception("MemoryError"), script(MEMORY), PYTHON),
    Kind("MemoryError, small objects", exception("MemoryError"), script(SMALL), PYTHON),
    Kind(
        "unpicklable argument of a child process",
        exception("AttributeError", "Can't pickle local object"),
        """
        import multiprocessing, os, time

        def main():
            def work():
                pass
            multiprocessing.get_context("spawn").Process(target=work).start()

        if __name__ == "__main__":
            if os.environ["RANK"] != "1":
                time.sleep(600)
            main()
        """,
        PYTHON,
    ),
    Kind(
        "NaN check that raises",
        exception("FloatingPointError", "loss is nan at step 3"),
        script("raise FloatingPointError(f'loss is {float(\"nan\")} at step 3')"),
        PYTHON,
    ),
    Kind(
        "shell script whose Python fails",
        exception("ValueError", "no such label"),
        spec={"command": ["sh", "-c", "echo begin; python3 $0; exit $?", "{folder}/train.py"]},
        script=script("raise ValueError('no such label')"),
    ),
)
