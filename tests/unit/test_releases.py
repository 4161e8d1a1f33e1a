# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The table of releases against the locks that were made by it."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import wheels
from ansible_collections.inference.sglang.plugins.module_utils.releases import RELEASES, Release

LOCKS = Path(__file__).parents[2] / "roles" / "sglang" / "files" / "locks"
LOCKED = [(release, python) for release in RELEASES.values() for python in release.pythons]
each_lock = pytest.mark.parametrize(("release", "python"), LOCKED, ids=lambda it: getattr(it, "version", it))


def pins(release: Release, python: str) -> dict[str, str]:
    return wheels.pins((LOCKS / f"{release.version}-py{python}.txt").read_text())


@each_lock
def test_a_lock_holds_what_the_table_says(release: Release, python: str) -> None:
    locked = pins(release, python)
    named = ("sglang", "torch", "flashinfer-python", "sglang-kernel")
    expected = [release.version, release.torch, release.flashinfer, release.kernel]
    assert [locked.get(name) for name in named] == expected


@each_lock
def test_a_lock_lacks_what_the_table_excludes_and_no_other_does(release: Release, python: str) -> None:
    excluded = set(release.excludes.get(python, ()))
    assert excluded.isdisjoint(pins(release, python))
    others = (pins(release, other) for other in release.pythons if other not in release.excludes)
    assert all(excluded <= set(locked) for locked in others)


@pytest.mark.parametrize("release", RELEASES.values(), ids=lambda release: release.version)
def test_every_lock_and_every_exclusion_is_in_the_table(release: Release) -> None:
    found = {path.stem.split("-py")[1] for path in LOCKS.glob(f"{release.version}-py*.txt")}
    assert found == set(release.pythons)
    assert set(release.excludes) | {fault.python for fault in release.known_faults} <= found
