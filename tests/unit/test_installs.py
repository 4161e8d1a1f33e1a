# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The name of a release's folder, and the judgement on what was found there."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import installs, patches

LOCK = f"sglang==0.5.12.post1 --hash=sha256:{'a' * 64}\nflashinfer-python==0.6.11.post1 --hash=sha256:{'b' * 64}\n"


def patch(after: str = "d" * 64, version: str = "0.5.12.post1") -> patches.Patch:
    return patches.from_mapping({
        "id": "raise-limit", "summary": "Raise the limit", "distribution": "sglang", "file": "sglang/limits.py",
        "releases": {version: {"before": "c" * 64, "after": after}},
        "edits": [{"old": "= 0", "new": "= 16"}], "probe": "pass",
    })  # fmt: skip


def report(**changes: object) -> dict[str, object]:
    versions = {"sglang": "0.5.12.post1", "flashinfer-python": "0.6.11.post1"}
    return {"versions": versions, "torch_cuda": "13.0", "python_header": True} | changes


def judged(**changes: object) -> list[tuple[str, str]]:
    found = installs.judge(report(**changes), LOCK, "0.5.12.post1", "13.0")
    assert {finding.severity for finding in found} <= {"error"}
    return [(finding.id, finding.seen) for finding in found]


def test_other_content_has_another_folder():
    contents = [
        ("0.5.12.post1", LOCK, []),
        ("0.5.12.post1", LOCK.replace("a" * 64, "e" * 64), []),
        ("0.5.12.post1", LOCK, [patch()]),
        ("0.5.12.post1", LOCK, [patch(after="e" * 64)]),
        ("0.5.13", LOCK, []),
    ]
    names = [installs.name(*content) for content in contents]
    assert len(set(names)) == len(contents)
    assert names[0].startswith("0.5.12.post1-")
    assert names[0].endswith("-none")
    assert installs.name(*contents[2]) == names[2]


def test_a_patch_of_another_release_changes_no_name():
    assert installs.name("0.5.13", LOCK, [patch()]) == installs.name("0.5.13", LOCK, [])


def test_packages_lie_where_a_virtual_environment_has_them():
    assert installs.site_packages("/opt/r", "3.11") == Path("/opt/r/lib/python3.11/site-packages")


def test_what_the_lock_promises_is_found_right():
    assert judged() == []
    assert judged(versions=report()["versions"] | {"pip": "25.0", "flashinfer-cubin": "0.6.11.post1"}) == []


def test_other_versions_than_locked_are_named():
    ((fault, seen),) = judged(versions={"sglang": "0.5.12.post1", "flashinfer-python": "0.6.10"})
    assert (fault, seen) == ("release.versions", "flashinfer-python is 0.6.10, locked 0.6.11.post1")
    faults = dict(judged(versions={"flashinfer-python": "0.6.11.post1"}))
    assert faults["release.versions"] == "sglang is absent, locked 0.5.12.post1"
    assert faults["release.sglang"] == "SGLang is None, wanted 0.5.12.post1"


def test_a_lock_of_another_release_is_found():
    (finding,) = installs.judge(report(), LOCK, "0.5.13", "13.0")
    assert finding.id == "release.sglang"


@pytest.mark.parametrize("cuda", ["12.8", None])
def test_pytorch_for_another_cuda_is_found(cuda):
    ((fault, seen),) = judged(torch_cuda=cuda)
    assert fault == "release.cuda"
    assert f"CUDA {cuda}," in seen


@pytest.mark.parametrize("companion", ["flashinfer-cubin", "flashinfer-jit-cache"])
def test_a_stale_companion_of_flashinfer_is_found(companion):
    ((fault, seen),) = judged(versions=report()["versions"] | {companion: "0.6.10"})
    assert (fault, seen) == (
        "release.flashinfer_companion",
        f"{companion} 0.6.10 lies beside flashinfer-python 0.6.11.post1",
    )


def test_a_missing_header_is_found():
    assert [fault for fault, _seen in judged(python_header=False)] == ["release.python_header"]
