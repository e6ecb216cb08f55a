"""What a pod's container becomes on this machine."""

from pathlib import Path
from typing import Any

import pytest

from ddpjob.json_depth import Body
from ddpjob.local.launch import CannotStart, Launch, Place, expand, launch, path_rewriter
from ddpjob.local.volumes import PodFolders, mount

META: Body = {
    "name": "digits-0-1",
    "namespace": "default",
    "uid": "u-1",
    "labels": {"ddpjob.dev/rank": "1"},
}


def start(
    container: Body,
    *,
    folders: dict[str, Path] | None = None,
    variables: dict[str, str] | None = None,
    inherited: dict[str, str] | None = None,
) -> Launch:
    command = {"name": "trainer", "command": ["true"]}
    pod = {"metadata": META, "spec": {"nodeName": "local", "containers": [command | container]}}
    folders = folders or {"/dev/termination-log": Path("/log")}
    place = Place("127.64.0.9", "127.0.0.1", variables or {}, folders, {"SHARE": "1"})
    return launch(
        pod,
        place,
        inherited=inherited or {},
        python="/venv/bin/python",
        cwd=Path("/"),
    )


def env(name: str, value: str) -> Body:
    return {"name": name, "value": value}


def field(path: str) -> Body:
    return {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(MISSING)", "$(MISSING)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
        ("$()", "$()"),
    ],
)
def test_references_expand_as_in_a_pod(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data", "/here"),
        ("/data/x", "/here/x"),
        ("--dir=/data/x", "--dir=/here/x"),
        ("/data:/data/sub", "/here:/there"),
        ("file:///data/x", "file:///here/x"),
        ("import x; open('/data')", "import x; open('/here')"),
        ("/data2", "/data2"),
        ("/data-old", "/data-old"),
        ("/data.txt", "/data.txt"),
        ("/my/data", "/my/data"),
        ("s3://data/x", "s3://data/x"),
        ("~/data", "~/data"),
    ],
)
def test_mount_paths_are_replaced_where_they_begin_and_end(text: str, expected: str) -> None:
    rewrite = path_rewriter({"/data": Path("/here"), "/data/sub": Path("/there")})
    assert rewrite(text) == expected


def test_a_replacement_is_not_replaced_again() -> None:
    rewrite = path_rewriter({"/a": Path("/b"), "/b": Path("/c")})
    assert rewrite("/a /b") == "/b /c"


def test_variables_see_those_before_them_and_arguments_see_all() -> None:
    started = start(
        {
            "command": ["echo", "$(C)"],
            "args": ["$(LATE)"],
            "env": [env("A", "1"), env("C", "$(A)-$(LATE)"), env("LATE", "2"), env("A", "3")],
        }
    )
    assert started.argv == ("echo", "1-$(LATE)", "2")
    assert started.env["A"] == "3"


def test_the_clusters_values_are_replaced_where_the_container_sets_them() -> None:
    started = start(
        {
            "command": ["connect", "$(MASTER_ADDR)"],
            "env": [env("MASTER_ADDR", "digits-0-0.digits"), env("OTHER", "$(MASTER_ADDR):1")],
        },
        variables={"MASTER_ADDR": "127.64.0.8", "MASTER_PORT": "20000"},
    )
    assert started.argv == ("connect", "127.64.0.8")
    assert started.env["OTHER"] == "127.64.0.8:1"
    assert "MASTER_PORT" not in started.env


def test_paths_below_mounts_are_this_machines_in_variables_and_arguments() -> None:
    folders = {"/checkpoints": Path("/tmp/claims/ckpt")}
    variables = [env("DDPJOB_CHECKPOINT_DIR", "/checkpoints")]
    container = {"command": ["x", "$(DDPJOB_CHECKPOINT_DIR)/a"], "env": variables}
    started = start(container, folders=folders)
    assert started.argv[1] == "/tmp/claims/ckpt/a"
    assert started.env["DDPJOB_CHECKPOINT_DIR"] == "/tmp/claims/ckpt"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("status.podIP", "127.64.0.9"),
        ("status.hostIP", "127.0.0.1"),
        ("metadata.name", "digits-0-1"),
        ("metadata.namespace", "default"),
        ("metadata.uid", "u-1"),
        ("spec.nodeName", "local"),
        ("metadata.labels['ddpjob.dev/rank']", "1"),
        ("metadata.annotations['none']", ""),
    ],
)
def test_the_downward_api_answers(path: str, expected: str) -> None:
    assert start({"env": [field(path)]}).env["X"] == expected


