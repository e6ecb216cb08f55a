"""Files that may hold secrets are known by their names, or by the keys and tokens in them."""

import base64
import hashlib
import json
import string
import time

import pytest

from ddpjob.code.secret_files import LOOKED_AT, is_named_so, secret_in

SECRET = """
.env prod.env .envrc .env-prod .env~ .env.local sub/.ENV .env.bak2 #.env# .env/prod .envs/.prod/db
.netrc .netrc.bak _netrc .pypirc .npmrc .git-credentials .git-credentials.bak .htpasswd .my.cnf
.s3cfg .boto rclone.conf .databrickscfg .dockercfg .docker/config.json .terraformrc kaggle.json
.aws/config .azure/x .kube/config .ssh/known_hosts home/.ssh/x .gnupg/pubring.kbx
.config/gcloud/application_default_credentials.json .config/gcloud/properties .config/gh/hosts.yml
gh/hosts.yml .huggingface/token cache/huggingface/stored_tokens .vault-token .wandb-key
.streamlit/secrets.toml secrets.yaml k8s/db-secret.yml secrets/db.json clientSecret.json
terraform.tfstate terraform.tfstate.backup prod.tfvars .bash_history .python_history
id_rsa id_rsa.bak id_ed25519_work keys/id_ed25519 .id_rsa.swp ssh_host_rsa_key server.pem tls.KEY
key.pem.bak store.p12 credentials credentials.csv credentials.yaml credentials.json accessKeys.csv
rootkey.csv service-account-1.json client_secret_1.json auth.json azureauth.json token token.json
hf_token.txt api_key.txt passwords.txt kubeconfig kubeconfig-prod.yaml admin.kubeconfig
mirror.git/config
"""
HARMLESS = """
tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json tokens.py tokens.txt
token_counts.csv pad_token.txt environment.yml env.py my.environment pem keys.py keymap.json
.env.example .env.sample .env.template .env-example example.env secrets.example.toml
credentials.json.dist .gitconfig .gitignore .github/workflows/x.yml hosts.yml config.json auth.py
author.json kubeconfig.py history.jsonl cert.crt monkey.csv public_key.json id_rsa.pub
secrets/loader.py credentials/__init__.py docs/secrets.md .docker/Dockerfile .config/nextest.toml
environment.old train.py data/train.csv README Makefile
"""


@pytest.mark.parametrize("path", [*SECRET.split(), "credentials (1).json", "id_rsa (copy)"])
def test_names_of_secrets_are_known(path: str) -> None:
    assert is_named_so(path) and is_named_so(f"below/{path}")


@pytest.mark.parametrize("path", HARMLESS.split())
def test_names_that_only_look_so_are_not(path: str) -> None:
    assert not is_named_so(path) and not is_named_so(f"below/{path}")


def drawn(size: int, letters: str = string.ascii_letters + string.digits) -> str:
    """Return letters as a token has them. No token stands in this file itself."""
    content = hashlib.shake_128(letters.encode()).digest(size)
    return "".join(letters[byte % len(letters)] for byte in content)


KEY = "-----BEGIN {}PRIVATE KEY{}-----\n{}\n"
BODY = base64.b64encode(hashlib.shake_128(b"key").digest(120)).decode()
TOKENS = {
    "a token of Hugging Face": ["hf_" + drawn(34, string.ascii_letters)],
    "a token of GitHub": [
        *("ghp_" + drawn(36), "ghs_" + drawn(36)),
        "github_pat_" + drawn(22) + "_" + drawn(59),
    ],
    "a token of GitLab": ["glpat-" + drawn(20)],
    "a key of AWS": ["AKIA" + drawn(16, string.ascii_uppercase + "234567")],
    "a token of Slack": [
        "xoxb-" + drawn(12, string.digits) + "-" + drawn(12, string.digits) + "-" + drawn(24),
        "xoxp-" + drawn(12, string.digits) + "-" + drawn(32, "0123456789abcdef"),
    ],
    "a token of npm": ["npm_" + drawn(36)],
    "an API key": ["sk-" + drawn(48), "sk-proj-" + drawn(120), "nvapi-" + drawn(64)],
}


