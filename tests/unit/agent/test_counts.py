"""Counted steps, exact at any moment: the agent as a process around scripts without torch."""

from textwrap import indent

import pytest

from ddpjob_agent.progress import read_pages
from tests.agentpod import Pod, Pods
from tests.unit.agent.scripts import STEP, fake_optimizers, kept, start


def stepping(pods: Pods, text: str, **more: str | None) -> Pod:
    """A script that can call step()."""
    more["PYTHONPATH"] = fake_optimizers(pods)
    return start(pods, STEP + text, rank=0, nnodes=1, **more)


@pytest.mark.parametrize(
    "end",
    ["", "os._exit(4)", "os.kill(os.getpid(), 9)"],
    ids=["ends", "exits-at-once", "killed"],
)
def test_the_last_step_is_told_however_the_script_ends(pods: Pods, end: str) -> None:
    """Without a moment between the step before it and the end."""
    pod = stepping(pods, "step(5)\n" + end)
    pod.wait()
    assert pod.summary["progress"]["step"] == 5


def test_a_hang_is_told_after_the_step_that_was_the_last(pods: Pods) -> None:
    pod = stepping(pods, "step(5)\ntime.sleep(1000)", DDPJOB_HANG_SECONDS="1")
    assert pod.wait() == 76
    assert "after step 5;" in pod.summary["message"]


def test_every_step_is_seen_while_the_script_runs(pods: Pods) -> None:
    text = """
for i in range(3):
    step()
    while not os.path.exists(f"seen-{i + 1}"):
        time.sleep(0.02)
"""
    pod = stepping(pods, text)
    for i in (1, 2, 3):
        pod.until(lambda i=i: pod.progress().get("step") == i)  # type: ignore[misc]
        (pod.folder / f"seen-{i}").touch()
    assert pod.wait() == 0


@pytest.mark.parametrize(
    ("limit", "folder"),
    [("resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))", None), ("", "/proc/nowhere")],
    ids=["full", "absent"],
)
def test_where_no_page_can_be_made_the_training_goes_on(
    pods: Pods, limit: str, folder: str | None
) -> None:
    text = f"import resource\n{limit}\nstep(5)\nassert hook.step == 5\nsys.exit(6)"
    text = text.replace("hook.", "optimizer.hooks[0].__self__.")
    pod = stepping(pods, text, **({"DDPJOB_RUN_DIR": folder} if folder else {}))
    assert pod.wait() == 1
    assert pod.summary["exit_code"] == 6, pod.log
    assert pod.summary["progress"]["source"] == "none"
    assert folder or not any(name.startswith("steps-") for name in kept(pod))


def test_a_forked_child_counts_its_own_steps(pods: Pods) -> None:
    text = """
step(3)
child = os.fork()
step(100 if child == 0 else 1)
if child:
    os.waitpid(child, 0)
    os.environ["IN"] = str(child)
    print("child", child)
"""
    pod = stepping(pods, text, LOCAL_RANK=None)
    assert pod.wait() == 0, pod.log
    steps = {page.step for page in read_pages(str(pod.folder / "run"))}
    assert steps == {4, 100}


def test_of_several_optimizers_the_one_that_stepped_most_often_counts(pods: Pods) -> None:
    text = """
hook, (a, b, c) = optimizer.hooks[0], "abc"
told = []
for one in [a, b, a, b, b, b, c, a, a, a, a, c]:
    hook(one, (), {})
    told.append(hook.__self__.step)
assert told == [1, 1, 2, 2, 3, 4, 4, 4, 4, 5, 6, 6], told
"""
    pod = stepping(pods, text)
    assert pod.wait() == 0, pod.log
    assert pod.summary["progress"]["step"] == 6


def test_who_makes_no_step_leaves_no_page(pods: Pods) -> None:
    pod = stepping(pods, "os.fork() or os._exit(0)\nos.wait()")
    assert pod.wait() == 0 and kept(pod) == []


SLOWLY = "for _ in range(15):\n    step()\n    time.sleep(0.2)\n"


@pytest.mark.parametrize(
    "second",
    ["sgd = object()\n" + SLOWLY, "if os.fork():\n    os.wait()\nelse:\n" + indent(SLOWLY, "    ")],
    ids=["optimizer", "process"],
)
def test_steps_of_a_second_one_are_signs_of_life_before_it_overtakes(
    pods: Pods, second: str
) -> None:
    pod = stepping(pods, "step(100)\n" + second, DDPJOB_HANG_SECONDS="2")
    assert pod.wait() == 0, pod.log
    assert pod.summary["progress"]["step"] == 100
