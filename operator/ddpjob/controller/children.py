"""Creates and deletes what a job has: Service, NetworkPolicy, pods, and the agent for these."""

import asyncio
import logging
import math
import re
import time
from base64 import b64decode
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from secrets import token_urlsafe
from typing import Any

from ddpjob import names
from ddpjob.api import DDPJob, broken_expressions
from ddpjob.cluster import CONFIGMAPS, DDPJOBS, NETWORK_POLICIES, PODS, SERVICES, Cluster, Resource
from ddpjob.controller.gangs import Gangs
from ddpjob.controller.memory import Caches, JobRecord, Memory, place_of, rendered
from ddpjob.errors import AlreadyExists, ClusterError, Conflict, NotFound, Refused
from ddpjob.json_depth import Body, aside
from ddpjob.plan.cleanup import SPARED_SECONDS
from ddpjob.plan.model import Decision, Deletion, PodRecord
from ddpjob.plan.own import made_of, name_of, proofs
from ddpjob.plan.podrecord import pod_record
from ddpjob.pods import render
from ddpjob.settings import Settings

log = logging.getLogger(__name__)

# After so many creations in a row that find a name taken, the name counts as somebody else's. Until
# then the garbage collector may still free it.
MAX_CONFLICTS = 6
# Of a job's token, which nobody guesses.
TOKEN_BYTES = 24
# A namespace where the agent was found so shortly ago has it.
AGENT_SECONDS = 10.0


