"""For each alert what makes it fire, as `promtool test rules` reads it."""

from typing import Any

# Series as promtool writes them, a value a minute; when it fires (minutes), and on what.
_JOB = 'namespace="team",name="digits"'
_OTHER, _KEPT = 'namespace="other",name="at-its-end"', 'namespace="other",name="kept"'
FIRES: dict[str, tuple[dict[str, str], int, dict[str, str]]] = {
    "DDPJobNoLeader": ({'ddpjob_leader{pod="a"}': "0x20"}, 10, {}),
    "DDPJobOperatorBehind": ({"ddpjob_queue_oldest_seconds": "0 61+60x20"}, 10, {}),
    "DDPJobRequestsFail": (
        {'ddpjob_api_requests_total{verb="PATCH",resource="pods",code="403"}': "0+12x40"},
        30,
        {"code": "403"},
    ),
    "DDPJobPending": (
        {f'ddpjob_state{{{_JOB},state="Pending"}}': "1x60"},
        45,
        {"namespace": "team", "name": "digits"},
    ),
    "DDPJobMakesNoSteps": (
        {
            f'ddpjob_last_step_timestamp_seconds{{{_JOB},node_rank="0"}}': "60x60",
            f"ddpjob_hang_timeout_seconds{{{_JOB}}}": "300x60",
            f'ddpjob_state{{{_JOB},state="Running"}}': "1x60",
            f'ddpjob_step{{{_JOB},node_rank="0"}}': "9x60",
            f'ddpjob_total_steps{{{_JOB},node_rank="0"}}': "10x60",
        },
        30,
        {"namespace": "team", "name": "digits"},
    ),
    "DDPJobRestartsOften": (
        {
            'ddpjob_leader{pod="a"}': "1x120",
            'ddpjob_restarts_total{namespace="team",reason="Signal",in_place="true"}': "_x90 4x40",
        },
        100,
        {"namespace": "team"},
    ),
    "DDPJobGoodputLow": (
        {
            'ddpjob_leader{pod="a"}': "1x600",
            'ddpjob_jobs{namespace="team",state="Running"}': "1x600",
            'ddpjob_phase_seconds_total{namespace="team",phase="lost"}': "0+30x600",
        },
        480,
        {"namespace": "team"},
    ),
}
# Of a site where all is well, though jobs are edited and grow.
CALM = {
    'ddpjob_leader{pod="a"}': "1x600",
    'ddpjob_leader{pod="b"}': "0x600",
    "ddpjob_queue_oldest_seconds": "0 70 0x600",
    'ddpjob_api_requests_total{verb="GET",resource="pods",code="200"}': "0+600x600",
    'ddpjob_api_requests_total{verb="POST",resource="pods",code="403"}': "0+600x600",  # a quota's
    f'ddpjob_state{{{_JOB},state="Pending"}}': "1x5 0x600",
    f'ddpjob_state{{{_JOB},state="Queued"}}': "0x5 1x600",
    f'ddpjob_state{{{_JOB},state="Running"}}': "0x5 1x600",
    f'ddpjob_last_step_timestamp_seconds{{{_JOB},node_rank="0"}}': "0+60x600",
    f"ddpjob_hang_timeout_seconds{{{_JOB}}}": "300x600",
    'ddpjob_restarts_total{namespace="team",reason="Updated",in_place="true"}': "0+1x600",
    # Of an operator that ran long before this Prometheus did.
    'ddpjob_restarts_total{namespace="x",reason="Signal",job="old",instance="old"}': "99x600",
    'ddpjob_leader{namespace="old",job="old",instance="old"}': "1x600",
    # Two jobs of days, of which one is begun anew once; in another namespace one that is at its end
    # since long, and one that waits for what is edited next.
    'ddpjob_jobs{namespace="team",state="Starting"}': "1x5 0x600",
    'ddpjob_jobs{namespace="team",state="Running"}': "2x600",
    'ddpjob_restarts_total{namespace="team",reason="Signal",in_place="true"}': "_x200 1x400",
    'ddpjob_phase_seconds_total{namespace="team",phase="lost"}': "_x200 600x400",
    'ddpjob_leader{namespace="other",job="ddpjob",pod="c"}': "1x600",
    'ddpjob_jobs{namespace="other",state="Idle"}': "1x600",
    f'ddpjob_last_step_timestamp_seconds{{{_OTHER},node_rank="0"}}': "60x600",
    f"ddpjob_hang_timeout_seconds{{{_OTHER}}}": "300x600",
    f'ddpjob_state{{{_OTHER},state="Running"}}': "1x600",
    f'ddpjob_step{{{_OTHER},node_rank="0"}}': "10x600",
    f'ddpjob_total_steps{{{_OTHER},node_rank="0"}}': "10x600",
    f'ddpjob_last_step_timestamp_seconds{{{_KEPT},node_rank="0"}}': "60x600",
    f"ddpjob_hang_timeout_seconds{{{_KEPT}}}": "300x600",
    f'ddpjob_state{{{_KEPT},state="Running"}}': "0x600",
}


def cases(rules: str) -> dict[str, Any]:
    """Return the file for promtool; `rules` is the path of the file with the alerts."""
    tests = [
        _test(series, name, minutes, labels) for name, (series, minutes, labels) in FIRES.items()
    ]
    tests += [_test(CALM, name, minutes, None) for name in FIRES for minutes in (30, 480)]
    return {"rule_files": [rules], "evaluation_interval": "1m", "tests": tests}


def _test(
    series: dict[str, str], name: str, minutes: int, labels: dict[str, str] | None
) -> dict[str, Any]:
    """The alert fires with these labels at this minute; it does not without."""
    by = ", ".join(labels or ())
    found = ",".join(f'{label}="{value}"' for label, value in (labels or {}).items())
    samples = [] if labels is None else [{"labels": f"{{{found}}}", "value": 1}]
    expr = f'sum by ({by}) (ALERTS{{alertname="{name}",alertstate="firing"}})'
    return {
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "promql_expr_test": [{"expr": expr, "eval_time": f"{minutes}m", "exp_samples": samples}],
    }
