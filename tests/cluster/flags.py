"""How the components of the control plane are called."""

import secrets
from base64 import b64encode
from pathlib import Path

# Off by default, on in many clusters; PodSecurity, quotas and CEL policies are on by default.
ADMISSION = "OwnerReferencesPermissionEnforcement"


def arguments(folder: Path, *, etcd_ports: tuple[int, int], port: int) -> dict[str, list[str]]:
    """Flags of every component. By the folder's path in them a clean-up knows its process."""
    clients, peers = (f"http://127.0.0.1:{number}" for number in etcd_ports)
    key = f"{folder}/service-accounts.key"
    # The default limits, 20 and 50 requests/s, would be what a test waits for and measures.
    client = [f"--kubeconfig={folder}/kubeconfig", "--kube-api-qps=1000", "--kube-api-burst=2000"]
    alone = ["--leader-elect=false", "--secure-port=0"]
    return {
        "etcd": [
            f"--data-dir={folder}/etcd",
            "--unsafe-no-fsync",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        ],
        "kube-apiserver": [
            f"--etcd-servers={clients}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",  # offline there is no route to take it from
            f"--secure-port={port}",
            f"--cert-dir={folder}/pki",
            f"--token-auth-file={folder}/tokens.csv",
            "--authorization-mode=RBAC",
            f"--enable-admission-plugins={ADMISSION}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--endpoint-reconciler-type=none",
            f"--audit-policy-file={folder}/audit-policy.json",
            f"--audit-log-path={folder}/audit.log",
            "--audit-log-mode=blocking",
            "--audit-log-maxsize=1000000",  # MB; never start another file under the reader
        ],
        "kube-controller-manager": [
            *client,
            *alone,
            f"--service-account-private-key-file={key}",
            f"--root-ca-file={folder}/pki/apiserver.crt",
            # so that the audit log tells the garbage collector from the other controllers
            "--use-service-account-credentials",
            f"--flex-volume-plugin-dir={folder}/volume-plugins",  # else made on the host
            "--concurrent-gc-syncs=20",
            "--node-monitor-period=1s",  # 5 s of waiting less; what it decides stays the same
            # 50 s by default: on a busy machine a test's heartbeats may pause for longer.
            "--node-monitor-grace-period=1h",
        ],
        "kube-scheduler": [*client, *alone],
    }


def private_key() -> str:
    """A new P-256 private key as PEM (SEC 1, without the public point, which readers work out)."""
    number = (secrets.randbits(255) | 1).to_bytes(
        32, "big"
    )  # under the group's order, which is nearly 2**256
    curve = bytes.fromhex("a00a06082a8648ce3d030107")
    text = b64encode(bytes.fromhex("30310201010420") + number + curve).decode()
    kind = "EC PRIVATE KEY"
    return f"-----BEGIN {kind}-----\n{text[:64]}\n{text[64:]}\n-----END {kind}-----\n"
