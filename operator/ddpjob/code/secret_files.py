"""Tells files that may hold secrets: by their names, and by the keys and tokens in them. Pure.

It is for people who have forgotten a file, and no hindrance for those who want to send one.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from fnmatch import translate

# Bytes of a file, from its beginning, in which keys and tokens are looked for.
LOOKED_AT = 64 * 2**10


def _any(patterns: Iterable[str]) -> re.Pattern[str]:
    """Return an expression for names that fit one of the patterns, which are those of a shell."""
    return re.compile("|".join(map(translate, patterns)))


# Names of files, in lower case.
_FILES = _any(
    (
        *(".env", ".envrc", ".env[-_.]*", "*.env"),
        # Logins of programs.
        *(".netrc", "_netrc", ".pgpass", "pgpass.conf", ".my.cnf", ".mylogin.cnf", ".msmtprc"),
        *(".git-credentials", ".htpasswd", ".renviron", ".sentryclirc", ".s3cfg", ".boto"),
        *(".pypirc", ".npmrc", ".dockercfg", ".dockerconfigjson", ".terraformrc", "terraform.rc"),
        *("rclone.conf", ".databrickscfg", ".modal.toml", ".comet.config", "kaggle.json"),
        *("*auth.json", "token.json", "token.pickle", "service[-_]account*.json"),
        *(".*[-_]token", ".*[-_]key", "*.token", "*.secret", "*.secrets", "*.credentials"),
        # Keys, and stores of keys.
        *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "ssh_host_*_key", "*.pem", "*.key"),
        *("*.p8", "*.p12", "*.pfx", "*.ppk", "*.jks", "*.keystore", "*.keytab", "*.kdb", "*.kdbx"),
        *("*.agekey", "*.ovpn", "*.kubeconfig"),
        # State and values of Terraform; lines that were typed into a shell.
        *("*.tfstate", "*.tfstate.*", "*.tfvars", "*.tfvars.json", ".*_history"),
    )
)
# Files that are known by their folder too.
_PLACES = _any(("*.git/config", ".docker/config.json", "gh/hosts.yml", "huggingface/stored_tokens"))
# Folders with nothing else in them.
_FOLDERS = _any(
    (
        *(".env", ".envs", ".ssh", ".aws", ".azure", ".kube", ".gnupg", ".oci", ".password-store"),
        *(".config/gcloud", ".config/gh", ".config/rclone"),
    )
)
# Words of the names of data, parted by underscores. The tokens of a vocabulary are no secrets.
_WORDS = re.compile(
    r"(?:^|_)(?:secrets?|creds?|credentials?|passwords?|passwd|passphrases?|vault_pass|kubeconfig"
    r"|(?:access|api|private|root|secret|ssh|wandb)_?keys?)(?:_|$)"
    r"|(?:^|_)(?:access|api|auth|bearer|bot|github|gitlab|hf|hub|huggingface|oauth|refresh|slack"
    r"|vault|wandb)_?tokens?$|^token$"
)
_SECRET_FOLDER = re.compile(r"\.?(?:secrets?|creds?|credentials?|passwords?)")
_DATA = re.compile(
    r"\.(?:cfg|cnf|conf|config|csv|dat|db|ini|json|pickle|pkl|plist|properties|sqlite|toml|tsv|txt"
    r"|xml|ya?ml)$",
    re.IGNORECASE,
)
# Names of files that show others how to write their own; endings of source and of public keys.
_HARMLESS = re.compile(
    r"(?:^|[-_.])(?:examples?|sample|template|tmpl)(?:$|[-_.])|\.(?:dist|ipynb|md|pub|pyi?|rst)$"
)
# What editors and people append to the names of copies.
_COPY = re.compile(r"(?:~|[-_.](?:bak|backup|copy|old|orig|save|sw[a-p]|tmp)\d*|\.~?\d+)$")
_NUMBER_OF_COPY = re.compile(r" ?\((?:copy|\d+)\)")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def is_named_so(path: str) -> bool:
    """Return whether a file may hold secrets, by its path from the folder, with slashes."""
    *above, given = path.split("/")
    folders, given = [folder.lower() for folder in above], _without_copy(given)
    name, bare = given.lower(), given.lstrip(".")
    if _HARMLESS.search(name):
        return False
    if _FILES.match(name) or _FILES.match(bare.lower()):
        return True
    pairs = map("/".join, zip(folders, folders[1:], strict=False))
    if any(map(_FOLDERS.match, (*folders, *pairs))):
        return True
    if _PLACES.match("/".join([*folders, name][-2:])):
        return True
    stem = _DATA.sub("", bare)
    is_data = stem != bare or "." not in stem
    words = re.sub("[^a-z0-9]+", "_", _HUMP.sub("_", stem).lower())
    return is_data and bool(_WORDS.search(words) or any(map(_SECRET_FOLDER.fullmatch, folders)))


def _without_copy(name: str) -> str:
    """Return the name of that which a file is a copy of: `id_rsa` for `#id_rsa.bak~#`."""
    name = _NUMBER_OF_COPY.sub("", name.strip("#"))
    while (cut := _COPY.sub("", name)) and cut != name:
        name = cut
    return name


# Between the first line of a key and the next one there may be what quotes it in a program.
_LINE_END = rb"""(?:\\{1,4}[nr]|[\s"'+,]){1,40}"""
# A line of a key's head. It goes on up to what ends it, and is not tried with fewer characters:
# they could be parted in very many ways.
_HEAD = rb"""[A-Za-z-]{1,20}: (?>(?:(?!\\{1,4}[nr]|["'][\s+,]{0,9}["'])[^\r\n]){0,100})"""
_PRIVATE_KEY = re.compile(
    rb"-----BEGIN (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
    + _LINE_END
    + rb"(?:"
    + _HEAD
    + _LINE_END
    + rb"){0,4}([A-Za-z0-9+/]{40})"
)
# How a key begins in Base64, as in a kubeconfig or a Secret.
_ENCODED_KEYS = [
    b64encode(b"-----BEGIN " + kind + b"PRIVATE KEY")[:24]
    for kind in (b"", b"RSA ", b"EC ", b"DSA ", b"OPENSSH ", b"ENCRYPTED ")
]
# Letters of both kinds, as names and parts of addresses seldom have them.
_MIXED = rb"(?=[\w-]*[a-z])(?=[\w-]*[A-Z])"
# What each token is, how it begins, and how it goes on.
_TOKENS = [
    (kind, mark, re.compile(rb"(?<![\w-])" + mark + rest + rb"(?![A-Za-z0-9])"))
    for kind, mark, rest in (
        ("a token of Hugging Face", b"hf_", _MIXED + rb"([A-Za-z0-9]{30,40})"),
        ("a token of GitHub", b"ghp_", _MIXED + rb"([A-Za-z0-9]{36,255})"),
        ("a token of GitHub", b"gho_", _MIXED + rb"([A-Za-z0-9]{36,255})"),
        ("a token of GitHub", b"ghs_", _MIXED + rb"([A-Za-z0-9]{36,255})"),
        ("a token of GitHub", b"github_pat_", _MIXED + rb"(\w{60,255})"),
        ("a token of GitLab", b"glpat-", rb"([\w-]{20,255})"),
        ("a token of Slack", b"xoxb-", rb"([0-9]{8,20}-[A-Za-z0-9-]{15,200})"),
        ("a token of Slack", b"xoxp-", rb"([0-9]{8,20}-[A-Za-z0-9-]{15,200})"),
        ("a token of npm", b"npm_", _MIXED + rb"([A-Za-z0-9]{36})"),
        ("a key of AWS", b"AKIA", rb"([A-Z2-7]{16})"),
        ("a key of AWS", b"ASIA", rb"([A-Z2-7]{16})"),
        ("an API key", b"nvapi-", _MIXED + rb"([\w-]{60,80})"),
        ("an API key", b"sk-", _MIXED + rb"(?=[\w-]*[0-9])([\w-]{40,200})"),
        ("a private key", b"AGE-SECRET-KEY-1", rb"([0-9A-Z]{58})"),
    )
]
# What is written where a token would stand.
_PLACEHOLDER = re.compile(rb"(?i)example|xxxx|0000|1234567|abcdefg")


def secret_in(content: bytes) -> tuple[str, int] | None:
    """Return what the content of a file has, such as `a private key`, and in which line."""
    content = content[:LOOKED_AT]
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):  # UTF-16, as PowerShell writes it
        content = content.replace(b"\0", b"")
    for kind, at in _found_in(content):
        return kind, content.count(b"\n", 0, at) + 1
    return None


def _found_in(content: bytes) -> Iterator[tuple[str, int]]:
    """Yield each kind of what is found, and where it begins."""
    if b"PRIVATE KEY" in content:
        yield from (
            ("a private key", found.start())
            for found in _PRIVATE_KEY.finditer(content)
            if _is_drawn(found[1])
        )
    for start in _ENCODED_KEYS:
        if (at := content.find(start)) >= 0:
            yield "a private key", at
    for kind, mark, token in _TOKENS:
        if mark in content:
            yield from (
                (kind, found.start()) for found in token.finditer(content) if _is_drawn(found[1])
            )


def _is_drawn(token: bytes) -> bool:
    """Return whether characters look as if they were drawn, and not written by a person.

    Of 16 letters that are drawn, 8 and more are different.
    """
    return len(set(token)) >= 8 and not _PLACEHOLDER.search(token)
