"""What a script may report: a step, and figures that go with it; hostile until it is checked.

By its progress file, or by transformers' own callback, so that a script on its Trainer needs no
change. The callback (`KubeflowCallback`) is for the status server of Kubeflow Trainer. It turns
itself on where KUBEFLOW_TRAINER_SERVER_URL is set, and posts with the token in a file, from rank 0,
each 5 s at most:
`{"trainerStatus": {"progressPercentage": 40, "metrics": [{"name": …, "value": "…"}]}}`.
"""

from __future__ import annotations

from typing import Any

from ddpjob_agent.records import integer, number, objects

# Of a number, which comes as text.
VALUE_CHARS = 40
METRICS, METRIC_NAME_CHARS = 32, 63
# The largest integer that every JSON reader keeps.
STEPS = 2**53 - 1


def parse_progress(content: Any) -> tuple[dict[str, Any], list[str]]:
    """The good fields of a progress file, and what is wrong with the others.

    Raises ValueError where there is no step.
    """
    if not isinstance(content, dict) or integer(content.get("step"), 0, STEPS) is None:
        raise ValueError('must be one JSON object with "step", a whole number')
    report: dict[str, Any] = {"step": content["step"]}
    problems: list[str] = []
    for name in ("total_steps", "epoch", "loss", "samples_per_second"):
        value = content.get(name)
        good = integer(value, 1, STEPS) if name == "total_steps" else number(value)
        if good is not None:
            report[name] = good
        elif value is not None:
            rule = "a whole number above 0" if name == "total_steps" else "a number"
            problems.append(f"{name} must be {rule}, got {str(value)[:40]!r}")
    metrics = content.get("metrics")
    pairs = list(metrics.items()) if isinstance(metrics, dict) else []
    good_pairs = [(k, number(v)) for k, v in pairs if 0 < len(k) <= METRIC_NAME_CHARS]
    report["metrics"] = dict([(k, v) for k, v in good_pairs if v is not None][:METRICS])
    if metrics is not None and (not pairs and metrics != {} or len(report["metrics"]) < len(pairs)):
        rule = f"at most {METRICS} numbers with names of at most {METRIC_NAME_CHARS} characters"
        problems.append(f"metrics must be an object of {rule}")
    return report, problems


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
