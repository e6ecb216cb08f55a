"""How the launcher of a round is started: its ports, its environment, its command."""

from pathlib import Path

import pytest

from ddpjob_agent.config import PORTS
from ddpjob_agent.environment import ACCELERATE
from ddpjob_agent.start import of_round, with_master
from tests.unit.agent.samples import config


def ports(folder: Path, base: int, agent: int = 29499) -> list[int]:
    first = config(folder, MASTER_PORT=str(base), DDPJOB_AGENT_PORT=str(agent))
    return [first.of_round(number).master_port for number in range(PORTS)]


def test_ports_go_up_from_the_first_rounds_then_down_without_the_agents(tmp_path: Path) -> None:
    assert ports(tmp_path, 29500) == list(range(29500, 29516))
    assert ports(tmp_path, 65534) == [65534, 65535, *range(65533, 65519, -1)]
    assert ports(tmp_path, 29500, 29510) == [p for p in range(29500, 29517) if p != 29510]


@pytest.mark.parametrize("base", [1, 15, 1024, 65519, 65535])
@pytest.mark.parametrize("distance", [-16, -1, 1, 16])
def test_rounds_in_a_row_have_ports_of_their_own_and_the_first_one_its_job(
    tmp_path: Path, base: int, distance: int
) -> None:
    agent = max(1, min(65535, base + distance))
    if agent == base:
        agent = base - distance
    found = ports(tmp_path, base, agent)
    assert found[0] == base and len(set(found)) == PORTS
    assert agent not in found and all(0 < port < 65536 for port in found)


ENV = {"MASTER_PORT": "29500", "PET_MASTER_PORT": "29500", "PET_RDZV_ID": "uid-0", "X": "1"}


def test_the_first_round_has_the_pods_environment(tmp_path: Path) -> None:
    assert of_round(config(tmp_path), ENV) == {**ENV, "DDPJOB_ROUND": "0", "DDPJOB_RESTARTS": "0"}


def test_a_later_round_has_its_own_port_and_rendezvous_and_all_else_as_before(
    tmp_path: Path,
) -> None:
    env = of_round(config(tmp_path).of_round(2), ENV)
    assert env == {
        "MASTER_PORT": "29502",
        "PET_MASTER_PORT": "29502",
        "PET_RDZV_ID": "uid-0-2",
        "DDPJOB_ROUND": "2",
        "DDPJOB_RESTARTS": "2",
        "X": "1",
    }
    env = of_round(config(tmp_path).of_round(1), {"MASTER_PORT": "29500"})
    assert env == {"MASTER_PORT": "29501", "DDPJOB_ROUND": "1", "DDPJOB_RESTARTS": "1"}


PORT = "--main_process_port"
LAUNCH = ["python3", "-u", "-m", ACCELERATE, PORT]


MASTER = {"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "7"}


def test_accelerate_gets_the_rounds_master(tmp_path: Path) -> None:
    ip = "--main_process_ip"
    command = [*LAUNCH, "29500", ip, "digits-0-0.digits", "train.py", PORT, "1"]
    before = list(command)
    wanted = [*LAUNCH, "7", ip, "10.0.0.9", "train.py", PORT, "1"]
    assert with_master(command, MASTER) == wanted
    assert command == before, "the next round begins with it again"


def test_one_process_that_is_left_is_started_by_accelerate_as_one() -> None:
    own = ["--num_processes", "1", "train.py", "--multi_gpu"]
    command = ["python3", "-u", "-m", ACCELERATE, "--multi_gpu", *own]
    elastic = {**MASTER, "DDPJOB_MAX_WORLD_SIZE": "2"}
    assert with_master(command, {**elastic, "DDPJOB_WORLD_SIZE": "2"}) == command
    assert with_master(command, {**elastic, "DDPJOB_WORLD_SIZE": "1"}) == [*command[:4], *own]
    assert with_master(command, {**MASTER, "DDPJOB_WORLD_SIZE": "1"}) == command


@pytest.mark.parametrize(
    "command",
    [
        ["python3", "-m", ACCELERATE, "train.py"],
        LAUNCH,
        ["sh", "-c", f"accelerate launch {PORT} 1"],
    ],
    ids=" ".join,
)
def test_no_other_command_is_changed(command: list[str]) -> None:
    assert with_master(command, MASTER) == command
