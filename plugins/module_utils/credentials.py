# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Credentials in environment variables: which names say that the value is one, and what must not be shown."""

from __future__ import annotations

import re
from collections.abc import Mapping

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
