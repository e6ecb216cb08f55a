"""Restarts in place beside ranks that harm what the agent rests on: its fork server, its folder."""

import pytest

pytest.importorskip("torch")

from tests.agentpod import Pods
from tests.trainer.rounds import act, train

pytestmark = pytest.mark.deep


REMOVED = "import shutil; shutil.rmtree(os.environ['DDPJOB_RUN_DIR'])"
FILLED = """
for number in range(30_000):
    open(f"{os.environ['DDPJOB_RUN_DIR']}/a{number}", "w").close()
"""


@pytest.mark.parametrize("harm", [REMOVED, FILLED], ids=["removed", "filled"])
def test_the_cause_is_known_though_a_rank_has_harmed_the_run_folder(pods: Pods, harm: str) -> None:
    operator = train(pods, nnodes=1)
    act(pods, 0, 0, f"{harm}\nraise ValueError('boom')")
    (failure,) = operator.until_failed()
    told = failure["message"]
    assert (told["reason"], told["message"]) == ("Exception", "ValueError: boom")
