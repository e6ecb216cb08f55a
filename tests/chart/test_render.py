"""The chart renders, in every way that its values offer, to objects that an API server accepts."""

import argparse
import json
import shutil
import textwrap
from pathlib import Path

import kubernetes_validate
import pytest

from ddpjob import __version__, handlers
from ddpjob.api import validate
from ddpjob.json_depth import Body
from ddpjob.pods.allowlist import Policy
from tests.chart.rendering import CHART, ROOT, Helm, documents, of_kind, only, operator_container

NAMESPACED = (
    "--set=watchNamespaces={team-a,team-b}",
    "--set=crds.install=false,userRoles.install=false,admissionPolicy.install=false",
)
EVERYTHING = (
    "--set=createNamespace=true,verbose=true,priorityClassName=system-cluster-critical",
    "--set=image.repository=registry.example.com/ddpjob/operator,image.tag=1.2.3,image.pullPolicy=Always",
    "--set=imagePullSecrets[0].name=regcred",
    "--set=metrics.service.enabled=true",
    "--set-string=metrics.service.annotations.prometheus\\.io/scrape=true",
    "--set-string=podAnnotations.team=ml,podLabels.team=ml,nodeSelector.kubernetes\\.io/os=linux",
    "--set=tolerations[0].operator=Exists",
    '--set-json=affinity={"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[]}}',
    '--set-json=topologySpreadConstraints=[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"ScheduleAnyway"}]',
    '--set-json=extraEnv=[{"name":"HTTPS_PROXY","value":"http://proxy:3128"}]',
    '--set-json=extraVolumes=[{"name":"ca","configMap":{"name":"ca"}}]',
    '--set-json=extraVolumeMounts=[{"name":"ca","mountPath":"/etc/ssl/certs","readOnly":true}]',
    "--set=fullnameOverride=training",
)
ONE = ("--set=replicas=1",)
VARIANTS = {
    "defaults": (),
    "namespaced": NAMESPACED,
    "everything": EVERYTHING,
    "one replica": ONE,
    "one namespaced": (*ONE, *NAMESPACED),
    "one of everything": (*ONE, *EVERYTHING),
}


@pytest.fixture(params=VARIANTS)
def objects(request: pytest.FixtureRequest, helm: Helm) -> list[Body]:
    return helm.objects(*VARIANTS[request.param])


def test_lint_finds_nothing(helm: Helm) -> None:
    done = helm.run("lint", "--strict", str(CHART), "--kube-version", "1.34.4")
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


def test_every_object_fits_its_schema(objects: list[Body]) -> None:
    judged = [body for body in objects if body["kind"] != "CustomResourceDefinition"]
    assert judged
    for body in judged:
        kubernetes_validate.validate(body, "1.34", strict=True)


