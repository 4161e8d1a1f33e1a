# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One owner of a repository, in a folder that stands for a node."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import apt, apt_files

URL = "https://cuda.example.com/compute/cuda/repos/ubuntu2404/x86_64/"
REPOSITORY = apt.Repository(URL)
PIN = REPOSITORY.preferences("release l=NVIDIA CUDA", 100)
KEY = b"\x98\x06\x04" + b"\x00" * 5
# C01 of the field cases.
OTHERS = {
    "etc/apt/sources.list.d/old-cuda.list": f"deb {URL} /\n",
    "etc/apt/sources.list.d/cuda-ubuntu2404-x86_64.list": f"deb [signed-by=/usr/share/keyrings/cuda.gpg] {URL} /",
    "etc/apt/sources.list.d/mixed.sources": (
        f"Types: deb\nURIs: {URL}\nSuites: /\n\nTypes: deb\nURIs: http://x.example/\nSuites: ./\n"
    ),
    "etc/apt/sources.list": f"deb {URL} /\n",
    "etc/apt/preferences.d/cuda-repository-pin-600": "Package: *\nPin: release l=NVIDIA CUDA\nPin-Priority: 600\n",
    "etc/apt/sources.list.d/foreign.list": "deb https://foreign.example.com/ubuntu2404/x86_64/ /\n",
    "etc/apt/sources.list.d/old.list.save": f"deb {URL} /\n",
    "etc/apt/preferences.d/mine": "Package: *\nPin: release a=sid\nPin-Priority: 1\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in OTHERS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() + (b"# caf\xe9\n" if name.endswith("sources.list") else b""))
    return tmp_path


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def active(root: Path) -> list[str]:
    """Files in which apt would find the repository."""
    found = [root / "etc/apt/sources.list", *(root / "etc/apt/sources.list.d").glob("*")]
    return sorted(
        path.name
        for path in found
        if path.suffix in (".list", ".sources")
        for entry in apt.entries(path.name, path.read_text(errors="replace"))
        if entry.enabled and any(place == REPOSITORY.place for _, _, place in entry.places)
    )


def own(root: Path, key: bytes | None = KEY, proxy: str = "") -> apt_files.Plan:
    return apt_files.own(REPOSITORY, key, PIN, proxy, root)


def test_one_owner_is_left(root: Path) -> None:
    assert len(active(root)) == 4
    plan = own(root)
    assert sorted(plan.disabled) == [
        "/etc/apt/preferences.d/cuda-repository-pin-600",
        "/etc/apt/sources.list",
        "/etc/apt/sources.list.d/cuda-ubuntu2404-x86_64.list",
        "/etc/apt/sources.list.d/mixed.sources",
        "/etc/apt/sources.list.d/old-cuda.list",
    ]
    apt_files.write(plan.files, root)
    assert active(root) == [Path(apt.SOURCE).name]
    assert not (root / "etc/apt/preferences.d/cuda-repository-pin-600").exists()
    assert (root / "etc/apt/sources.list").read_bytes().startswith(b"# deb https://cuda")
    for name in ("etc/apt/sources.list.d/foreign.list", "etc/apt/preferences.d/mine"):
        assert (root / name).read_text() == OTHERS[name]


def test_the_second_run_changes_nothing(root: Path) -> None:
    apt_files.write(own(root).files, root)
    assert own(root).files == {}
    assert own(root, key=None).files == {}


def test_the_way_back_is_byte_exact(root: Path) -> None:
    before = files(root)
    apt_files.write(own(root, proxy="http://p:1").files, root)
    assert files(root) != before
    plan = apt_files.restore(root)
    assert not plan.findings
    apt_files.write(plan.files, root)
    assert files(root) == before
    assert apt_files.restore(root).files == {}


def test_writing_what_was_there_undoes_it(root: Path) -> None:
    before = files(root)
    undo = apt_files.write(own(root).files, root)
    apt_files.write(undo, root)
    assert files(root) == before


def test_what_was_changed_since_is_not_overwritten(root: Path) -> None:
    apt_files.write(own(root).files, root)
    changed = root / "etc/apt/sources.list.d/mixed.sources"
    changed.write_text(changed.read_text() + "\nTypes: deb\nURIs: http://new.example/\nSuites: ./\n")
    plan = apt_files.restore(root)
    assert [finding.id for finding in plan.findings] == ["apt.changed_since"]
    apt_files.write(plan.files, root)
    assert "new.example" in changed.read_text()
    assert (root / f"etc/apt/sources.list.d/mixed.sources{apt.DISABLED}").exists()


def test_what_comes_again_is_disabled_again(root: Path) -> None:
    apt_files.write(own(root).files, root)
    (root / "etc/apt/sources.list.d/old-cuda.list").write_text(f"deb [trusted=yes] {URL} /\n")
    plan = own(root)
    assert list(plan.disabled) == ["/etc/apt/sources.list.d/old-cuda.list"]
    apt_files.write(plan.files, root)
    assert active(root) == [Path(apt.SOURCE).name]


def test_files_can_be_read_by_apt_and_passwords_by_root_alone(root: Path) -> None:
    apt_files.write(own(root, proxy="http://me:hunter2@p:1").files, root)
    modes = {path: (root / path.lstrip("/")).stat().st_mode & 0o777 for path in apt_files.OWN}
    assert modes == {apt.SOURCE: 0o644, apt.KEYRING: 0o644, apt.PREFERENCES: 0o644, apt.PROXY: 0o600}
    apt_files.write(own(root, proxy="http://p:1").files, root)
    assert (root / apt.PROXY.lstrip("/")).stat().st_mode & 0o777 == 0o644


def test_the_mode_of_others_stays(root: Path) -> None:
    path = root / "etc/apt/sources.list.d/mixed.sources"
    path.chmod(0o640)
    apt_files.write(own(root).files, root)
    assert path.stat().st_mode & 0o777 == 0o640


def test_what_is_set_aside_is_no_more_readable_than_it_was(root: Path) -> None:
    """An entry of others may hold a password."""
    path = root / "etc/apt/sources.list.d/old-cuda.list"
    secret = URL.replace("https://", "https://me:hunter2@")
    path.write_text(f"deb {secret} /\n")
    path.chmod(0o600)
    plan = own(root)
    assert "hunter2" not in str(plan.disabled) + str(apt_files.diff(plan.files, root))
    before = apt_files.write(plan.files, root)
    kept = path.with_name(path.name + apt.DISABLED)
    assert (path.exists(), kept.stat().st_mode & 0o777) == (False, 0o600)
    apt_files.write(before, root)
    assert (kept.exists(), path.stat().st_mode & 0o777) == (False, 0o600)
    apt_files.write(own(root).files, root)
    back = apt_files.restore(root)
    assert "hunter2" not in str(back.disabled) + str(apt_files.diff(back.files, root))
    apt_files.write(back.files, root)
    assert (path.stat().st_mode & 0o777, path.read_text()) == (0o600, f"deb {secret} /\n")


@pytest.mark.parametrize("steps", range(14))
@pytest.mark.parametrize("undo", ["restore", "refused"])
def test_a_way_back_that_is_killed_loses_nothing(root: Path, undo: str, steps: int) -> None:
    """Killed after any number of its files, what stood in the others' files can still be had."""
    meant = files(root)
    before = apt_files.write(own(root).files, root)
    mine = root / "etc/apt/sources.list.d/mixed.sources"
    if undo == "restore":
        mine.write_text("# changed since\n")
    back = apt_files.restore(root).files if undo == "restore" else before
    apt_files.write(dict(list(back.items())[:steps]), root)
    assert set(meant.values()) <= set(files(root).values())
    for _again in range(2):
        apt_files.write(apt_files.restore(root).files, root)
    if undo == "restore":
        assert mine.read_text() == "# changed since\n"
    left = {name: text for name, text in files(root).items() if "mixed.sources" not in name}
    assert left == {name: text for name, text in meant.items() if "mixed.sources" not in name}


def test_the_diff_shows_fingerprints_and_no_password(root: Path) -> None:
    plan = own(root, proxy="http://me:hunter2@p:1")
    shown = {entry["after_header"]: entry["after"] for entry in apt_files.diff(plan.files, root)}
    assert shown[apt.KEYRING] == f"{apt.keys(KEY)[0].fingerprint}\n"
    assert "hunter2" not in str(shown)
    assert shown["/etc/apt/sources.list.d/old-cuda.list"] == ""
    assert apt_files.diff({apt.KEYRING: b"x"}, root)[0]["after"] == "unreadable\n"


def test_a_failed_write_leaves_no_rest(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files(root)

    def full(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space"):
        apt_files.write({"/etc/apt/sources.list": b"x"}, root)
    assert files(root) == before


def test_a_node_without_ours_owns_nothing(root: Path) -> None:
    assert apt_files.owned(root) is None
    apt_files.write(own(root).files, root)
    owned = apt_files.owned(root)
    assert owned is not None
    assert owned.place == REPOSITORY.place
