"""What a script may report: a step, and figures that go with it; hostile until it is checked."""

from __future__ import annotations

from typing import Any

from ddpjob_agent.records import integer, number

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