@pytest.mark.parametrize(
    ("kind", "token"), [(kind, token) for kind, tokens in TOKENS.items() for token in tokens]
)
def test_tokens_are_found_wherever_they_stand(kind: str, token: str) -> None:
    for text in (
        token,
        f"TOKEN={token}\n",
        f'login(token="{token}")',
        f'{{"token": "{token}"}}',
        f"https://user:{token}@example.com/x.git",
        "x" * 60_000 + f" {token} ",
    ):
        assert secret_in(f"\n\n{text}".encode()) == (kind, 3)
    assert secret_in(f"\n{token}\n".encode("utf-16")) == (kind, 2)
    assert secret_in(b" " * LOOKED_AT + token.encode()) is None


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED ", "PGP "])
def test_private_keys_are_found_however_they_are_written(kind: str) -> None:
    key = KEY.format(kind, " BLOCK" if kind == "PGP " else "", BODY)
    with_head = key.replace("\n", "\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0\n\n", 1)
    quoted = "\n".join(f'    "{line}\\n"' for line in key.splitlines())
    indented = "key: |\n" + "".join(f"  {line}\n" for line in key.splitlines())
    as_json = json.dumps({"key": key})
    for text in (key, key.replace("\n", "\r\n"), with_head, as_json, json.dumps(as_json), quoted):
        assert secret_in(text.encode()) == ("a private key", 1)
    assert secret_in(indented.encode()) == ("a private key", 2)
    if kind != "PGP ":
        encoded = base64.b64encode(key.encode())
        assert secret_in(b"client-key-data: " + encoded) == ("a private key", 1)
    assert secret_in(f"AGE-SECRET-KEY-1{drawn(58, string.ascii_uppercase)}".encode())


HEADS = (
    "",
    "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0\n\n",
    'Version: GnuPG v1\nComment: a user\'s "own", C:\\temp\\x, a + b\n\n',
)


@pytest.mark.parametrize("head", HEADS)
def test_private_keys_with_a_head_are_found_in_programs_and_lists(head: str) -> None:
    key = KEY.format("", "", head + BODY)
    lines = key.splitlines()
    texts = [f'"{line}\\n"' for line in lines]
    as_json = json.dumps({"key": key})
    for text in (
        *(key, key.replace("\n", "\r\n"), key.replace("\n", "\r"), key.replace("\n", "\n  ")),
        *(as_json, json.dumps(as_json), repr(key)),
        *("\n".join(texts), " ".join(texts), "".join(texts), " + ".join(texts)),
        *(json.dumps(lines), json.dumps(lines, separators=(",", ":"))),
    ):
        assert secret_in(text.encode()) == ("a private key", 1), text
    assert secret_in(json.dumps(lines, indent=1).encode()) == ("a private key", 2)


@pytest.mark.parametrize(
    "text",
    [
        'if "-----BEGIN RSA PRIVATE KEY-----" in text:\n    raise ValueError\n',
        "-----BEGIN PRIVATE KEY-----\nMIIE...\n-----END PRIVATE KEY-----\n",
        "-----BEGIN PRIVATE KEY-----\n" + "x" * 64,
        "-----BEGIN PUBLIC KEY-----\n" + BODY,
        "-----BEGIN CERTIFICATE-----\n" + BODY,
        "hf_" + "x" * 34,
        "hf_YOUR_TOKEN",
        "hf_" + "convertcheckpointtoanotherformatxy",
        "hf_" + "abcdefghijklmnopqrstuvwxyzABCDEFGH",
        "ghp_" + "1234567890abcdefghijklmnopqrstuvwxyZ",
        "AKIA" + "IOSFODNN7EXAMPLE",
        "AKIA" + "A" * 16,
        "my_hf_" + drawn(34),
        "sk-a-class-of-a-style-sheet-that-has-a-rather-long-name-1",
        "re.compile(r'hf_[A-Za-z0-9]{34}|ghp_\\w{36}|AKIA[A-Z0-9]{16}')",
        "xoxb-not-a-real-token",
        drawn(200),
    ],
)
def test_what_only_looks_like_a_key_is_not(text: str) -> None:
    assert secret_in(text.encode()) is None


@pytest.mark.parametrize(
    "piece",
    [
        *(b"hf_", b" hf_", b"-----BEGIN PRIVATE KEY-----", b"-----BEGIN PRIVATE KEY-----\n"),
        *(b"-----BEGIN " + b"A" * 20 + b" ", b"sk-", b" sk-a", b"-----BEGIN PRIVATE KEY-----\na: "),
        *(b"-----BEGIN PRIVATE KEY-----\n" + line * 130 for line in (b"a: ,", b"a: '+", b"a: \\n")),
    ],
)
def test_no_file_takes_long(piece: bytes) -> None:
    for content in (piece * (LOOKED_AT // len(piece)), piece + b"a" * LOOKED_AT):
        begin = time.process_time()
        secret_in(content + b"PRIVATE KEY")
        assert time.process_time() - begin < 5  # s; it takes some milliseconds
