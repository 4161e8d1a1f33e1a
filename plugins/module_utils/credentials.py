# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Credentials: which variables hold one, what must not be shown, and the file that holds an instance's API key."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding

# What names end in: HF_TOKEN, AWS_SECRET_ACCESS_KEY, UV_INDEX_SITE_PASSWORD. BLOCK_PER_TOKEN and the like are numbers.
_NAME = re.compile(
    r"(?:^|(?<!_PER)_)(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|(?:API|ACCESS|SECRET|PRIVATE|AUTH)_?KEY)$",
    re.IGNORECASE,
)
_USER_INFORMATION = re.compile(r"://([^/?#\s]+)@")


def is_secret(name: str) -> bool:
    """Whether a variable of this name holds a secret."""
    return _NAME.search(name) is not None


def secrets(environment: Mapping[str, object]) -> set[str]:
    """The texts of an environment that no output may repeat: secrets by name, and what a URL holds before its host."""
    found: set[str] = set()
    for name, value in environment.items():
        if is_secret(name):
            found.add(str(value))
        for information in _USER_INFORMATION.findall(str(value)):
            user, _colon, password = information.partition(":")
            found |= {information, password or user}
    return found - {""}


def judge_key(key: str) -> list[Finding]:
    """Whether an API key can be sent in a header, and reach SGLang's parser by its ``--config``. Never repeats it."""
    if not re.fullmatch(r"[!-~]+", key):
        seen = "sglang_server_api_key holds a blank, or a character that is not ASCII, which no HTTP header can carry"
    elif key.startswith("-"):
        seen = "sglang_server_api_key begins with a dash, and SGLang's parser takes what does for a flag"
    else:
        return []
    source = "sglang/srt/server_args_config_parser.py"
    return [Finding("credentials.key", "error", seen, "Use another key, such as openssl rand -hex 32 makes", source)]


def judge_log(patches: Collection[str]) -> list[Finding]:
    """Whether an engine with an API key would write it into its journal: every release logs all of its arguments.

    ``patches``  ids of those that the release has
    """
    if "api-key-log" in patches:
        return []
    seen = "Without patch api-key-log the engine writes sglang_server_api_key into the journal at every start"
    remedy = "Put api-key-log back among sglang_patches"
    return [Finding("credentials.log", "error", seen, remedy, "sgl-project/sglang#37457")]


def key_file(key: str) -> str:
    """What SGLang's ``--config`` reads as this API key: JSON, which is YAML too, and which Python reads by itself."""
    return json.dumps({"api-key": key}) + "\n"


def read_key(path: str) -> str:
    """The API key in the file of an instance; empty where no file is named.

    Raises OSError where it cannot be read, and ValueError, without repeating its content, where it holds no key.
    """
    if not path:
        return ""
    try:
        key = json.loads(Path(path).read_text(encoding="utf-8"))["api-key"]
    except (ValueError, LookupError, TypeError):
        key = None
    if not isinstance(key, str) or not key:
        raise ValueError(f"{path} holds no API key: run site.yml again")
    return key
