"""The cause that processes leave behind, where no launcher names it."""

from ddpjob_agent.evidence import gather


def test_a_launcher_that_takes_long_to_end_has_named_its_child() -> None:
    words = {"code": 2, "by": "python", "message": "no script '/app/train.py'"}
    exits = [{"pid": 2, "time": 100.0, "program": "/app/train.py", **words}]
    told = {"type": "CalledProcessError", "message": "Command returned 2", "traceback": ""}
    errors = [{"pid": 1, "time": 101.0, "program": "accelerate.commands.launch", **told}]
    launcher = {"pid": 1, "exitcode": 1, "ended_at": 130.0}
    (failure,) = gather(errors, exits, {}, 131.0).judge(1, launcher, crowd=False)
    assert failure.message == "exited with code 2: no script '/app/train.py'"
