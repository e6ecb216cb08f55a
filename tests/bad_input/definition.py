"""The CRD as a user without Helm installs it: `kubectl apply -f`, on the client's side."""

from tests.cluster.apiserver import ApiError, ApiServer
from tests.cluster.tiers import ROOT
from tests.waiting import wait_for

FILE = ROOT / "manifests" / "crd.yaml"
PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/ddpjobs.ddpjob.dev"


def apply(server: ApiServer) -> str:
    """What kubectl says; comes back when the kind can be used."""
    said = server.kubectl("apply", "-f", str(FILE))
    wait_for(lambda: _is_established(server), lambda: server.request("GET", PATH)["status"])
    return said


def _is_established(server: ApiServer) -> bool:
    conditions = server.request("GET", PATH).get("status", {}).get("conditions") or []
    if not any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
        return False
    try:
        return server.exists("/apis/ddpjob.dev/v1alpha1/ddpjobs")
    except ApiError as error:
        if error.code != 429:  # its storage is not there yet
            raise
        return False
