# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The filters that name releases and toolkits, and the data behind them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.inference.sglang.plugins.filter.releases import FilterModule
from ansible_collections.inference.sglang.plugins.module_utils import patches, releases, wheels
from ansible_collections.inference.sglang.plugins.plugin_utils import role_files

ROOT = Path(__file__).parents[2]
FILTERS = FilterModule().filters()
VERSION = "0.5.12.post1"
OWN = {
    "id": "raise-limit",
    "summary": "Raise the limit",
    "distribution": "sglang",
    "file": "sglang/limits.py",
    "releases": {VERSION: {"before": "a" * 64, "after": "b" * 64}},
    "edits": [{"old": "= 0", "new": "= 16"}],
    "probe": "pass",
}


def test_a_release_is_named_by_version_lock_and_patches():
    lock = FILTERS["release_lock"](VERSION, "3.11")
    plain = FILTERS["release_name"](VERSION, "3.11")
    assert plain == f"{VERSION}-{wheels.digest(lock)}-none"
    names = {plain, FILTERS["release_name"](VERSION, "3.12")}
    names |= {FILTERS["release_name"](VERSION, "3.11", chosen) for chosen in (["triton-layer-probe"], [OWN])}
    assert len(names) == 4
    assert FILTERS["release_name"](VERSION, "3.11", ["triton-layer-probe", OWN]) == FILTERS["release_name"](
        VERSION, "3.11", [OWN, "triton-layer-probe"]
    )


def test_a_toolkit_is_named_by_version_and_lock():
    lock = FILTERS["toolkit_lock"]("13.0")
    assert FILTERS["toolkit_name"]("13.0") == f"13.0-{wheels.digest(lock)}"


def test_each_toolkit_has_a_name_of_its_own():
    named = FILTERS["toolkit_name"]
    assert named("13.0", "apt", "", "") == "13.0-apt"
    assert named("13.0", "apt", "", "13.0.2-1") == "13.0-apt-13.0.2-1"
    assert "/" not in named("13.0", "apt", "", "1:13/../2~x")
    folders = [named("13.0", "existing", home) for home in ("/usr/local/cuda-13.0", "/opt/cuda-13.0")]
    assert folders[0].startswith("13.0-existing-")
    assert len({*folders, named("13.0"), named("13.0", "apt")}) == 4


def test_patches_are_given_by_id_or_as_definitions():
    shipped, own = FILTERS["release_patches"](["triton-layer-probe", OWN])
    assert shipped["id"] == "triton-layer-probe"
    assert own == OWN


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("release_lock", ("0.4.0", "3.11"), VERSION),
        ("release_lock", (VERSION, "3.9"), "3.11"),
        ("release_name", (VERSION, "3.11", ["no-such-patch"]), "Use one of: activation-gcc12, api-key-log, pp-abort"),
        ("release_patches", (["../../../../galaxy"],), "Use one of"),
        ("release_patches", ([{"id": "raise-limit"}],), "probe"),
        ("release_cuda", ("0.4.0",), VERSION),
        ("release_flashinfer", ("",), VERSION),
        ("toolkit_lock", ("12.8",), "Set cuda_toolkit_version to one of: 13.0"),
        ("toolkit_name", ("../13.0",), "one of: 13.0"),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(name, arguments, words):
    with pytest.raises(AnsibleFilterError) as caught:
        FILTERS[name](*arguments)
    assert words in str(caught.value)


@pytest.mark.parametrize("version", releases.RELEASES)
def test_a_release_has_its_toolkit_and_its_flashinfer(version):
    assert FILTERS["release_cuda"](version) in releases.TOOLKITS
    for python in releases.RELEASES[version].pythons:
        locked = wheels.pins(FILTERS["release_lock"](version, python))
        assert locked["flashinfer-python"] == FILTERS["release_flashinfer"](version)


@pytest.mark.parametrize("version", releases.TOOLKITS)
def test_the_table_says_what_a_toolkits_lock_installs(version):
    pins = wheels.pins(role_files.toolkit_lock(version))
    assert {f"{name}=={pin}" for name, pin in pins.items()} == set(releases.TOOLKITS[version])


def shipped_patches():
    folder = ROOT / "roles/sglang/files/patches"
    return {path.stem: patches.from_mapping(yaml.safe_load(path.read_text())) for path in folder.glob("*.yml")}


@pytest.mark.parametrize("version", releases.RELEASES)
def test_the_table_names_the_shipped_patches_that_change_a_release(version):
    changing = [patch.id for patch in shipped_patches().values() if version in patch.releases]
    assert sorted(releases.RELEASES[version].patches) == sorted(changing)


def test_all_shipped_patches_are_the_default_and_go_together_in_every_release():
    shipped = shipped_patches()
    default = yaml.safe_load((ROOT / "roles/sglang/defaults/main.yml").read_text())["sglang_patches"]
    assert sorted(default) == sorted(shipped)
    for version in releases.RELEASES:
        assert role_files.patch_definitions(default, version)[1] == [], version


