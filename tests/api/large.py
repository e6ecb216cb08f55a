"""Objects of 1.3 MB that the API server takes."""

from ddpjob import names
from ddpjob.json_depth import Body
from tests.builders import job_object

JOB_BYTES, POD_BYTES = 1_300_000, 1_350_000


def large_job(number: int) -> Body:
    """A suspended job that the schema takes: its arguments are long."""
    args = ["train.py", *["x" * 32_000] * (JOB_BYTES // 32_000)]
    return job_object(f"large-{number}", args=args, suspend=True)


def large_pod(number: int) -> Body:
    """A stranger's pod with our label, which no scheduler finds a node for."""
    env = [{"name": f"N{n}", "value": "x" * 30_000} for n in range(POD_BYTES // 30_000)]
    return {
        "metadata": {
            "name": f"large-{number}",
            "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY},
        },
        "spec": {
            "automountServiceAccountToken": False,
            "nodeSelector": {"example.com/nowhere": "here"},
            "containers": [{"name": "x", "image": "x", "env": env}],
        },
    }
