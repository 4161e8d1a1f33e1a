# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which names of variables mean a secret, what of an environment must not be shown, and the file of an API key."""

from __future__ import annotations

import pytest
import yaml
from ansible_collections.inference.sglang.plugins.module_utils.credentials import (
    is_secret,
    judge_key,
    judge_log,
    key_file,
    read_key,
    secrets,
)
from hypothesis import given
from hypothesis import strategies as st


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


@given(st.text("".join(map(chr, range(33, 127))), min_size=1).filter(lambda key: not key.startswith("-")))
def test_a_key_is_the_same_to_yaml_and_to_this_room(tmp_path_factory, key):
    path = tmp_path_factory.mktemp("etc") / "secrets.yml"
    path.write_text(key_file(key))
    assert judge_key(key) == []
    assert yaml.safe_load(path.read_text()) == {"api-key": key}
    assert read_key(str(path)) == key


@pytest.mark.parametrize("key", ["two words", "-dashed", "schlüssel", "line\n", "\ttab", "", " "])
def test_keys_that_cannot_be_sent_or_given(key):
    (finding,) = judge_key(key)
    assert (finding.id, finding.severity) == ("credentials.key", "error")
    assert len(key) < 2 or key not in str(finding)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"api-key": 5}', '{"api-key": ""}', "api-key: hidden"])
def test_a_file_without_a_key_is_told_and_not_repeated(tmp_path, content):
    (tmp_path / "secrets.yml").write_text(content)
    with pytest.raises(ValueError, match="holds no API key") as told:
        read_key(str(tmp_path / "secrets.yml"))
    assert "hidden" not in str(told.value)


def test_a_key_needs_the_patch_of_the_log():
    assert judge_log(["pp-abort", "api-key-log"]) == []
    (finding,) = judge_log(["pp-abort"])
    assert (finding.id, finding.severity) == ("credentials.log", "error")


def test_no_file_is_no_key(tmp_path):
    assert read_key("") == ""
    with pytest.raises(OSError, match="No such file"):
        read_key(str(tmp_path / "absent"))
