"""The models of `spec.failurePolicy`."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from ddpjob.api.base import Model, Rule
from ddpjob.api.expressions import SHARED, compile_all
from ddpjob.api.messages import misfit
from ddpjob.errors import InvalidJob
from ddpjob.ranks import MAX_WORLD_SIZE


class BackoffSeconds(Model):
    """`backoffSeconds` are the pauses before restarts in a row."""

    first: Annotated[int, Field(ge=0, le=3600)] = 10
    """`first` is the pause in seconds before the second restart in a row, if new pods are created.
    The first restart has no pause. Each later pause is twice as long as the one before."""
    cap: Annotated[int, Field(ge=0, le=86400)] = 360
    """`cap` is the longest pause in seconds. A row of restarts ends with progress, or with a
    round that ran for longer than `cap`."""
    checks = (
        Rule(
            "self.cap >= self.first",
            lambda self: self.cap >= self.first,
            "must be at least first",
            "cap",
        ),
    )


# The signals that can end a process, by the names that Python gives them on Linux.
SIGNALS = (
    *("SIGABRT", "SIGALRM", "SIGBUS", "SIGFPE", "SIGHUP", "SIGILL", "SIGINT", "SIGIO", "SIGKILL"),
    *("SIGPIPE", "SIGPROF", "SIGPWR", "SIGQUIT", "SIGRTMAX", "SIGRTMIN", "SIGSEGV", "SIGSTKFLT"),
    *("SIGSYS", "SIGTERM", "SIGTRAP", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGXCPU", "SIGXFSZ"),
)
# The reasons that `status.failure.reason` can have: those of plan/reasons.py, then those of
# kubelets and of container runtimes, which it has where the agent left none.
REASONS = (
    *("Exception", "ExitCode", "Signal", "OOMKilled", "Hang", "Rendezvous", "LaunchFailed"),
    *("CodeInvalid", "PeerEnded", "ForeignOrder"),
    *("InitContainerFailed", "Preempted", "Evicted", "PodDeleted", "NodeLost", "NodeSilent"),
    *("NodeRefused", "ResultUnknown", "StartupDeadlineExceeded", "SpecChanged", "AvoidanceOver"),
    *("Error", "StartError", "ContainerCannotRun", "ContainerStatusUnknown", "Unknown"),
    *("DeadlineExceeded", "Terminated", "AppArmor", "SysctlForbidden", "UnknownReason"),
    *("PodLevelResourcesNotSupported", "VolumeAttachmentLimitExceeded"),
)


ExitCode = Annotated[int, Field(ge=1, le=255)]
Rank = Annotated[int, Field(ge=0, le=MAX_WORLD_SIZE - 1)]
# A stored job may have other names, from before the schema had these. The operator reads it as it
# is: such a name fits no failure.
SignalName = Annotated[str, WithJsonSchema({"type": "string", "enum": list(SIGNALS)})]
Reason = Annotated[str, WithJsonSchema({"type": "string", "enum": list(REASONS)})]


class FailureRule(Model):
    """A rule fits a failure if all its `on…` fields fit. `action` decides what follows then."""

    on_exit_codes: Annotated[list[ExitCode], Field(min_length=1, max_length=64)] | None = None
    """`onExitCodes` fits if the worker's own exit code is one of these."""
    on_signals: Annotated[list[SignalName], Field(min_length=1, max_length=32)] | None = None
    """`onSignals` fits if one of these signals, such as SIGSEGV, ended the worker."""
    on_reasons: Annotated[list[Reason], Field(min_length=1, max_length=32)] | None = None
    """`onReasons` fits if `status.failure.reason` is one of these, such as OOMKilled or Evicted."""
    on_ranks: Annotated[list[Rank], Field(min_length=1, max_length=64)] | None = None
    """`onRanks` fits if the global rank of the worker is one of these. The ranks of a job are 0 to
    `nnodes` times the processes of a node, less one."""
    on_message_pattern: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """`onMessagePattern` is an RE2 expression. It fits if it is found in `status.failure.message`.
    All expressions of a job together may have 2000 instructions and 16 Unicode classes such as
    `\\pL`. An expression has about as many instructions as characters, but `.{100}` has 800."""
    action: Literal["FailJob", "Restart", "Ignore"]
    """`action` is what follows. `FailJob` fails the job without a restart. `Restart` starts the
    whole group again. `Ignore` counts the pod as finished."""
    counts_towards_max: bool | None = None
    """`countsTowardsMax` decides whether the restart counts towards `maxRestarts`. If it is absent,
    the restart counts, unless the pod was deleted, evicted, preempted or lost with its node, or the
    group could not be started."""
    avoid_node: bool = False
    """`avoidNode` keeps all later pods of the job off the node of the failed pod."""
    checks = (
        Rule(
            "has(self.onExitCodes) || has(self.onSignals) || has(self.onReasons) || "
            "has(self.onRanks) || has(self.onMessagePattern)",
            lambda self: any(name.startswith("on_") for name in self.model_fields_set),
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
        # CEL's expressions are RE2's too. A broken one is an error, which `?:` hands on.
        Rule(
            "!has(self.onMessagePattern) || (''.matches(self.onMessagePattern) ? true : true)",
            lambda self: True,  # see broken_expressions: to compile costs more than to parse
            "must be an RE2 expression",
            "onMessagePattern",
        ),
    )


class FailurePolicy(Model):
    """`failurePolicy` decides what happens when a rank fails."""

    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 3
    """`maxRestarts` is the number of counted failures that are followed by a restart. The next
    counted failure fails the job. A restart because a pod was deleted, evicted, preempted or lost
    does not count, and a restart because the group could not be started does not count. The count
    is 0 again when the script reports a step that no earlier round or attempt has reached. Three
    counted failures in a row at one reported step fail the job in any case."""
    restart_strategy: Literal["InPlace", "Recreate"] = "InPlace"
    """`restartStrategy` decides how the group is started again after a failure. `Recreate` creates
    new pods, as a new attempt. `InPlace` starts all processes again in the same pods, as a new
    round, after reason Exception, ExitCode, Signal, Hang, PeerEnded or OOMKilled of a process, and
    replaces lost pods alone. Of restarts in a row without a step, only the first is in place."""
    backoff_seconds: BackoffSeconds = BackoffSeconds()
    """`backoffSeconds` are the pauses before restarts."""
    rules: Annotated[list[FailureRule], Field(max_length=32)] = []
    """`rules` are compared with a failure in their order. The first rule that fits decides. If no
    rule fits, the group restarts, with one exception: if there is nothing to launch (no such
    script, module or option, or no torch), or if the archive of `code` is refused, a job that has
    never made a step fails at once with reason LaunchFailed or CodeInvalid."""

    def message_patterns(self) -> tuple[str, ...]:
        """Return the expressions of the rules, in their order."""
        return tuple(rule.on_message_pattern for rule in self.rules if rule.on_message_pattern)


_RULES = "spec.failurePolicy.rules"


def broken_expressions(policy: FailurePolicy) -> list[InvalidJob]:
    """Return an InvalidJob for each expression that is not RE2, and for the first too large one.

    This is no part of parsing, because it compiles the expressions.
    """
    places = [place for place, rule in enumerate(policy.rules) if rule.on_message_pattern]
    texts = policy.message_patterns()
    problems: list[InvalidJob] = []
    for place, text, found in zip(places, texts, compile_all(texts), strict=True):
        if isinstance(found, str):
            problems.append(misfit(f"{_RULES}[{place}].onMessagePattern", found, text))
        if found in SHARED:
            break
    return problems


def fits_nothing(policy: FailurePolicy) -> Iterator[InvalidJob]:
    """Yield an InvalidJob for each signal and reason of the rules that no failure can have."""
    for place, rule in enumerate(policy.rules):
        for field, values, known in (
            ("onSignals", rule.on_signals, SIGNALS),
            ("onReasons", rule.on_reasons, REASONS),
        ):
            for position, value in enumerate(values or ()):
                if value not in known:
                    path, words = f"{_RULES}[{place}].{field}[{position}]", ", ".join(known)
                    yield misfit(path, f"must be one of {words}", value)
