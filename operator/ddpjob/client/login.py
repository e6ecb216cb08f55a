"""The way into a cluster: kubeconfig and context, or the service account of a pod.

What can go wrong is explained here: no kubeconfig, an unknown context, a plugin that fails.
"""

import logging
import os
import shutil
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from ddpjob.client.unanswered import telling
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
    tls: ssl.SSLContext
    """It has the certificates of server and user, which are in no file of ours."""
    pool: Any
    """The `urllib3.PoolManager`, which connects with these."""
    context: str
    """The context's name; empty in a pod."""
    namespace: str
    user: str
    """The user's name in the kubeconfig; empty in a pod."""
    plugin: str
    """The command of the exec plugin, or empty."""
    folder: str = ""
    """Where the library writes the user's key; it exists only while that is read."""

    @property
    def server(self) -> str:
        """Return the URL of the API server."""
        return str(self.configuration.host)

    def headers(self) -> dict[str, str]:
        """Return the headers with the credentials of now. Raises LoginFailed."""
        with _complaints() as complaints, _without(self.folder):
            bearer = self.configuration.auth_settings().get("BearerToken")
        if complaints and self.plugin:
            raise _plugin_failed(self.plugin, complaints)
        headers = {"User-Agent": f"ddpjob/{__version__}"}
        return {**headers, "Authorization": bearer["value"]} if bearer else headers


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
    chosen = _context(merger.config.value, paths, context)
    folder = mkdtemp(prefix="ddpjob-login-")
    with _without(folder):
        loader = library.KubeConfigLoader(
            config_dict=merger.config,
            active_context=chosen,
            config_base_path=None,
            config_persister=merger.save_changes,
            temp_file_path=folder,
        )
        details = loader.current_context["context"]
        plugin = _plugin(merger.config.value, details.get("user"))
        configuration = _configuration()
        with _complaints() as complaints:
            loader.load_and_set(configuration)
        if complaints and plugin:
            raise _plugin_failed(plugin, complaints)
        tls = _tls(configuration)
    return Login(
        configuration,
        tls,
        _pool(configuration, tls, f"kubeconfig {paths}: cluster {details.get('cluster')}"),
        context=chosen,
        namespace=str(details.get("namespace") or "default"),
        user=str(details.get("user") or ""),
        plugin=plugin,
        folder=folder,
    )


@contextmanager
def _without(folder: str) -> Iterator[None]:
    """Delete what the library has written into this folder, and let it forget the files.

    It would delete them when Python ends, which a signal can prevent.
    """
    from kubernetes.config import kube_config

    try:
        yield
    finally:
        if folder and os.path.isdir(folder):
            shutil.rmtree(folder, ignore_errors=True)
            files: dict[str, str] = getattr(kube_config, "_temp_files", {})
            for content, path in list(files.items()):
                if os.path.dirname(path) == folder:
                    files.pop(content, None)


def _context(config: dict[str, Any], paths: str, wanted: str | None) -> str:
    """Return the name of the context to use. Raises LoginFailed if there is none of that name."""
    known = [str(_value(each).get("name")) for each in config.get("contexts") or ()]
    name = wanted if wanted is not None else str(config.get("current-context") or "")
    if name in known:
        return name
    has = f"it has {', '.join(known[:20])}" if known else "it has none"
    if not name:
        raise LoginFailed(
            f"kubeconfig {paths} has no current context; {has}",
            "--context NAME, or: kubectl config use-context NAME",
        )
    raise LoginFailed(f"kubeconfig {paths} has no context {name}; {has}", "--context NAME")


def _value(node: Any) -> dict[str, Any]:
    """Return the mapping in an entry: the library wraps those of merged files."""
    found = getattr(node, "value", node)
    return found if isinstance(found, dict) else {}


def _plugin(config: dict[str, Any], user: str | None) -> str:
    """Return the command of the user's exec plugin, or an empty text."""
    for each in config.get("users") or ():
        entry = _value(each)
        if entry.get("name") == user:
            return str(((entry.get("user") or {}).get("exec") or {}).get("command") or "")
    return ""


