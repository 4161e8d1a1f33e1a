# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module release_info on release folders as a node has them: complete, half-made, touched."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.sglang.plugins.module_utils import activations, wheels
from ansible_collections.inference.sglang.plugins.modules import release_info

Read = Callable[..., dict[str, Any]]
VERSION = "0.5.12.post1"
SOURCES = """class ServerArgs:
    def add_cli_args(parser):
        parser.add_argument("--pp-size", type=int, default=1)
"""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with one complete release of a patched file, which the instance ``kimi`` runs from."""
    release = tmp_path / "releases" / f"{VERSION}-0a1b2c3d-none"
    patched = release / "lib/python3.13/site-packages/sglang/srt/server_args.py"
    patched.parent.mkdir(parents=True)
    patched.write_text(SOURCES)
    states = [
        {"id": "one", "outcome": "applied", "file": str(patched), "sha256": _sha256(patched)},
        {"id": "two", "outcome": "not_needed", "file": str(release / "nowhere.py"), "sha256": ""},
    ]
    content = {"version": VERSION, "python": "3.13", "lock": "0a1b2c3d", "torch_cuda": "13.0", "flags": 402}
    wheels.write_manifest(str(release), content | {"patches": states, "versions": {"sglang": VERSION}})
    (tmp_path / "releases" / ".0.5.23-0a1b2c3d-none.lock").touch()
    monkeypatch.setattr(activations, "FOLDER", tmp_path / "etc")
    for name, path in {"kimi": release, "other": release.with_name("gone")}.items():
        (tmp_path / "etc" / name).mkdir(parents=True)
        (tmp_path / "etc" / name / "plan.json").write_text(json.dumps({"release_path": str(path)}))
    (tmp_path / "etc" / "broken").mkdir()
    (tmp_path / "etc" / "broken" / "plan.json").write_text("[")
    return tmp_path


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def read(capsys: pytest.CaptureFixture[str]) -> Read:
    """Call the module with these arguments; its result."""

    def call(check: bool = False, **arguments: object) -> dict[str, Any]:
        with patch_module_args(arguments | {"_ansible_check_mode": check}), pytest.raises(SystemExit):
            release_info.main()
        return json.loads(capsys.readouterr().out)

    return call


def test_a_complete_release(node: Path, read: Read) -> None:
    result = read(releases_path=str(node / "releases"))
    (release,) = result["releases"]
    assert result["changed"] is False
    assert release["path"] == str(node / "releases" / f"{VERSION}-0a1b2c3d-none")
    told = ("complete", "version", "python", "lock", "torch_cuda", "flags", "instances", "findings")
    assert [release[key] for key in told] == [True, VERSION, "3.13", "0a1b2c3d", "13.0", 402, ["kimi"], []]
    assert [(patch["id"], patch["state"]) for patch in release["patches"]] == [("one", "intact"), ("two", "not_needed")]
    assert {fault["python"] for fault in release["known_faults"]} <= {"", "3.13"}
    assert "outlines-python313" in [fault["id"] for fault in release["known_faults"]]
    assert read(check=True, releases_path=str(node / "releases")) == result


def test_faults_of_another_python_are_not_told(node: Path, read: Read) -> None:
    folder = next((node / "releases").glob("0*"))
    wheels.write_manifest(str(folder), wheels.read_manifest(str(folder)) | {"python": "3.11"})
    (release,) = read(path=str(folder))["releases"]
    assert "outlines-python313" not in [fault["id"] for fault in release["known_faults"]]


@pytest.mark.parametrize(("state", "change"), [("changed", lambda path: path.write_text("")), ("missing", os.remove)])
def test_a_patched_file_that_someone_touched(node: Path, read: Read, state: str, change: Callable[..., object]) -> None:
    change(next(node.glob("releases/*/lib/python3.13/site-packages/sglang/srt/server_args.py")))
    (release,) = read(releases_path=str(node / "releases"))["releases"]
    assert release["patches"][0]["state"] == state
    (finding,) = release["findings"]
    assert (finding["id"], finding["severity"]) == ("release.patch_touched", "warning")
    assert f"is {state} since the installation" in finding["seen"]


@pytest.mark.parametrize(("manifest", "fault"), [(None, "release.incomplete"), ("{", "release.manifest")])
def test_a_folder_that_is_not_complete(node: Path, read: Read, manifest: str | None, fault: str) -> None:
    folder = node / "releases" / "0.5.23-0a1b2c3d-5e6f7081"
    folder.mkdir()
    if manifest:
        (folder / wheels.MANIFEST).write_text(manifest)
    complete, half = read(releases_path=str(node / "releases"), flags=True)["releases"]
    assert (complete["complete"], half["complete"]) == (True, False)
    assert (half["version"], half["python"], half["flags"], half["patches"]) == ("0.5.23", "", 0, [])
    assert [finding["id"] for finding in half["findings"]] == [fault, "release.flags"]
    assert half["flag_table"] == []


@pytest.mark.parametrize("patches", [None, 5, {}, [{"file": "/\0", "outcome": "applied"}]])
def test_patches_of_a_damaged_manifest(node: Path, read: Read, patches: object) -> None:
    folder = next((node / "releases").glob("0*"))
    wheels.write_manifest(str(folder), wheels.read_manifest(str(folder)) | {"patches": patches})
    (release,) = read(path=str(folder))["releases"]
    assert [patch["state"] for patch in release["patches"]] == (["missing"] if isinstance(patches, list) else [])


def test_a_manifest_that_is_a_folder_and_sources_that_are_no_python(node: Path, read: Read) -> None:
    folder = next((node / "releases").glob("0*"))
    (folder / wheels.MANIFEST).unlink()
    (folder / wheels.MANIFEST).mkdir()
    next(folder.glob("lib/python*/site-packages/sglang/srt/server_args.py")).write_text("class ServerArgs(:\n")
    (release,) = read(path=str(folder), flags=True)["releases"]
    assert release["complete"] is False
    assert [finding["id"] for finding in release["findings"]] == ["release.manifest", "release.flags"]


def test_instances_that_would_go_back_to_a_release_however_it_is_written(node: Path, read: Read) -> None:
    folder = next((node / "releases").glob("0*"))
    (node / "releases" / "current").symlink_to(folder.name)
    for slot, path in {"good": node / "releases" / "current", "previous": Path("/\0")}.items():
        wheels.write_atomically(node / "etc" / "other" / slot / "plan.json", json.dumps({"release_path": str(path)}))
    (release,) = read(path=str(folder))["releases"]
    assert release["instances"] == ["kimi", "other"]


def test_flags_and_size_are_told_when_asked(node: Path, read: Read) -> None:
    (release,) = read(releases_path=str(node / "releases"))["releases"]
    assert {"flag_table", "size_mb"}.isdisjoint(release)
    blob = next((node / "releases").glob("0*")) / "blob"
    blob.write_bytes(b"x" * 3_000_000)
    os.link(blob, blob.with_name("link"))
    (release,) = read(releases_path=str(node / "releases"), flags=True, size=True)["releases"]
    assert release["flag_table"] == [{"name": "--pp-size", "type": "int", "default": 1}]
    assert release["size_mb"] == 3


def test_a_node_without_releases(tmp_path: Path, read: Read) -> None:
    assert read(releases_path=str(tmp_path / "nothing"))["releases"] == []
    assert read(path=str(tmp_path / "nothing"))["msg"] == f"{tmp_path}/nothing is no folder"
    assert "required" in read()["msg"]


def test_every_key_is_documented(node: Path, read: Read) -> None:
    documented = yaml.safe_load(release_info.RETURN)["releases"]["contains"]
    (release,) = read(releases_path=str(node / "releases"), flags=True, size=True)["releases"]
    assert set(documented) == set(release)
    for key in ("patches", "known_faults"):
        assert set(documented[key]["contains"]) == set(release[key][0])