def test_a_patch_that_does_not_change_the_release_does_not_change_its_name():
    version = list(releases.RELEASES)[-1]
    assert "pp-abort" not in releases.RELEASES[version].patches
    plain, with_patch = (FILTERS["release_name"](version, "3.12", chosen) for chosen in ([], ["pp-abort"]))
    assert plain == with_patch


@pytest.fixture
def folders(tmp_path):
    """Folders of an inventory and of a playbook with a patch file each."""
    for name, summary in (("inventory", "Raise it"), ("playbook", "Raise it higher")):
        folder = tmp_path / name / "patches"
        folder.mkdir(parents=True)
        (folder / "own.yml").write_text(yaml.safe_dump({**OWN, "summary": summary}))
    (folder / "other.yaml").write_text(yaml.safe_dump({**OWN, "id": "other"}))
    return [None, "", str(tmp_path / "inventory"), str(tmp_path / "playbook")]


def test_a_patch_is_a_file_beside_the_inventory_or_the_playbook(folders):
    (own,) = FILTERS["release_patches"](["patches/own.yml"], folders)
    assert own == {**OWN, "summary": "Raise it"}
    (other,) = FILTERS["release_patches"](["patches/other.yaml"], folders)
    assert other["id"] == "other"
    full = f"{folders[3]}/patches/own.yml"
    assert FILTERS["release_patches"]([full], folders) == FILTERS["release_patches"]([full])
    assert FILTERS["release_patches"]([full])[0]["summary"] == "Raise it higher"
    named = [FILTERS["release_name"](VERSION, "3.11", [given], folders) for given in ("patches/own.yml", OWN)]
    assert named[0] == named[1]


@pytest.mark.parametrize(
    ("given", "expected", "words"),
    [
        ("patches/none.yml", "patch.definition_missing", "inventory or "),
        (f"{'a' * 300}.yml", "patch.definition_missing", "inventory or "),
        ("bad/deep.yml", "patch.definition_unreadable", "nested too deeply"),
        ("patches", "patch.unknown", "activation-gcc12, api-key-log, pp-abort"),
        ([["triton-layer-probe"]], "patch.entry_invalid", "given as list: [['triton-layer-probe']]"),
        (["triton-layer-probe"], "patch.entry_invalid", "given as list"),
        (None, "patch.entry_invalid", "given as NoneType"),
        (3.0, "patch.entry_invalid", "given as float: 3.0"),
        ({}, "patch.key_missing", "no probe"),
        ({"id": ["a"], "releases": [[1]], "edits": {"old": []}, "variants": 7}, "patch.value_invalid", "variants is 7"),
        ("bad/broken.yml", "patch.definition_unreadable", "broken.yml cannot be read"),
        ("bad/binary.yml", "patch.definition_unreadable", "binary.yml cannot be read"),
        ("bad/list.yml", "patch.value_invalid", "A patch definition is ['a']"),
        ("bad/empty.yml", "patch.value_invalid", "A patch definition is None"),
        ("bad/half.yml", "patch.key_missing", "no probe"),
    ],
    ids=str,
)
def test_whatever_is_given_for_a_patch_gets_a_finding(folders, given, expected, words):
    bad = Path(folders[2], "bad")
    bad.mkdir()
    (bad / "broken.yml").write_text("id: [\n")
    (bad / "binary.yml").write_bytes(b"\xff\xfe\x00")
    (bad / "list.yml").write_text("[a]")
    (bad / "empty.yml").touch()
    (bad / "half.yml").write_text("id: half\n")
    (bad / "deep.yml").write_text("[" * 3000)
    definitions, findings = role_files.patch_definitions(["triton-layer-probe", given], VERSION, folders)
    assert [definition["id"] for definition in definitions] == ["triton-layer-probe"]
    assert {finding.severity for finding in findings} == {"error"}
    assert expected in {finding.id for finding in findings}
    assert words in "\n".join(finding.seen + finding.remedy for finding in findings)
    if not expected.startswith(("patch.key", "patch.value")):
        assert len(findings) == 1
    elif isinstance(given, str):
        assert {finding.source for finding in findings} == {str(bad / given.removeprefix("bad/"))}


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (["swa-start-layer"], "patch.requirement_missing"),
        (["pp-abort", "pp-abort"], "patch.duplicate"),
        ([OWN, {**OWN, "id": "other"}], "patch.same_file"),
        ([{**OWN, "releases": {"0.5.11": OWN["releases"][VERSION]}}], "patch.release_unknown"),
    ],
    ids=["requirement", "duplicate", "file", "release"],
)
def test_patches_that_do_not_go_together_give_no_name(chosen, expected):
    with pytest.raises(AnsibleFilterError, match=expected):
        FILTERS["release_name"](VERSION, "3.11", chosen)