def _plugin_failed(plugin: str, complaints: list[str]) -> LoginFailed:
    return LoginFailed(
        f"the login plugin {plugin} of the kubeconfig failed: {'; '.join(complaints)}",
        f"log in again with your provider's tool, or install {plugin}",
    )


def _from_pod() -> Login:
    from kubernetes.config import load_incluster_config

    configuration = _configuration()
    load: Any = load_incluster_config
    load(client_configuration=configuration)
    namespace = _POD_NAMESPACE.read_text().strip() if _POD_NAMESPACE.exists() else "default"
    tls = _tls(configuration)
    pool = _pool(configuration, tls, "the cluster of this pod")
    return Login(configuration, tls, pool, context="", namespace=namespace, user="", plugin="")


def _configuration() -> Any:
    from kubernetes.client import Configuration

    new: Any = Configuration
    configuration = new()
    configuration.connection_pool_maxsize = _POOL
    return configuration


def _tls(configuration: Any) -> ssl.SSLContext:
    """Return a context with the certificates of these settings. Raises OSError."""
    from urllib3.util.ssl_ import create_urllib3_context

    context = create_urllib3_context()
    if not configuration.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif configuration.ssl_ca_cert:
        context.load_verify_locations(configuration.ssl_ca_cert)
    else:
        context.load_default_certs()
    if configuration.cert_file:
        # Without a password OpenSSL would ask for that of an encrypted key on the terminal.
        context.load_cert_chain(configuration.cert_file, configuration.key_file, password="")
    return context


def _pool(configuration: Any, tls: ssl.SSLContext, cluster: str) -> Any:
    """Return the pool of these settings. Raises LoginFailed, which names the cluster."""
    import urllib3
    from kubernetes.client import ApiClient

    if not configuration.verify_ssl:  # the kubeconfig says so; nobody can act on the warning
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    client: Any = ApiClient
    with _proxy_of(cluster, str(configuration.proxy)):
        pool = client(configuration).rest_client.pool_manager
    for name in ("ca_certs", "cert_file", "key_file"):
        pool.connection_pool_kw.pop(name, None)
    pool.connection_pool_kw["ssl_context"] = tls
    return telling(pool)


@contextmanager
def _proxy_of(cluster: str, proxy: str) -> Iterator[None]:
    """Raise LoginFailed if the block finds no way through the proxy.

    Its URL is not shown: a password may be in it.
    """
    import urllib3

    scheme = proxy.partition(":")[0].lower()
    if scheme.startswith("socks"):  # the library would warn of what is said here
        urllib3.disable_warnings(urllib3.exceptions.DependencyWarning)
    try:
        yield
    except ImportError as error:
        if error.name != "socks":
            raise
        raise LoginFailed(
            f"{cluster} is behind a SOCKS proxy ({scheme}://…), for which PySocks is missing here",
            'pip install "urllib3[socks]"',
        ) from None
    except urllib3.exceptions.ProxySchemeUnknown:
        raise LoginFailed(
            f"{cluster} is behind a proxy whose URL must begin with http://, https:// or socks5://",
            "correct its proxy-url in the kubeconfig, or HTTPS_PROXY",
        ) from None


class _Collector(logging.Filter):
    """A filter that takes what the library logs out of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        if record.module != "kube_config":
            return True
        self.found.append(record.getMessage())
        return False


@contextmanager
def _complaints() -> Iterator[list[str]]:
    """Yield what the library logs within the block: it does not raise when a plugin fails."""
    root, collector, sink = logging.getLogger(), _Collector(), logging.NullHandler()
    root.addFilter(collector)
    root.addHandler(sink)  # without any handler, logging would install one for good
    try:
        yield collector.found
    finally:
        root.removeFilter(collector)
        root.removeHandler(sink)
