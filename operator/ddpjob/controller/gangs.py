"""What the API server has for gangs, and whether a scheduler has placed one."""

from contextlib import suppress

from ddpjob.api import DDPJob
from ddpjob.cluster import Cluster, Resource
from ddpjob.errors import ClusterError
from ddpjob.plan.model import Event
from ddpjob.pods.allowlist import Policy
from ddpjob.pods.gang import Gang, gang_of


class Gangs:
    """The PodGroups of an installation."""

    def __init__(self, cluster: Cluster, policy: Policy) -> None:
        self._cluster, self._policy = cluster, policy
        self.known: Resource | None = None
        """The last one that the API server had."""

    def resources(self, gang: Gang) -> list[Resource]:
        """Return the resources that the gang's PodGroup may be of, the known one first."""
        parts = (version.split("/") for version in gang.versions)
        found = [Resource(group, number, "podgroups", "PodGroup") for group, number in parts]
        return sorted(found, key=lambda resource: resource != self.known)

    async def warning(self, job: DDPJob) -> Event | None:
        """Return an Event if all pods run, and yet no scheduler has placed them as a gang.

        Kubernetes' own scheduler takes no notice of PodGroups where its gate is off. Others have
        names of their own, so pods that they have placed were placed by them.
        """
        gang = gang_of(job, self._policy)
        if gang is None or gang.scheduler != "kubernetes":
            return None
        for resource in self.resources(gang):
            with suppress(ClusterError):
                name = gang.body["metadata"]["name"]
                found = await self._cluster.get(resource, job.namespace, name)
                if (found.get("status") or {}).get("conditions"):
                    return None
                words = "the pods run, but not as a gang: the gate GenericWorkload of the scheduler"
                words += " is off (GangScheduling before Kubernetes 1.37)"
                return Event("GangNotEnforced", words, warning=True)
        return None