@dataclass
class _Place:
    """The agent of a namespace."""

    found_at: float = -math.inf
    """Monotonic time."""
    owner: Body | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Children:
    """Does for each job what was decided about the objects that the job owns."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        agent: render.Agent,
        settings: Settings,
        key: bytes,
    ) -> None:
        """`key` is this process's secret, which proves that it created a pod."""
        self.cluster = cluster
        self.caches = caches
        self.agent = agent
        self.settings = settings
        self.key = key
        self._agents: dict[str, _Place] = {}  # by namespace
        self.gangs = Gangs(cluster, settings.policy)

    async def render(self, job: DDPJob) -> render.PodTemplate:
        """Return the job's pods, ready to be created.

        Raises InvalidJob where no pods can be made, or an expression of `failurePolicy` is broken.
        """

        def make() -> render.PodTemplate:
            for problem in broken_expressions(job.spec.failure_policy):
                raise problem
            return render.pods(job, self.agent, self.settings.policy)

        record = self.caches.job(job.namespace, job.name)
        large = record is None or record.is_large
        return await aside(large or bool(job.spec.failure_policy.message_patterns()), make)

    async def prepare(self, job: DDPJob, memory: Memory) -> None:
        """Create the Service, the NetworkPolicy, and the agent if the namespace does not have it.

        The pods are rendered first, so that nothing is created for a job that cannot have pods.
        Raises InvalidJob, and ClusterError where something cannot be created.
        """
        known = memory.rendered
        if known is not None and known.error is not None and known.place == place_of(job):
            raise known.error  # of its code perhaps, which rendering does not look at
        memory.template = await self.render(job)
        memory.rendered = rendered(job, memory.template)
        memory.token = memory.token or token_urlsafe(TOKEN_BYTES)
        children = [(SERVICES, render.service(job, memory.token))]
        if (network := render.network_policy(job, self.settings.policy)) is not None:
            children.append((NETWORK_POLICIES, network))
        elif job.metadata.generation > 1:  # there may be one from before an edit
            await self._drop(job, NETWORK_POLICIES, job.name)
        answers = await asyncio.gather(
            self.provide_agent(job),
            self._provide_gang(job, memory),
            *(self._create_child(job, resource, body, memory) for resource, body in children),
            return_exceptions=True,
        )
        # Only now, since a creation that is still under way may come after the job's end.
        for error in filter(None, answers):
            raise error
        memory.prepared = place_of(job)

    async def _provide_gang(self, job: DDPJob, memory: Memory) -> None:
        """Create the attempt's PodGroup, and delete that of the attempt before.

        Raises Refused where the API server has no PodGroups, or the operator no right to them: the
        pods of a gang are not created without.
        """
        gang = memory.template.gang if memory.template else None
        if gang is None:
            return
        try:
            for resource in self.gangs.resources(gang):
                body = {"apiVersion": resource.api_version, **gang.body}
                with suppress(NotFound):
                    await self._create_child(job, resource, body, memory)
                    self.gangs.known = resource
                    break
            else:
                known = " or ".join(gang.versions)
                raise Refused(404, "NotFound", f"the API server has no PodGroups of {known}")
        except Refused as error:
            why = f"{error.message} (gang.scheduler is {gang.scheduler} in the values of the chart)"
            raise Refused(error.code, error.reason, why) from error
        if job.status.attempt:
            await self._drop(job, resource, names.gang_name(job.name, job.status.attempt - 1))

    async def provide_agent(self, job: DDPJob) -> None:
        """Make sure that the job's namespace has the ConfigMap with the agent.

        All jobs of a namespace mount the same one. One job owns it, and once that is gone the next
        one that needs it makes it anew. Were every job an owner, the API server would store all of
        it once for each job.

        Raises AlreadyExists if somebody else has taken its name, or another ClusterError.
        """
        if not job.spec.has_agent:
            return
        place = self._agents.setdefault(job.namespace, _Place())
        async with place.lock:
            is_new = time.monotonic() < place.found_at + AGENT_SECONDS
            if is_new and self._lives(job.namespace, place.owner):
                return
            body = render.config_map(job, self.agent)
            name = body["metadata"]["name"]
            existing = await self._get(CONFIGMAPS, job.namespace, name)
            if existing and _content(existing) != _content(body):
                text = f"ConfigMap {name} exists, and is not this operator's agent"
                raise AlreadyExists(409, "Edited", f"{text}: delete it, and it is made again")
            if existing and not self._lives(job.namespace, _controller(existing)):
                # It is about to go. To change its owner needs the right to delete it, too.
                with suppress(NotFound, Conflict):
                    uid = existing["metadata"]["uid"]
                    await self.cluster.delete(CONFIGMAPS, job.namespace, name, uid=uid)
                existing = None
            if existing is None:
                existing = await self.cluster.create(CONFIGMAPS, job.namespace, body)
            place.found_at, place.owner = time.monotonic(), _controller(existing)

    def _lives(self, namespace: str, owner: Body | None) -> bool:
        """Whether there is the job that an owner reference names."""
        if owner is None:
            return False
        job = self.caches.job(namespace, str(owner.get("name")))
        return job is not None and job.uid == owner.get("uid")

    async def create_pods(self, job: DDPJob, ranks: tuple[int, ...], memory: Memory) -> None:
        """Create these ranks' pods, or spares, at most `pods_per_job` at a time.

        Raises the first refusal, after all requests have been answered.
        """
        assert memory.template is not None
        template = memory.template
        kind = made_of(job.status)
        own = proofs(self.key, job.uid, *kind, job.spec.nnodes)
        if memory.made[0] != kind:
            memory.made = kind, {}
        made = memory.made[1]
        slots = asyncio.Semaphore(self.settings.pods_per_job)
        refused: list[int] = []

        async def create(rank: int) -> None:
            async with slots:
                if refused:
                    return  # as the others would be
                proof = own.of(rank) if rank >= 0 else ""
                try:
                    body = await self.cluster.create(
                        PODS, job.namespace, template.body(rank, proof, memory.token)
                    )
                except Refused:
                    refused.append(rank)
                    raise
            if (record := pod_record(body)) is not None:
                made[rank] = record.uid_print
                self.caches.put_pod(record)

        answers = await asyncio.gather(*map(create, ranks), return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        # AlreadyExists may be our own pod, of a request whose answer was lost. The watch brings it
        # before the next try, so other errors are raised first.
        taken = [error for error in errors if isinstance(error, AlreadyExists)]
        for error in errors:
            if not isinstance(error, AlreadyExists):
                raise error
        if taken:
            name = name_of(job, job.status, ranks[answers.index(taken[0])])
            _raise_name_taken(job, PODS, name, None, memory)

    async def end_pods(self, job: DDPJob, decision: Decision, memory: Memory) -> None:
        """Delete the pods of `decision.delete`, and have kubelets end those of `expire`.

        At most `pods_per_job` at a time: other jobs' requests are not in line behind thousands.
        Raises ClusterError, but not for a stray: nothing waits for its deletion.
        """
        slots = asyncio.Semaphore(self.settings.pods_per_job)

        async def delete(deletion: Deletion) -> None:
            async with slots:
                await self._delete_pod(deletion)

        async def expire(pod: PodRecord) -> None:
            async with slots:
                try:
                    await self._expire_pod(pod)
                except Refused as error:  # what follows needs no sidecar's end
                    if pod.live:
                        raise
                    log.warning("sidecar of %s/%s: %s", pod.namespace, pod.name, error)

        answers = await asyncio.gather(
            *map(delete, decision.delete), *map(expire, decision.expire), return_exceptions=True
        )
        for error, deletion in zip_longest(answers, decision.delete):
            if deletion and deletion.stray and isinstance(error, ClusterError):
                log.warning("stray stays job=%s/%s error=%s", job.namespace, job.name, error)
                memory.spared[deletion.pod.uid] = time.monotonic() + SPARED_SECONDS
            elif error:
                raise error

    async def delete_job(self, job: DDPJob) -> None:
        """Delete the job itself. Kubernetes' garbage collector deletes all that the job owns."""
        try:
            await self.cluster.delete(DDPJOBS, job.namespace, job.name, uid=job.uid)
        except NotFound:
            self.caches.remove_job(job.uid)

    async def _create_child(
        self, job: DDPJob, resource: Resource, body: Body, memory: Memory
    ) -> None:
        """Create it, or find that it exists and is the job's. Raises AlreadyExists if it is not."""
        name = body["metadata"]["name"]
        try:
            await self.cluster.create(resource, job.namespace, body)
            return
        except AlreadyExists:
            existing = await self._get(resource, job.namespace, name)
        owner = _controller(existing) if existing else None
        if existing and owner is not None and owner.get("uid") == job.uid:
            if resource == SERVICES:
                found = existing["metadata"].get("annotations") or {}
                memory.token = names.as_token(found.get(names.TOKEN_ANNOTATION)) or memory.token
            await self._keep_or_replace(job, resource, existing, body)
            return
        _raise_name_taken(job, resource, name, owner, memory)

    async def _keep_or_replace(
        self, job: DDPJob, resource: Resource, existing: Body, body: Body
    ) -> None:
        """Make sure that the job's own object, which exists, is as it would be created now."""
        name = body["metadata"]["name"]
        # The ports of a headless Service do nothing.
        wanted = {name: value for name, value in body["spec"].items() if name != "ports"}
        is_as_wanted = wanted.items() <= existing["spec"].items()
        if resource == NETWORK_POLICIES:
            is_as_wanted = _is_same(_content(existing), _content(body))
        if resource == SERVICES and not is_as_wanted:
            # The operator has no right to delete any Service.
            text = f"Service {name} was edited and does not lead to the job's pods any more"
            raise AlreadyExists(409, "Edited", f"{text}: delete it, and it is made again")
        if not is_as_wanted:
            # The job was edited while it was suspended, or somebody else made this for it. No pod
            # exists yet, unless an operator died while it created them. Then these are without a
            # NetworkPolicy for a moment, since the operator has no right to update one.
            await self._drop(job, resource, name)
            await self.cluster.create(resource, job.namespace, body)

    async def _delete_pod(self, deletion: Deletion) -> None:
        pod = deletion.pod
        try:
            left = await self.cluster.delete(
                PODS, pod.namespace, pod.name, uid=pod.uid, grace_seconds=deletion.grace_seconds
            )
        except NotFound:
            # A Conflict is no such proof. If another pod has the name by now, the watch brings it.
            self.caches.remove_pod(pod.uid)
            return
        record = pod_record(left) if left else None
        if record is not None:
            self.caches.put_pod(record)
        else:
            self.caches.remove_pod(pod.uid)

    async def _expire_pod(self, pod: PodRecord) -> None:
        """Have the pod's kubelet end it."""
        body = {"metadata": {"uid": pod.uid}, "spec": {"activeDeadlineSeconds": 1}}
        try:
            stored = await self.cluster.patch(PODS, pod.namespace, pod.name, body)
        except NotFound:
            self.caches.remove_pod(pod.uid)
            return
        if (record := pod_record(stored)) is not None:
            self.caches.put_pod(record)

    async def _drop(self, job: DDPJob, resource: Resource, name: str) -> None:
        """Delete the object of this name, if it exists and the job owns it."""
        existing = await self._get(resource, job.namespace, name)
        if existing and (_controller(existing) or {}).get("uid") == job.uid:
            with suppress(NotFound, Conflict):
                uid = existing["metadata"]["uid"]
                await self.cluster.delete(resource, job.namespace, name, uid=uid)

    async def old_token(self, job: JobRecord, pod: PodRecord) -> str:
        """Return the token of a pod that an earlier version has made; "" if it cannot be read."""
        if not re.fullmatch(rf"{re.escape(job.name)}-agent-[0-9a-f]{{8}}", pod.old_agent):
            return ""
        try:
            found = await self.cluster.get(CONFIGMAPS, job.namespace, pod.old_agent)
            return names.as_token(b64decode(found["binaryData"]["token"]).decode())
        except (ClusterError, KeyError, TypeError, ValueError):
            return ""

    async def _get(self, resource: Resource, namespace: str, name: str) -> Body | None:
        try:
            return await self.cluster.get(resource, namespace, name)
        except NotFound:
            return None


def _raise_name_taken(
    job: DDPJob, resource: Resource, name: str, owner: Body | None, memory: Memory
) -> None:
    """Raise AlreadyExists; at first ClusterError, if an earlier job of this name may have left it.

    The garbage collector deletes such an object soon, so the creation is worth another try.
    """
    text = f"{resource.kind} {name} exists and is not this job's; it is left alone"
    memory.conflicts += 1
    leftover = owner is None or (owner.get("kind"), owner.get("name")) == (names.KIND, job.name)
    if leftover and memory.conflicts < MAX_CONFLICTS:
        raise ClusterError(409, "AlreadyExists", text + " while the garbage collector may take it")
    raise AlreadyExists(409, "AlreadyExists", text)


def _controller(obj: Body) -> Body | None:
    owners: Iterable[Body] = obj["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), None)


def _content(obj: Body) -> Body:
    """The part of an object that a user could edit."""
    return {name: obj[name] for name in ("spec", "data", "binaryData", "immutable") if name in obj}


def _is_same(found: Any, wanted: Any) -> bool:
    """Whether two contents are equal. One peer more in a NetworkPolicy would let somebody in.

    The API server drops empty lists, and adds TCP where there is no protocol. An empty object is
    not nothing: `namespaceSelector: {}` is all namespaces.
    """
    if isinstance(wanted, dict) and isinstance(found, dict):
        default = {"protocol": "TCP"} if {"port", "protocol"} & (wanted.keys() | found) else {}
        one, two = ({**default, **each} for each in (found, wanted))
        return all(_is_same(one.get(name), two.get(name)) for name in one.keys() | two.keys())
    if isinstance(wanted, list) and isinstance(found, list):
        return len(found) == len(wanted) and all(map(_is_same, found, wanted))
    return found == wanted or [found, wanted] in ([[], None], [None, []])
