"""Which ranks stand at the same place, by what their agents answer."""

from ddpjob.client.agents import Answer, group, read_stacks
from ddpjob.cluster.logs import local_pod
from ddpjob_agent.failures.stacks import Process

SITE = "/usr/lib/python3/site-packages"


def stack(*frames: tuple[str, str, int]) -> str:
    """What faulthandler writes; the innermost frame comes first."""
    lines = [f'  File "{file}", line {line} in {function}' for function, file, line in frames]
    other = 'Thread 0x1 (most recent call first):\n  File "/x.py", line 1 in elsewhere\n\n'
    return other + "\n".join(["Current thread 0x2 (most recent call first):", *lines])


REDUCE = stack(
    ("all_reduce", f"{SITE}/torch/distributed/c10d.py", 2501), ("step", "/src/train.py", 88)
)
OPEN = stack(("__getitem__", "/src/data.py", 41), ("step", "/src/train.py", 80))


def shown(rank: int, stacks: str, *, pid: int = 0, threads: tuple[str, ...] = ()) -> str:
    """A process as the agent shows it."""
    return Process(
        pid or 100 + rank, rank, rank, "python -u train.py", True, stacks, [*threads]
    ).text()


def test_the_rank_that_is_elsewhere_is_marked() -> None:
    stacks = {rank: shown(rank, OPEN if rank == 13 else REDUCE) for rank in range(32)}
    most, odd = group(stacks)
    assert (most.ranks, most.differs) == (tuple(r for r in range(32) if r != 13), False)
    assert most.place == (
        "all_reduce (torch/distributed/c10d.py:2501), called by step (/src/train.py:88)"
    )
    assert (odd.ranks, odd.differs) == ((13,), True)
    assert odd.place == "__getitem__ (/src/data.py:41)"


def test_of_two_equal_groups_none_is_marked() -> None:
    groups = group({0: shown(0, REDUCE), 1: shown(1, OPEN)})
    assert [(each.ranks, each.differs) for each in groups] == [((0,), False), ((1,), False)]
    (alone,) = group({0: shown(0, REDUCE), 1: shown(1, REDUCE)})
    assert not alone.differs
    assert group({}) == []


def test_a_rank_that_does_not_answer_has_its_state() -> None:
    stopped = shown(0, "", threads=("python: state T (stopped), in do_signal_stop",))
    first, second = group({0: stopped, 1: shown(1, REDUCE), 2: shown(2, REDUCE)})
    assert second.ranks == (0,) and second.differs and second.frames == ()
    assert second.place == "no answer: state T (stopped), in do_signal_stop"
    (unknown,) = group({0: shown(0, "")})
    assert unknown.place == "no answer: nothing is known"


def test_a_pod_answers_for_its_own_ranks_alone() -> None:
    text = shown(4, REDUCE) + shown(5, OPEN) + shown(5, REDUCE, pid=300) + shown(9, OPEN)
    text += "--- pid 7: python helper.py\n" + OPEN
    pod = local_pod("digits", 0, node_rank=1)
    found = read_stacks([Answer(pod, text.encode())], processes=4)
    assert sorted(found) == [4, 5]
    assert "__getitem__" in found[5] and "pid 105" in found[5]  # the first process of the rank
    assert read_stacks([Answer(pod, b"no Python process with our hooks\n")], 8) == {}
