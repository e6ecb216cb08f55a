"""What a process says as it ends: the agent as a process around scripts without torch.

`crowd` has two nodes, so that a failure may be the echo of another pod's.
"""

import sys
import textwrap
from typing import Any

import pytest

from tests.agentpod import Pods
from tests.unit.agent.scripts import fake_optimizers, fake_torch, interpreter, kept, script, start

GLOO = (
    "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] "
    "Connection closed by peer [127.0.0.1]:42154"
)
CONSEQUENCE = f"RuntimeError({GLOO!r})"


def crowd(pods: Pods, text: str, **more: str | None) -> dict[str, Any]:
    """The summary of a pod of two whose script ends with 1."""
    pod = start(pods, text, rank=0, nnodes=2, **more)
    assert pod.wait() == 1, pod.log
    return pod.summary


CAUGHT = """
    import logging, traceback
    def step():
        raise {error}
    try:
        step()
    except Exception as error:
        {handler}
"""
HANDLERS = {
    "in the handler": "sys.exit(1)",
    "with other words": "sys.exit('training failed')",
    "with its words": "sys.exit(f'training failed: {error}')",
    "at once": "os._exit(1)",
    "wrapped": "raise ValueError('step 3 failed') from error",
    "wrapped, its origin hidden": "raise ValueError('step 3 failed') from None",
    "after the handler, logged": "logging.exception('training failed')\n    sys.exit(1)",
    "after the handler, formatted": "logging.error(traceback.format_exc())\n    sys.exit(1)",
    "after the handler, in words": "logging.error('training failed: %s', error)\n    sys.exit(1)",
    # rich and others call it so.
    "after the handler, by keywords": "parts = {'exc_type': type(error), 'exc_value': error}\n"
    "        report = traceback.TracebackException(**parts, exc_traceback=None)\n"
    "        sys.stderr.writelines(report.format())\n    sys.exit(1)",
}


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_a_failure_stays_what_it_is_however_it_is_handled(pods: Pods, handler: str) -> None:
    echo = crowd(pods, CAUGHT.format(error=CONSEQUENCE, handler=handler))
    assert (echo["peer"], echo["suspect"]) == (True, False), echo
    own = crowd(pods, CAUGHT.format(error="OSError('no such label')", handler=handler))
    by_line = "last on stderr" in own["message"]
    assert (own["peer"], own["suspect"]) == (by_line, by_line), own


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    step()\nexcept Exception as error:\n    print(error)\nsys.exit(1)",
        "sys.exit(1)",
        "os._exit(1)",
    ],
)
def test_an_end_without_a_reason_is_a_suspect_among_other_pods_alone(pods: Pods, text: str) -> None:
    text = f"def step():\n    raise {CONSEQUENCE}\n" + text
    several = crowd(pods, text)
    assert (several["peer"], several["suspect"]) == (True, True), several
    assert several["reason"] == "ExitCode"
    pod = start(pods, text)
    assert pod.wait() == 1 and pod.summary["peer"] is False


def test_what_was_printed_before_another_step_explains_no_exit(pods: Pods) -> None:
    """The hooks of a module that stands in for torch's optimizers are called like torch's."""
    text = f"""
        import logging
        from torch.optim import optimizer
        try:
            raise {CONSEQUENCE}
        except RuntimeError:
            logging.exception("a retry follows")
        if {{steps}}:
            optimizer.hooks[0](object(), (), {{{{}}}})
        sys.exit(1)
    """
    path = {"PYTHONPATH": fake_optimizers(pods)}
    assert "Connection closed" in crowd(pods, text.format(steps=False), **path)["message"]
    told = crowd(pods, text.format(steps=True), **path)
    assert "exited with code 1; last on stderr" in told["message"], "and no exception of before"


def test_an_own_exception_speaks_before_the_noise_of_its_clean_up(pods: Pods) -> None:
    text = f"try:\n    raise KeyError('label')\nfinally:\n    raise {CONSEQUENCE}"
    told = crowd(pods, text)
    assert (told["exception"], told["message"]) == ("KeyError", "KeyError: 'label'")
    assert (told["peer"], told["suspect"]) == (True, True), "perhaps it was of no account"


PARSER = "import argparse\nargparse.ArgumentParser('train.py').parse_args(['--lr'])"
OWN = "try:\n    raise OSError('no such data')\nexcept OSError as problem:\n    sys.exit(4)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise SystemExit('no GPU\\nis free')", "exited with code 1: no GPU is free"),
        (PARSER, "exited with code 2: train.py: error: unrecognized arguments: --lr"),
        (OWN, "exited with code 4: OSError: no such data"),
        # Words that were taken back, or that nobody knows to be the last, are not believed.
        ("try:\n    sys.exit('no')\nexcept SystemExit:\n    os._exit(1)", "exited with code 1"),
        ("try:\n    sys.exit('a')\nexcept SystemExit:\n    raise SystemExit('b')", "code 1: b"),
        ("sys.exit(-1)", "exited with code 255"),
        ("print('no GPU', file=sys.stderr)\nsys.exit(3)", "code 3; last on stderr: no GPU"),
    ],
)
def test_the_words_of_an_exit_are_kept(pods: Pods, text: str, message: str) -> None:
    pod = start(pods, text)
    assert pod.wait() == 1
    assert (pod.summary["reason"], pod.summary["message"][-len(message) :]) == ("ExitCode", message)


