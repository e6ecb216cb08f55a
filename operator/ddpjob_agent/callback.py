"""Takes what transformers' own callback reports, so that a script on its Trainer needs no change.

The callback (`KubeflowCallback`) is for the status server of Kubeflow Trainer. It turns itself on
where KUBEFLOW_TRAINER_SERVER_URL is set, and posts with the token in a file, from rank 0, each 5 s
at most: `{"trainerStatus": {"progressPercentage": 40, "metrics": [{"name": …, "value": "…"}]}}`.
"""

from __future__ import annotations

import time
from typing import Any

from ddpjob_agent.records import number, objects
from ddpjob_agent.report import METRICS, STEPS, parse_progress

# Of a number, which comes as text.
VALUE_CHARS = 40
# So many reports are taken at once, and a second: the callback has one in five seconds.
BURST, PER_SECOND = 10.0, 2.0


class Reports:
    """The newest report, and how far it was behind the counted steps."""

    def __init__(self) -> None:
        # Replaced as a whole, since requests come in threads of their own.
        self.state: tuple[dict[str, Any], int | None] = {}, None

    def take(self, content: Any, counted: int) -> None:
        """Take what was posted while `counted` steps had been made. Raises ValueError."""
        report, step, is_last = parse_status(content)
        known, ahead = self.state
        if step is None and ahead is None and is_last:  # it was done before it had told a step
            step = counted
        self.state = {**known, **report}, ahead if step is None else step - counted

    def newest(self, counted: int) -> dict[str, Any]:
        """The report, with the steps that have been counted since; empty before its first step."""
        report, ahead = self.state
        if ahead is None:
            return {}
        step = min(max(0, ahead + counted), report.get("total_steps", STEPS))
        return {**report, "step": step}


def parse_status(content: Any) -> tuple[dict[str, Any], int | None, bool]:
    """The good fields of what was posted, its step if it has one, and whether the training is over.

    Raises ValueError where it is no status.
    """
    status = content.get("trainerStatus") if isinstance(content, dict) else None
    if not isinstance(status, dict):
        raise ValueError('must be one JSON object with "trainerStatus", an object')
    values = {
        metric["name"]: value
        for metric in objects(status.get("metrics"))[: 2 * METRICS]
        if isinstance(metric.get("name"), str)
        and (value := figure(metric.get("value"))) is not None
    }
    step = values.pop("current_step", None)
    known = {
        "step": 0 if step is None else step,
        "total_steps": values.pop("total_steps", None),
        "epoch": values.pop("current_epoch", values.pop("epoch", None)),
        # The mean of the whole training, where it was too short for another one.
        "loss": values.pop("loss", values.get("train_loss")),
        "samples_per_second": values.pop("train_samples_per_second", None),
        "metrics": values,
    }
    report, _ = parse_progress(known)
    del report["step"]
    return report, step, status.get("progressPercentage") == 100


def figure(value: Any) -> Any:
    """The number that a text is, whole if it is written so; None where it is none."""
    if not isinstance(value, str):
        return None if number(value) is None else value
    for kind in (int, float) if len(value) <= VALUE_CHARS else ():
        try:
            return kind(value)
        except ValueError:
            continue
    return None


class Limit:
    """How many reports are taken in a time."""

    def __init__(self) -> None:
        self.left, self.at = BURST, time.monotonic()

    def allows(self) -> bool:
        """Whether one more is."""
        now = time.monotonic()
        self.left, self.at = min(BURST, self.left + (now - self.at) * PER_SECOND), now
        if self.left < 1:
            return False
        self.left -= 1
        return True
