"""What a job says of failures: models of `spec.failurePolicy`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ddpjob.api import expressions
from ddpjob.api.base import CAMEL_CASE, SIGNAL, Model, Rule
from ddpjob.api.messages import show
from ddpjob.errors import InvalidJob
from ddpjob.ranks import MAX_WORLD_SIZE

MessagePattern = Annotated[str, Field(min_length=1, max_length=256)]
_PATTERN_CEL = "!has(self.onMessagePattern) || (''.matches(self.onMessagePattern) ? true : true)"
"""CEL's expressions are RE2's too; one that does not compile is an error, which `?:` hands on."""


class BackoffSeconds(Model):
    """Pauses before restarts in a row: none, `first`, twice that, and so on up to `cap`."""

    first: Annotated[int, Field(ge=0, le=3600)] = 10
    """Seconds before the second restart in a row; the first is at once."""
    cap: Annotated[int, Field(ge=0, le=86400)] = 360
    """At most so many seconds. A row ends with progress, or with an attempt that ran for longer."""
    checks: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.cap >= self.first",
            lambda self: self.cap >= self.first,
            "must be at least first",
            "cap",
        ),
    )


Reason = Annotated[str, Field(max_length=63, pattern=CAMEL_CASE)]


class FailureRule(Model):
    """What a failure must be, in every field that is there, and what follows from it."""

    on_exit_codes: (
        Annotated[list[Annotated[int, Field(ge=1, le=255)]], Field(min_length=1, max_length=64)]
        | None
    ) = None
    """The worker's own exit code is one of these."""
    on_signals: (
        Annotated[
            list[Annotated[str, Field(max_length=16, pattern=SIGNAL)]],
            Field(min_length=1, max_length=32),
        ]
        | None
    ) = None
    """The worker was ended by one of these, such as SIGSEGV."""
    on_reasons: Annotated[list[Reason], Field(min_length=1, max_length=32)] | None = None
    """`status.failure.reason` is one of these, such as OOMKilled or Evicted."""
    on_ranks: (
        Annotated[
            list[Annotated[int, Field(ge=0, le=MAX_WORLD_SIZE - 1)]],
            Field(min_length=1, max_length=64),
        ]
        | None
    ) = None
    """The global rank of the worker is one of these."""
    on_message_pattern: MessagePattern | None = None
    """An RE2 expression that is found in `status.failure.message`. All expressions of a job
    together may have 2000 instructions as RE2 compiles them, about as many as characters (but
    `.{100}` has 800), and 16 Unicode classes such as `\\pL`."""
    action: Literal["FailJob", "Restart", "Ignore"]
    """`FailJob`: no restart. `Restart`: the whole group. `Ignore`: the pod counts as finished."""
    counts_towards_max: bool | None = None
    """Whether a restart counts towards `maxRestarts`; absent: it does, unless the pod was deleted,
    evicted, preempted or lost with its node, or the group could not be started."""
    avoid_node: bool = False
    """Keep all later pods of the job off the node of the failed one."""
    checks: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.onExitCodes) || has(self.onSignals) || has(self.onReasons) || "
            "has(self.onRanks) || has(self.onMessagePattern)",
            lambda self: any(
                wanted is not None
                for wanted in (
                    self.on_exit_codes,
                    self.on_signals,
                    self.on_reasons,
                    self.on_ranks,
                    self.on_message_pattern,
                )
            ),
            "must have one of onExitCodes, onSignals, onReasons, onRanks and onMessagePattern",
        ),
        Rule(
            "self.action == 'Restart' || !has(self.countsTowardsMax) && !self.avoidNode",
            lambda self: (
                self.action == "Restart" or self.counts_towards_max is None and not self.avoid_node
            ),
            "countsTowardsMax and avoidNode are about restarts: action must be Restart",
            "action",
        ),
        Rule(
            _PATTERN_CEL,
            lambda self: True,  # see broken_expressions: to compile costs more than to parse
            "must be an RE2 expression",
            "onMessagePattern",
        ),
    )


class FailurePolicy(Model):
    """What happens when a rank fails: the whole group starts again, as a new attempt."""

    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 3
    """So many failures are followed by a restart; the next one fails the job. Deleted,
    evicted, preempted and lost pods and groups that cannot be started do not count, and a job whose
    script reports a step that none of its attempts had reached has all of them again. Three counted
    failures in a row at one reported step fail it in any case."""
    backoff_seconds: BackoffSeconds = BackoffSeconds()
    """How long to wait before a restart."""
    rules: Annotated[list[FailureRule], Field(max_length=32)] = []
    """The first that fits decides; without one the group restarts. But a job of which no step was
    ever seen fails at once where there is nothing to launch (LaunchFailed): no such script, module
    or option, no torch."""

    def message_patterns(self) -> tuple[str, ...]:
        """The expressions of the rules, in their order."""
        return tuple(rule.on_message_pattern for rule in self.rules if rule.on_message_pattern)


def broken_expressions(policy: FailurePolicy) -> list[InvalidJob]:
    """What is wrong with the expressions of the rules. No part of parsing: it compiles them."""
    places = [place for place, rule in enumerate(policy.rules) if rule.on_message_pattern]
    texts = policy.message_patterns()
    return [
        InvalidJob(
            f"spec.failurePolicy.rules[{places[position]}].onMessagePattern",
            f"{rule}, got {show(texts[position])}",
            texts[position],
        )
        for position, rule in expressions.broken(texts)
    ]
