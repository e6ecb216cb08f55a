"""Whatever the schema lets in is refused in words, or rendered: nothing ends in an exception."""

from collections import Counter

from ddpjob import api
from ddpjob.cli.validate import check
from ddpjob.controller.controller import load_agent
from ddpjob.errors import InvalidJob
from ddpjob.pods import render
from ddpjob.pods.allowlist import Policy
from tests.fuzz import fuzzed_job

JOBS = 2000


def test_every_job_is_refused_in_words_or_rendered() -> None:
    seen: Counter[str] = Counter()
    for number in range(JOBS):
        body = fuzzed_job(number)
        problems = [str(problem) for problem in check(body)]
        assert all("\n" not in problem and len(problem) < 1024 for problem in problems), number
        seen["refused" if problems else "rendered"] += 1
    assert min(seen.values()) > JOBS / 10, seen


def test_what_is_rendered_is_rendered_the_same_way_again() -> None:
    agent = load_agent()
    for number in range(0, JOBS, 10):
        body = fuzzed_job(number)
        if api.validate(body):
            continue
        job, again = api.DDPJob.parse(body), api.DDPJob.parse(api.with_defaults(body))
        try:
            assert render.pods(job, agent, Policy()) == render.pods(again, agent, Policy())
        except InvalidJob:
            continue
