# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The modules apt_packages, with small programs in place of apt and dpkg, and apt_source where it fails."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.sglang.plugins.modules import apt_packages, apt_source


def test_a_run_that_was_killed_before_it_held_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All is installed, nothing held: dependencies are held as the first run would have."""
    rows = r"cuda-toolkit-13-0\t13.0.2-1\tinstall\tinstalled\ncuda-nvcc-13-0\t13.0.88-1\tinstall\tinstalled\n"
    scripts = {
        "dpkg-query": f"printf '{rows}libc6\\t2.36\\tinstall\\tinstalled\\n'",
        "apt-cache": "printf 'cuda-toolkit-13-0\\n  Depends: cuda-nvcc-13-0\\ncuda-nvcc-13-0\\nlibc6\\n'",
        "apt-mark": f'echo "$@" >> {tmp_path}/marked',
        "apt-get": "exit 1",
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with patch_module_args({"names": ["cuda-toolkit-13-0"]}), pytest.raises(SystemExit):
        apt_packages.main()
    result = json.loads(capsys.readouterr().out)
    assert (result["steps"], result["held"]) == ([], ["cuda-nvcc-13-0", "cuda-toolkit-13-0"])
    assert (tmp_path / "marked").read_text() == "hold cuda-nvcc-13-0 cuda-toolkit-13-0\n"


def test_the_url_of_a_key_is_told_without_its_password(capsys: pytest.CaptureFixture[str]) -> None:
    given = {
        "url": "https://mirror.example/x/",
        "key": "https://me:hunter2@127.0.0.1:1/key.gpg",
        "key_fingerprints": ["A" * 40],
        "proxy": "http://me:hunter3@127.0.0.1:1",
    }
    with patch_module_args(given), pytest.raises(SystemExit):
        apt_source.main()
    said = capsys.readouterr().out
    assert "apt_key.unreachable" in said
    assert "hunter" not in said
