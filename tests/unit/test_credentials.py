# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which names of variables mean a secret, and what of an environment must not be shown."""

from __future__ import annotations

import pytest
from ansible_collections.inference.sglang.plugins.module_utils.credentials import is_secret, secrets


@pytest.mark.parametrize(
    "name",
    [
        "TOKEN",
        "HF_TOKEN",
        "UV_INDEX_SITE_PASSWORD",
        "AWS_SECRET_ACCESS_KEY",
        "api_key",
        "OPENAI_APIKEY",
        "GOOGLE_CREDENTIALS",
    ],
)
def test_names_of_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "UV_DEFAULT_INDEX",
        "TOKENIZERS_PARALLELISM",
        "FLASHINFER_ROUTING_FORCE_BLOCK_PER_TOKEN",
        "MAX_TOKENS",
        "MONKEY",
        "KEY",
    ],
)
def test_names_of_other_things(name):
    assert not is_secret(name)


def test_secrets_of_an_environment():
    environment = {
        "UV_DEFAULT_INDEX": "https://joe:hunter2@mirror.example/simple",
        "UV_INDEX": "https://t0ken@one.example/simple https://two.example/a@b",
        "UV_INDEX_SITE_PASSWORD": 1234,
        "HTTPS_PROXY": "http://proxy.example:3128",
        "UV_HTTP_TIMEOUT": "30",
        "HF_TOKEN": "",
    }
    assert secrets(environment) == {"joe:hunter2", "hunter2", "t0ken", "1234"}
