# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What no file of the repository may hold, and what the repository must hold."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir())

# Written so that no pattern finds itself.
FORBIDDEN = {
    # Which registry serves a package is the machine's own setting.
    "the host name of a package registry": (
        r"\b(?:pypi|python(?:hosted)|registry\.npmjs|(?:deb|security|snapshot)\.debian|galaxy\.ansible)[.](?:org|com)\b"
    ),
    "a path of one person's machine": r"/(?:work|home/[a-z]\w+|tmp/w|root/[.]pyenv)/",
    "a file that is not in the repository": r"\bshared/(?:facts|prototypes|reports|DESIGN|STYLE)\b",
    "a note of work left undone": r"\b(?:TO(?:DO)|FIX(?:ME))\b",
}


def repository_files() -> list[Path]:
    """Everything that is, or would be, committed."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = (ROOT / name for name in listed.split("\0") if name)
    return [file for file in files if file.is_file() and not file.is_symlink()]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    found = []
    for file in repository_files():
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1):
            if match := pattern.search(line):
                found.append(f"{file.relative_to(ROOT)}:{number}: {match[0]}")
    assert not found, "\n".join(["", *found])


def test_ansible_test_ignores_nothing() -> None:
    ignored = [file.name for file in (ROOT / "tests" / "sanity").glob("ignore-*.txt") if file.read_text().strip()]
    assert ignored == []


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_role_has_its_files(role: Path) -> None:
    needed = ("README.md", "defaults/main.yml", "meta/argument_specs.yml", "meta/main.yml", "tasks/main.yml")
    assert [name for name in needed if not (role / name).is_file()] == []


def test_the_version_is_released_or_its_changes_wait_as_fragments() -> None:
    version = yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"]
    releases = yaml.safe_load((ROOT / "changelogs" / "changelog.yaml").read_text())["releases"]
    newest = max((tuple(map(int, release.split("."))) for release in releases), default=(0, 0, 0))
    galaxy = tuple(map(int, version.split(".")))
    assert newest <= galaxy, "the changelog is ahead of galaxy.yml"
    if newest < galaxy:
        assert list((ROOT / "changelogs" / "fragments").glob("*.yml")), f"no fragment says what {version} brings"
