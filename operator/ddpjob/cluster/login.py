"""The way into a cluster: kubeconfig and context, or the service account of a pod.

The library `kubernetes` reads them, runs plugins, and renews tokens. What can go wrong is explained
here: no kubeconfig, an unknown context, a plugin that fails.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

from ddpjob.errors import LoginFailed
from ddpjob.version import __version__

DEFAULT_KUBECONFIG = "~/.kube/config"
# In a pod, the namespace of its service account.
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# Connections that may be kept open. Each log that is followed has one, up to 1024.
_POOL = 1100


@dataclass(frozen=True)
class Login:
    """An API server, and the credentials of whoever talks to it."""

    configuration: Any
    """The `kubernetes.client.Configuration`: its hook renews a token that has expired."""
    pool: Any
    """The `urllib3.PoolManager` with the certificates and the proxy of the configuration."""
    context: str = ""
    """The context's name; empty in a pod."""
    namespace: str = "default"
    user: str = ""
    """The user's name in the kubeconfig; empty in a pod."""

    @property
    def server(self) -> str:
        """Return the URL of the API server."""
        return str(self.configuration.host)

    def headers(self) -> dict[str, str]:
        """Return the headers with the credentials of now. Raises LoginFailed."""
        with _plugin_failures():
            bearer = self.configuration.auth_settings().get("BearerToken")
        headers = {"user-agent": f"ddpjob/{__version__}"}
        return {**headers, "authorization": bearer["value"]} if bearer else headers


def log_in(context: str | None = None, kubeconfig: str | Path | None = None) -> Login:
    """Return the login of a context, by default the current one; in a pod, that of its account.

    `kubeconfig` is a file; by default $KUBECONFIG, which may name several, or ~/.kube/config.
    Raises LoginFailed.
    """
    from kubernetes.config import ConfigException
    from yaml import YAMLError

    text = str(kubeconfig or os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG)
    try:
        if any(os.path.exists(os.path.expanduser(path)) for path in text.split(os.pathsep) if path):
            return _from_kubeconfig(text, context)
        if kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            return _from_pod()
    except ConfigException as error:
        raise LoginFailed(f"kubeconfig {text}: {error}") from None
    except ModuleNotFoundError as error:  # without PySocks
        advice = 'for a SOCKS proxy: pip install "urllib3[socks]"'
        raise LoginFailed(f"kubeconfig {text}: {error}", advice) from None
    except (YAMLError, OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        # The library reads the file as if it were well-formed.
        raise LoginFailed(f"kubeconfig {text}: cannot be read: {error}") from None
    raise LoginFailed(
        f"no kubeconfig: {text} does not exist",
        "set KUBECONFIG or --kubeconfig; your cluster's provider or admin has the file",
    )


def _from_kubeconfig(paths: str, context: str | None) -> Login:
    from kubernetes.config import kube_config

    library: Any = kube_config  # no two releases of its types agree
    merger = library.KubeConfigMerger(paths)
    if merger.config is None:
        raise LoginFailed(f"kubeconfig {paths}: the file is empty")
    _check_context(merger.config.value, paths, context)
    loader = library.KubeConfigLoader(
        merger.config,
        active_context=context,
        config_base_path=None,
        config_persister=merger.save_changes,
    )
    chosen = loader.current_context
    configuration = _configuration()
    with _plugin_failures():
        loader.load_and_set(configuration)
    return Login(
        configuration,
        _pool(configuration),
        context=chosen["name"],
        namespace=str(chosen["context"].get("namespace") or "default"),
        user=str(chosen["context"].get("user") or ""),
    )


def _check_context(config: dict[str, Any], paths: str, wanted: str | None) -> None:
    """Raise LoginFailed, with the contexts that there are, unless there is the wanted one."""
    known = [str(each["name"]) for each in config["contexts"]]
    name = wanted if wanted is not None else config.get("current-context")
    if name not in known:
        missing = f"context {name}" if name else "current context"
        raise LoginFailed(
            f"kubeconfig {paths} has no {missing}; it has {', '.join(known) or 'none'}",
            "--context NAME, or: kubectl config use-context NAME",
        )


def _from_pod() -> Login:
    from kubernetes.config import load_incluster_config

    configuration = _configuration()
    load: Any = load_incluster_config
    load(client_configuration=configuration)
    namespace = _POD_NAMESPACE.read_text().strip() if _POD_NAMESPACE.exists() else "default"
    return Login(configuration, _pool(configuration), namespace=namespace)


def _configuration() -> Any:
    from kubernetes.client import Configuration

    new: Any = Configuration
    configuration = new()
    configuration.connection_pool_maxsize = _POOL
    return configuration


def _pool(configuration: Any) -> Any:
    import urllib3
    from kubernetes.client import ApiClient

    if not configuration.verify_ssl:  # the kubeconfig says so; nobody can act on the warning
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    client: Any = ApiClient
    return client(configuration).rest_client.pool_manager


@contextmanager
def _plugin_failures() -> Iterator[None]:
    """Raise LoginFailed if an exec plugin fails within the block, which the library only logs."""
    root, heard = logging.getLogger(), BufferingHandler(100)
    root.addHandler(heard)  # without any handler, logging would install one for good
    try:
        yield
    finally:
        root.removeHandler(heard)
    said = [record.getMessage() for record in heard.buffer if record.module == "kube_config"]
    if said:
        raise LoginFailed(
            f"the login plugin of the kubeconfig failed: {'; '.join(said)}",
            "log in again with your provider's tool, or install the plugin",
        )
