# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the published sources of each release make of the file that holds an API key, and whom they ask for the key."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import releases
from ansible_collections.inference.sglang.plugins.module_utils.credentials import judge_key, key_file

SOURCES = Path(os.environ["SGLANG_SOURCES"])
each_release = pytest.mark.parametrize("version", releases.RELEASES)


def load(version: str, name: str) -> ModuleType:
    """A module of SGLang's, wherever in the release it is, by itself."""
    (path,) = (SOURCES / version / "sglang/srt").rglob(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"{name}_of_a_release", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@each_release
@pytest.mark.parametrize("key", ['a"b$c%d', "it's", "back\\slash", "null", "1e3", "{x}", "#a", "0123456789abcdef"])
def test_the_parser_gets_the_key_of_the_file(tmp_path: Path, version: str, key: str) -> None:
    """Before the other flags, which keep their order and win."""
    assert judge_key(key) == []
    (tmp_path / "secrets.yml").write_text(key_file(key))
    parser = argparse.ArgumentParser()
    for flag in ("--api-key", "--port", "--config"):
        parser.add_argument(flag)
    merger = load(version, "server_args_config_parser").ConfigArgumentMerger(parser)
    merged = merger.merge_config_with_args(["--port", "1", "--config", str(tmp_path / "secrets.yml")])
    assert merged == ["--api-key", key, "--port", "1"]
    assert parser.parse_args(merged).api_key == key


@each_release
def test_the_launcher_reads_the_file_and_leaves_the_argument_list_alone(version: str) -> None:
    text = (SOURCES / version / "sglang/srt/server_args.py").read_text(encoding="utf-8")
    assert 'if "--config" in argv:\n' in text
    launcher = (SOURCES / version / "sglang/launch_server.py").read_text(encoding="utf-8")
    assert "prepare_server_args(sys.argv[1:])" in launcher
    assert "sys.argv =" not in text + launcher


@each_release
@pytest.mark.parametrize(
    ("path", "header", "allowed"),
    [
        ("/v1/completions", None, False),
        ("/v1/completions", "Bearer wrong", False),
        ("/v1/completions", "Bearer a key", True),
        ("/health", None, True),
    ],
)
def test_health_needs_no_key_and_a_completion_does(version: str, path: str, header: str | None, allowed: bool) -> None:
    auth = load(version, "auth")
    decision = auth.decide_request_auth(
        method="GET",
        path=path,
        authorization_header=header,
        api_key="a key",
        admin_api_key=None,
        auth_level=auth.AuthLevel.NORMAL,
    )
    assert decision.allowed is allowed