def test_one_replica_is_replaced_not_rolled(helm: Helm) -> None:
    spec = only(helm.objects(*ONE), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 30


def test_one_replica_knows_of_no_lease(helm: Helm) -> None:
    objects = helm.objects(*ONE)
    kinds = {body["kind"] for body in objects}
    assert not kinds & {"Lease", "Role", "RoleBinding", "PodDisruptionBudget"}
    assert handlers.parse(operator_container(objects)["args"]).lease is None
    assert "affinity" not in only(objects, "Deployment")["spec"]["template"]["spec"]


def test_two_replicas_are_the_default_rolled_one_by_one_and_kept_apart(helm: Helm) -> None:
    objects = helm.objects()
    spec = only(objects, "Deployment")["spec"]
    assert spec["replicas"] == 2
    # In full: a default that the API server filled in would stay, and be refused beside Recreate.
    rolling = {"maxSurge": 1, "maxUnavailable": 0}
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": rolling}
    apart = spec["template"]["spec"]["affinity"]["podAntiAffinity"]
    (term,) = apart["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"] == {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": spec["selector"],
    }
    budget = only(objects, "PodDisruptionBudget")["spec"]
    assert budget["minAvailable"] == 1 and budget["selector"] == spec["selector"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("release", ["ddpjob", "training"])
def test_two_replicas_stand_for_the_lease_that_the_release_brings(helm: Helm, release: str) -> None:
    objects = helm.objects(release=release, namespace="ops")
    container = operator_container(objects)
    lease = only(objects, "Lease")["metadata"]
    assert handlers.parse(container["args"]).lease == (lease["namespace"], lease["name"])
    assert lease["namespace"] == "ops"
    assert "spec" not in only(objects, "Lease"), "an upgrade would end the leader's term"


def test_the_operator_satisfies_pod_security_restricted(objects: list[Body]) -> None:
    pod = only(objects, "Deployment")["spec"]["template"]["spec"]
    container = operator_container(objects)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert {source for volume in pod["volumes"] for source in volume} == {"name", "configMap"}
    assert not any("hostPort" in port for port in container["ports"])


def test_the_probes_ask_the_port_the_operator_listens_on(helm: Helm) -> None:
    container = operator_container(helm.objects())
    assert arguments(helm).listen == ":8080"
    assert container["ports"] == [{"name": "http", "containerPort": 8080}]
    probes = {
        name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")
    }
    assert probes == {
        "startup": {"path": "/healthz", "port": "http"},
        "liveness": {"path": "/healthz", "port": "http"},
        "readiness": {"path": "/readyz", "port": "http"},
    }


def test_the_operator_understands_its_arguments(helm: Helm) -> None:
    assert "namespace" not in {k for k, v in vars(arguments(helm)).items() if v is not None}
    assert arguments(helm).log_format == "text"
    options = arguments(helm, *NAMESPACED, "--set=verbose=true,logFormat=json")
    assert options.log_format == "json"
    assert options.namespace == ["team-a", "team-b"]
    assert (options.listen, options.verbose) == (":8080", True)
    mounts = operator_container(helm.objects())["volumeMounts"]
    assert mounts == [{"name": "policy", "mountPath": str(options.policy.parent), "readOnly": True}]


def arguments(helm: Helm, *values: str) -> argparse.Namespace:
    """What the operator reads from the arguments that the chart gives it."""
    return handlers.parse(operator_container(helm.objects(*values))["args"])


def test_the_image_is_the_one_make_images_builds_or_the_one_of_a_digest(helm: Helm) -> None:
    assert operator_container(helm.objects())["image"] == f"ddpjob/operator:{__version__}"
    digest = "sha256:" + "a" * 64
    container = operator_container(helm.objects(f"--set=image.digest={digest},image.tag=x"))
    assert container["image"] == f"ddpjob/operator@{digest}"


def test_default_policy_is_the_operators_own(helm: Helm) -> None:
    config = only(helm.objects(), "ConfigMap")
    rendered = json.loads(config["data"]["policy.json"])
    (client,) = Policy.model_validate(rendered).agent_clients
    expected = Policy(agent_clients=[client])
    assert Policy.model_validate(rendered) == expected
    settings = expected.model_dump(by_alias=True, exclude={"gang"})  # which is off
    assert rendered == settings, "a setting is missing in values.yaml"
    mounted = only(helm.objects(), "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert mounted == [{"name": "policy", "configMap": {"name": config["metadata"]["name"]}}]


def test_agents_answer_the_operators_pod_and_who_else_is_named(helm: Helm) -> None:
    def clients(*arguments: str) -> list[Body]:
        config = only(helm.objects(*arguments), "ConfigMap")
        found: list[Body] = json.loads(config["data"]["policy.json"])["agentClients"]
        return found

    objects = helm.objects()
    deployment = only(objects, "Deployment")
    (operator,) = clients()
    assert operator["podSelector"] == deployment["spec"]["selector"]
    space = {"kubernetes.io/metadata.name": deployment["metadata"]["namespace"]}
    assert operator["namespaceSelector"] == {"matchLabels": space}
    prometheus = "networkPolicy.monitoring[0].podSelector.matchLabels.app"
    assert clients(f"--set={prometheus}=prometheus") == [
        operator,
        {"podSelector": {"matchLabels": {"app": "prometheus"}}},
    ]


def test_a_changed_policy_restarts_the_operator(helm: Helm) -> None:
    def annotations(*arguments: str) -> Body:
        found: Body = only(helm.objects(*arguments), "Deployment")["spec"]["template"]["metadata"]
        return found["annotations"] or {}

    assert annotations() != annotations("--set=policy.hostNetwork=true")
    assert annotations() == annotations("--set=userRoles.install=false")


def test_the_crd_stays_when_the_release_goes(helm: Helm) -> None:
    rendered = only(helm.objects(), "CustomResourceDefinition")
    (generated,) = documents((CHART / "files" / "crd.yaml").read_text())
    kept = {**generated["metadata"], "annotations": {"helm.sh/resource-policy": "keep"}}
    assert rendered == {**generated, "metadata": kept}


def test_the_crd_holds_no_null() -> None:
    # The API server takes null as a default when the definition is created, and in no later apply.
    assert "null" not in (CHART / "files" / "crd.yaml").read_text().split()


def test_a_namespaced_release_creates_nothing_cluster_wide(helm: Helm) -> None:
    objects = helm.objects(*NAMESPACED)
    assert all("namespace" in body["metadata"] for body in objects)
    namespaces = {body["metadata"]["namespace"] for body in objects}
    assert namespaces == {"ddpjob-system", "team-a", "team-b"}


def test_the_service_finds_the_operator(helm: Helm) -> None:
    assert not list(of_kind(helm.objects(), "Service"))
    objects = helm.objects("--set=metrics.service.enabled=true")
    service, pod = only(objects, "Service"), only(objects, "Deployment")["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["spec"]["ports"] == [{"name": "http", "port": 8080, "targetPort": "http"}]


def test_nobody_connects_to_the_operator_but_who_scrapes_it(helm: Helm) -> None:
    def ingress(*arguments: str) -> list[Body]:
        objects = helm.objects(*arguments)
        policy = only(objects, "NetworkPolicy")
        selector = only(objects, "Deployment")["spec"]["selector"]
        assert policy["spec"]["podSelector"] == selector
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        found: list[Body] = policy["spec"]["ingress"]
        return found

    service = "--set=metrics.service.enabled=true"
    peer = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
    named = f"--set-json=networkPolicy.monitoring={json.dumps([peer])}"
    ports = [{"port": "http", "protocol": "TCP"}]
    assert ingress() == []
    assert ingress(service) == [{"ports": ports}]
    assert ingress(named) == ingress(service, named) == [{"ports": ports, "from": [peer]}]
    assert not list(of_kind(helm.objects("--set=networkPolicy.operator=false"), "NetworkPolicy"))


def test_notes_say_what_to_do_next(helm: Helm, tmp_path: Path) -> None:
    # Helm prints notes only when it installs into a cluster, so a copy has them as a template.
    copy = Path(shutil.copytree(CHART, tmp_path / "ddpjob"))
    notes = (copy / "templates" / "NOTES.txt").read_text()
    (copy / "templates" / "notes.yaml").write_text(
        textwrap.indent(notes, "  ").join(["notes: |\n", ""])
    )
    done = Helm(helm.program, copy).refused_or_rendered(
        "--show-only=templates/notes.yaml", *NAMESPACED, namespace="ops"
    )
    assert done.returncode == 0, done.stderr
    (body,) = documents(done.stdout)
    assert "kubectl -n ops rollout status deployment/ddpjob-operator" in body["notes"]
    assert "kubectl -n team-a get ddpjobs --watch" in body["notes"]
    assert "kubectl get crd ddpjobs.ddpjob.dev" in body["notes"]


def test_chart_package_and_operator_have_one_version() -> None:
    (chart,) = documents((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


@pytest.mark.parametrize("name", ["crd.yaml", "install.yaml"])
def test_manifests_are_what_the_chart_renders(helm: Helm, name: str) -> None:
    arguments = {
        "crd.yaml": ["--show-only=templates/crd.yaml"],
        "install.yaml": ["--set=crds.install=false,createNamespace=true"],
    }
    assert documents((ROOT / "manifests" / name).read_text()) == helm.objects(*arguments[name]), (
        "run `make generate`"
    )


def test_a_registry_stands_before_the_names_of_all_images(helm: Helm) -> None:
    ours = "--set=image.registry=mirror:5000/hub"
    assert operator_container(helm.objects(ours))["image"] == (
        f"mirror:5000/hub/ddpjob/operator:{__version__}"
    )
    image = job_of_the_test(helm, ours)["spec"]["image"]
    assert image == f"mirror:5000/hub/ddpjob/trainer:{__version__}"


def job_of_the_test(helm: Helm, *arguments: str) -> Body:
    """The job that `helm test` makes, once all objects of the test have been checked."""
    found = documents(helm.template("--show-only=templates/tests/training.yaml", *arguments))
    for body in found:
        kubernetes_validate.validate(body, "1.34", strict=True)
        assert body["metadata"]["annotations"]["helm.sh/hook"] == "test"
    job: Body = json.loads(only(found, "ConfigMap")["data"]["job.json"])
    assert not validate(job)
    assert {body["metadata"]["namespace"] for body in found} == {job["metadata"]["namespace"]}
    return job


def test_the_test_trains_where_the_operator_may(helm: Helm) -> None:
    assert job_of_the_test(helm)["metadata"]["namespace"] == "ddpjob-system"
    job = job_of_the_test(
        helm, *NAMESPACED, "--set=imagePullSecrets[0].name=regcred,test.image=mine:1"
    )
    assert job["metadata"]["namespace"] == "team-a"
    assert (job["spec"]["image"], job["spec"]["imagePullSecrets"]) == (
        "mine:1",
        [{"name": "regcred"}],
    )
