# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The table of releases against the locks that were made by it, and what is written from it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import releases, wheels
from ansible_collections.inference.sglang.plugins.module_utils.releases import RELEASES, Release

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "roles" / "sglang" / "files" / "locks"
LOCKED = [(release, python) for release in RELEASES.values() for python in release.pythons]
each_lock = pytest.mark.parametrize(("release", "python"), LOCKED, ids=lambda it: getattr(it, "version", it))
each_release = pytest.mark.parametrize("release", RELEASES.values(), ids=lambda release: release.version)


def text(release: Release, python: str) -> str:
    return (LOCKS / f"{release.version}-py{python}.txt").read_text()


def test_every_cuda_13_release_is_there_in_order() -> None:
    # Releases of SGLang on 2026-11-29 whose own pins ask for CUDA 13.
    patch_releases = "11 12 12.post1 13 13.post1 14 15 15.post1 16 17 18 19 20 21 22 23"
    assert list(RELEASES) == [f"0.5.{number}" for number in patch_releases.split()]


@each_release
def test_every_lock_is_in_the_table_with_its_digest(release: Release) -> None:
    found = {path.stem.split("-py")[1] for path in LOCKS.glob(f"{release.version}-py*.txt")}
    assert {python: wheels.digest(text(release, python)) for python in sorted(found)} == release.locks


def test_there_is_no_lock_of_a_release_that_the_table_lacks() -> None:
    assert {path.stem.split("-py")[0] for path in LOCKS.iterdir()} == set(RELEASES)


@each_lock
def test_a_lock_holds_what_the_table_says(release: Release, python: str) -> None:
    locked = wheels.pins(text(release, python))
    named = ("sglang", "torch", "flashinfer-python", "sglang-kernel")
    expected = [release.version, release.torch, release.flashinfer, release.kernel]
    assert [locked.get(name) for name in named] == expected
    for override in release.overrides:
        name, version = override.split("==")
        assert locked[name] == version


@each_lock
def test_every_wheel_of_a_lock_has_a_hash(release: Release, python: str) -> None:
    entry = r"[a-z0-9-]+==\S+(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n"
    assert re.fullmatch(f"(?:{entry})+", text(release, python))


@each_lock
def test_the_toolkit_wheels_of_a_lock_are_of_one_minor_version(release: Release, python: str) -> None:
    assert releases.mixed_toolkit(wheels.pins(text(release, python)), release.cuda) == []


def test_a_mixed_toolkit_is_found() -> None:
    # What 0.5.23 resolves to by its own pins: nvcc of 13.5 with headers of 13.0.
    mixed = {"nvidia-cuda-nvcc": "13.5.37", "nvidia-cuda-runtime": "13.0.96", "nvidia-cuda-cccl": "13.3.5.0.6"}
    (finding,) = releases.mixed_toolkit(mixed, "13.0")
    assert finding.id == "release.mixed_toolkit"
    assert "nvidia-cuda-cccl 13.3.5.0.6, nvidia-cuda-nvcc 13.5.37" in finding.seen


@each_release
def test_the_locks_of_a_release_differ_in_wheel_tags_and_exclusions_only(release: Release) -> None:
    first, *others = release.pythons
    proven = wheels.pins(text(release, first))
    assert first not in release.excludes
    for python in others:
        locked = wheels.pins(text(release, python))
        excluded = release.excludes.get(python, ())
        assert {name: proven.get(name) for name in locked} == locked
        assert set(excluded) <= proven.keys() - locked.keys()
        # What only the excluded need goes with them.
        assert excluded or locked == proven


@each_release
def test_exclusions_and_faults_are_of_pythons_that_have_a_lock(release: Release) -> None:
    named = set(release.excludes) | {fault.python for fault in release.known_faults if fault.python}
    assert named <= set(release.pythons)


@each_release
def test_the_size_in_the_table_is_the_one_measured(release: Release) -> None:
    results = (ROOT / "docs" / "lock-results.md").read_text()
    measured = re.search(rf"^\| {re.escape(release.version)} \| [\d.]+ \| (\d+) \|", results, re.MULTILINE)
    assert measured, "run `script/test locks --all`"
    # Byte code that the proof's imports wrote may differ.
    assert release.install_mb == pytest.approx(int(measured[1]), rel=0.02)


def test_the_page_of_releases_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "script" / "lib"))
    monkeypatch.delitem(sys.modules, "releases_page", raising=False)
    import releases_page  # noqa: PLC0415 (it is found through the line above)

    assert releases_page.PAGE.read_text() == releases_page.page(), "run `script/lock page`"