def test_what_stderr_is_stays_what_it_is(pods: Pods) -> None:
    text = """
        import io
        assert type(sys.stderr) is io.TextIOWrapper and sys.stderr is sys.__stderr__
        try:
            sys.stderr.write(b"bytes")
        except TypeError:
            assert sys.stderr.write("four") == 4
        sys.stderr.write("x" * 10**7)
        sys.exit(3)
    """
    pod = start(pods, text)
    assert pod.wait() == 1 and pod.summary["exit_code"] == 3
    assert pod.log_path.stat().st_size > 10**7


# ---- Whose end it was


def test_a_helper_that_failed_before_a_step_explains_nothing(pods: Pods) -> None:
    """Behind a shell, where nobody else has left a record."""
    train = script(
        pods,
        "from torch.optim import optimizer\noptimizer.hooks[0](object(), (), {})\n"
        "time.sleep(1.5)\nraise SystemExit(1)",
    )
    probe = f"{sys.executable} -c 'import nothing_of_that_name'; sleep 1.5"
    shell = f"{probe}; {sys.executable} {train}"
    pod = pods.start(
        "command", "--", "sh", "-c", shell, changes={"PYTHONPATH": fake_optimizers(pods)}
    )
    assert pod.wait() == 1
    assert (pod.summary["message"], pod.summary["exception"]) == ("exited with code 1", None)


def test_a_python_that_passes_its_childs_code_on_is_seen_through(pods: Pods) -> None:
    train = pods.root / "train.py"
    train.write_text("raise ValueError('no such label')")
    pod = start(pods, f"sys.exit(subprocess.call([sys.executable, {str(train)!r}]))")
    assert pod.wait() == 1
    assert pod.summary["message"] == "ValueError: no such label"


# ---- Launchers


def test_a_launcher_without_torch_is_no_failure_of_the_script(pods: Pods) -> None:
    text = "raise ModuleNotFoundError('No module named torch', name='torch')"
    path = fake_torch(pods.root / "launcher", "distributed/run", text)
    (pods.root / "torchrun").write_text("import torch.distributed.run")
    command = ["command", "--", sys.executable, str(pods.root / "torchrun"), "train.py"]
    pod = pods.start(*command, changes={"PYTHONPATH": path})
    assert pod.wait() == 1
    assert pod.summary["reason"] == "LaunchFailed", pod.summary


# ---- What is the script's


def test_descriptors_of_the_script_are_left_alone(pods: Pods) -> None:
    """It may close all that it did not open, as daemons do, and the numbers are its own then."""
    text = """
        os.closerange(3, 64)
        mine = [os.open(f"mine-{i}", os.O_CREAT | os.O_RDWR) for i in range(12)]
        for number in mine:
            os.write(number, b"before")
        child = os.fork()
        for i, number in enumerate(mine):
            os.lseek(number, 0, 0)
            assert os.read(number, 100) == b"before", (child, i)
        if child:
            assert os.waitpid(child, 0)[1] == 0
        def hook(kind, error, trace, before=sys.excepthook):
            before(kind, error, trace)
            for number in mine:
                os.fstat(number)
            open("kept", "w").close()
        if child:
            sys.excepthook = hook
            raise ValueError("boom")
    """
    pod = start(pods, text)
    assert pod.wait() == 1, pod.log
    assert pod.summary["message"] == "ValueError: boom", pod.log
    assert (pod.folder / "kept").exists(), pod.log


def test_a_record_that_cannot_be_written_is_told_once(pods: Pods) -> None:
    pod = start(pods, "raise ValueError('boom')", DDPJOB_RUN_DIR="/proc/nowhere")
    assert pod.wait() == 1
    assert pod.log.count("ddpjob: exception not recorded") == 1
    assert "Exception ignored" not in pod.log


@pytest.mark.deep
@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13"])
def test_older_and_newer_pythons_have_the_same_hooks(pods: Pods, version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version}")
    texts = {
        "raise SystemExit('no GPU')": "exited with code 1: no GPU",
        "raise ValueError('boom')": "ValueError: boom",
        textwrap.dedent(
            CAUGHT.format(error=CONSEQUENCE, handler="logging.exception('x')\n    sys.exit(1)")
        ): (f"exited with code 1: RuntimeError: {GLOO}"),
    }
    for text, message in texts.items():
        command = ["command", "--", python, script(pods, text)]
        pod = pods.start(*command)
        assert pod.wait() == 1, pod.log
        assert pod.summary["message"] == message, pod.log
        assert "ddpjob: " not in pod.log


def test_whoever_ends_well_leaves_nothing_behind(pods: Pods) -> None:
    text = "print('a warning', file=sys.stderr)\nos.fork() or os._exit(0)\nos.wait()"
    pod = start(pods, text)
    assert pod.wait() == 0 and kept(pod) == []
