# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The name of a release's folder, and the judgement on what was found there."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import installs, patches, releases, wheels
from ansible_collections.inference.sglang.plugins.module_utils.flags import Flag, FlagTable

LOCKS = Path(__file__).parents[2] / "roles" / "sglang" / "files" / "locks"
LOCK = f"sglang==0.5.12.post1 --hash=sha256:{'a' * 64}\nflashinfer-python==0.6.11.post1 --hash=sha256:{'b' * 64}\n"


def patch(after: str = "d" * 64, version: str = "0.5.12.post1") -> patches.Patch:
    return patches.from_mapping({
        "id": "raise-limit", "summary": "Raise the limit", "distribution": "sglang", "file": "sglang/limits.py",
        "releases": {version: {"before": "c" * 64, "after": after}},
        "edits": [{"old": "= 0", "new": "= 16"}], "probe": "pass",
    })  # fmt: skip


def report(**changes: object) -> dict[str, object]:
    versions = {"sglang": "0.5.12.post1", "flashinfer-python": "0.6.11.post1"}
    there = {"header": "/usr/include/python3.12/Python.h", "header_exists": True, "missing_libraries": []}
    return {"versions": versions, "torch_cuda": "13.0", **there} | changes


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


def test_case_c06_an_old_sglang_and_a_pytorch_for_another_cuda():
    """What mixed package indexes resolve to: the lock and the look at what was installed stand against it."""
    faults = dict(judged(versions={"sglang": "0.5.2", "flashinfer-python": "0.6.11.post1"}, torch_cuda="12.8"))
    assert faults["release.sglang"] == "SGLang is 0.5.2, wanted 0.5.12.post1"
    assert faults["release.versions"] == "sglang is 0.5.2, locked 0.5.12.post1"
    assert faults["release.cuda"] == "PyTorch is built for CUDA 12.8, the release needs 13.0"


@pytest.mark.parametrize("companion", ["flashinfer-cubin", "flashinfer-jit-cache"])
@pytest.mark.parametrize("version", ["0.6.10", "0.6.11", "0.6.11.post10", "0.6.10+cu130"])
def test_case_c10_a_stale_companion_of_flashinfer_is_found(companion, version):
    faults = dict(judged(versions=report()["versions"] | {companion: version}))
    assert faults == {
        "release.flashinfer_companion": f"{companion} {version} lies beside flashinfer-python 0.6.11.post1",
        "release.unlocked": f"The lock does not hold {companion} {version}, and the release does",
    }


@pytest.mark.parametrize("stale", ["flashinfer-cubin", "sgl-deep-gemm", "pip"])
def test_case_c10_what_an_upgrade_in_place_leaves_behind_is_found(stale):
    """The kind: whatever a release's packages can see and its lock does not hold."""
    ((fault, seen),) = judged(versions=report()["versions"] | {stale: "0.6.11.post1"})
    assert (fault, seen) == ("release.unlocked", f"The lock does not hold {stale} 0.6.11.post1, and the release does")


@pytest.mark.parametrize("version", ["0.6.11.post1", "0.6.11.post1+cu130"])
def test_case_c10_a_companion_that_the_lock_holds_is_right(version):
    lock = LOCK + f"flashinfer-jit-cache=={version} --hash=sha256:{'e' * 64}\n"
    versions = report()["versions"] | {"flashinfer-jit-cache": version}
    assert installs.judge(report(versions=versions), lock, "0.5.12.post1", "13.0") == []


@pytest.mark.parametrize("path", sorted(LOCKS.glob("*.txt")), ids=lambda path: path.stem)
def test_case_c10_no_lock_has_companions_of_another_flashinfer(path):
    locked = wheels.pins(path.read_text(encoding="utf-8"))
    found = {locked[name] for name in ("flashinfer-cubin", "flashinfer-jit-cache") if name in locked}
    assert found <= {locked["flashinfer-python"]}


def test_case_c10_another_release_is_another_folder():
    """From 0.5.15, whose lock holds flashinfer-cubin, to 0.5.18, whose lock does not: nothing is left to be stale."""
    names = [
        installs.name(release, (LOCKS / f"{release}-py3.11.txt").read_text(), []) for release in ("0.5.15", "0.5.18")
    ]
    assert len(set(names)) == 2
    before, after = (wheels.pins((LOCKS / f"{release}-py3.11.txt").read_text()) for release in ("0.5.15", "0.5.18"))
    assert before["flashinfer-cubin"] == before["flashinfer-python"] == releases.RELEASES["0.5.15"].flashinfer
    assert "flashinfer-cubin" not in after


def test_case_c07_what_the_distribution_lacks_is_named_with_its_package():
    """Headers of another minor version do not count, and no wheel brings libnuma."""
    found = installs.judge(
        report(header_exists=False, missing_libraries=["libnuma.so.1"]), LOCK, "0.5.12.post1", "13.0"
    )
    assert [(finding.id, finding.remedy) for finding in found] == [
        ("release.python_header", "Add python3.12-dev to uv_packages"),
        ("release.system_library", "Add libnuma1 to uv_packages"),
    ]


def test_case_c07_an_interpreter_of_its_own_needs_no_package():
    assert judged(header="/opt/python/include/python3.12/Python.h") == []
    (finding,) = installs.judge(
        report(header="/opt/python/include/python3.12/Python.h", header_exists=False), LOCK, "0.5.12.post1", "13.0"
    )
    assert finding.remedy == "Install that Python with its headers"


def test_flags_that_differ_from_the_shipped_table_are_named():
    shipped = FlagTable([Flag("--a"), Flag("--b", default=1)])
    assert installs.judge_flags(shipped, shipped, "The parser") == []
    (finding,) = installs.judge_flags(FlagTable([Flag("--b", default=2), Flag("--c")]), shipped, "The parser")
    assert (finding.id, finding.severity) == ("release.flags", "error")
    assert finding.seen.endswith("table differ: --a is only shipped; --c is only found; --b: default")
    many = FlagTable(Flag(f"--flag-{number}") for number in range(9))
    (finding,) = installs.judge_flags(many, shipped, "The parser")
    assert finding.seen.endswith("and 6 more")