@pytest.mark.parametrize(
    ("container", "told"),
    [
        ({"env": [{"name": "T", "valueFrom": {"secretKeyRef": {}}}]}, r"env\[T\]: secretKeyRef"),
        ({"envFrom": [{"secretRef": {"name": "s"}}]}, "envFrom"),
        ({"env": [{"name": "T", "valueFrom": {"resourceFieldRef": {}}}]}, "resourceFieldRef"),
        ({"env": [field("spec.none")]}, "spec.none"),
        ({"command": []}, "entry point"),
    ],
)
def test_what_is_not_here_is_named(container: Body, told: str) -> None:
    with pytest.raises(CannotStart, match=told):
        start(container)


def test_python_is_the_one_given() -> None:
    assert start({"command": ["python3", "-u", "x.py"]}).argv == ("/venv/bin/python", "-u", "x.py")
    assert start({"command": ["/usr/bin/python3"]}).argv == ("/usr/bin/python3",)


def test_little_of_the_environment_comes_along_and_the_pod_has_the_last_word() -> None:
    started = start(
        {"env": [env("HOME", "/h")]},
        inherited={"PATH": "/bin", "AWS_SECRET": "x", "LC_ALL": "C", "HOME": "/root", "PET_X": "1"},
    )
    expected = {"PATH": "/venv/bin:/bin", "LC_ALL": "C", "HOME": "/h", "SHARE": "1"}
    expected |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"}  # no GPUs but its own
    assert started.env == expected


def pod_with(volumes: list[Body], mounts: list[Body], **container: Any) -> Body:
    trainer = {"name": "trainer", "volumeMounts": mounts, **container}
    return {"metadata": META, "spec": {"volumes": volumes, "containers": [trainer]}}


def test_volumes_become_folders(tmp_path: Path) -> None:
    volumes: list[Body] = [
        {"name": "agent", "configMap": {"name": "c"}},
        {"name": "code", "configMap": {"name": "none", "optional": True}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "ckpt", "persistentVolumeClaim": {"claimName": "claim"}},
        {"name": "share", "nfs": {"server": "s", "path": "/"}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    mounts[-1]["mountPath"] = "/dev/shm"
    mounts[3]["subPath"] = "run-1"
    pod = pod_with(volumes, mounts)
    folders = PodFolders(tmp_path, pod)
    folders.clear()
    mounted = mount(pod, folders, {"c": {"data": {"k": "text"}, "binaryData": {"b": "AAE="}}})
    job = tmp_path / "digits-0-1"
    assert mounted == {
        "/dev/termination-log": job / "digits-0-1" / ".termination-log",
        "/agent": job / "digits-0-1" / "agent",
        "/code": job / "digits-0-1" / "code",
        "/scratch": job / "digits-0-1" / "scratch",
        "/ckpt": job / "volumes" / "claim" / "run-1",
        "/share": job / "volumes" / "share",
    }
    assert all(path.exists() for path in mounted.values())
    assert (mounted["/agent"] / "k").read_text() == "text"
    assert (mounted["/agent"] / "b").read_bytes() == b"\0\1"


@pytest.mark.parametrize(
    ("volume", "entry"),
    [
        ({"secret": {"secretName": "s"}}, {}),
        ({"projected": {}}, {}),
        ({"emptyDir": {}}, {"subPath": "../../x"}),
        ({"emptyDir": {}}, {"subPathExpr": "$(X)"}),
        ({"emptyDir": {}}, {"name": "other"}),
        ({"emptyDir": {}}, {"mountPath": "/"}),
    ],
)
def test_a_volume_that_cannot_be_had_is_named(tmp_path: Path, volume: Body, entry: Body) -> None:
    pod = pod_with([{"name": "v", **volume}], [{"name": "v", "mountPath": "/v", **entry}])
    with pytest.raises(CannotStart, match=r"\[(v|other)\]"):
        mount(pod, PodFolders(tmp_path, pod), {"c": {"data": {"k": "text"}}})
    assert not (tmp_path.parent / "x").exists()


def test_jobs_of_other_namespaces_have_folders_of_their_own(tmp_path: Path) -> None:
    def folder(namespace: str, job: str) -> str:
        labels = {"ddpjob.dev/job": job}
        meta = {"name": "p", "namespace": namespace, "labels": labels}
        return str(PodFolders(tmp_path, {"metadata": meta}).job.relative_to(tmp_path))

    assert folder("default", "digits") == "digits"
    assert folder("team", "digits") == "team.digits"
