# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Patches: the decision, the write and the probe, on a small file of the shape of SGLang's Triton backend."""

from __future__ import annotations

import copy
import hashlib
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from ansible_collections.inference.sglang.plugins.module_utils import patches
from ansible_collections.inference.sglang.plugins.module_utils.patches import DefinitionError, Edit, Hashes, Patch

SHIPPED = Path(__file__).parents[2] / "roles/sglang/files/patches"
RELEASE = "0.5.12.post1"
PYTHON = Path(sys.executable)
ORIGINAL = b"""\
class TritonAttnBackend:
    def __init__(self, model_runner):
        # caf\xc3\xa9
        if model_runner.hybrid:
            self.v_head_dim = model_runner.token_to_kv_pool.get_v_head_dim()
        else:
            self.v_head_dim = model_runner.token_to_kv_pool.get_value_buffer(0).shape[
                -1
            ]
        self.device = model_runner.device\r
        self.get_value_buffer(0)
"""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def shipped(name: str = "triton-layer-probe") -> dict[str, object]:
    return yaml.safe_load((SHIPPED / f"{name}.yml").read_text())


def with_edits(patch: Patch, *edits: Edit) -> Patch:
    """The patch with other edits, and hashes that say that they are right for ORIGINAL."""
    result = ORIGINAL
    for edit in edits:
        result = result.replace(edit.old.encode(), edit.new.encode())
    return replace(patch, edits=edits, releases={RELEASE: Hashes(sha256(ORIGINAL), sha256(result))})


@pytest.fixture
def patch() -> Patch:
    """The shipped layer probe patch, its hashes those of ORIGINAL."""
    definition = patches.from_mapping(shipped())
    return with_edits(definition, *definition.edits)


@pytest.fixture
def patched(patch: Patch) -> bytes:
    content = patches.plan(patch, ORIGINAL, RELEASE, "present").after
    assert content is not None
    return content


@pytest.fixture
def installed(patch: Patch, tmp_path: Path) -> Path:
    path = tmp_path / "site-packages" / patch.file
    path.parent.mkdir(parents=True)
    path.write_bytes(ORIGINAL)
    return path


def converge(patch: Patch, path: Path, want: patches.Want = "present", **options: bool) -> patches.Report:
    site_packages = Path(str(path).removesuffix(patch.file))
    return patches.converge(patch, site_packages, RELEASE, want, python=PYTHON, **options)


class TestDefinition:
    @pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yml")), ids=lambda path: path.stem)
    def test_shipped_definitions_are_valid_and_found_by_name(self, path: Path) -> None:
        assert patches.from_mapping(yaml.safe_load(path.read_text())).id == path.stem

    def test_layer_probe_covers_every_release_that_has_the_fault(self) -> None:
        definition = patches.from_mapping(shipped())
        posts = ("0.5.10", "0.5.12", "0.5.13", "0.5.15")  # these had a .post1
        plain = [f"0.5.{number}" for number in range(10, 18)]
        assert set(definition.releases) == {*plain, *(f"{version}.post1" for version in posts)}
        assert definition.fixed_in == "0.5.18"

    @pytest.mark.parametrize(
        ("change", "kind", "word"),
        [
            ({"probe": None}, "key_missing", "no probe"),
            ({"edit": []}, "key_unknown", "'edit'"),
            ({"id": "../up"}, "value_invalid", "'../up'"),
            ({"file": "/etc/passwd"}, "value_invalid", "/etc/passwd"),
            ({"file": "sglang/../../x.py"}, "value_invalid", "../.."),
            ({"summary": " "}, "value_invalid", "summary"),
            ({"upstream": "https://example.org"}, "value_invalid", "upstream"),
            ({"fixed_in": "soon"}, "value_invalid", "soon"),
            ({"fixed_in": "0.5.17"}, "value_invalid", "releases has 0.5.17"),
            ({"releases": {}}, "value_invalid", "releases"),
            ({"releases": {0.6: {}}}, "value_invalid", "0.6"),
            ({"releases": {"0.5.12": {"before": "0" * 64}}}, "value_invalid", "0.5.12"),
            ({"releases": {"0.5.12": {"before": "0" * 64, "after": "A" * 64}}}, "hash_malformed", "after"),
            ({"releases": {"0.5.12": {"before": "0" * 64, "after": "1" * 63}}}, "hash_malformed", "after"),
            ({"releases": {"0.5.12": {"before": "0" * 64, "after": "0" * 64}}}, "hash_malformed", "same hash"),
            ({"edits": []}, "value_invalid", "edits"),
            ({"edits": [{"old": "a"}]}, "value_invalid", "edit 1"),
            ({"edits": [{"old": "a", "new": ""}]}, "value_invalid", "edit 1"),
            ({"edits": [{"old": "a", "new": "a"}]}, "value_invalid", "edit 1"),
        ],
    )
    def test_each_fault_is_named(self, change: dict[str, object], kind: str, word: str) -> None:
        mapping = copy.deepcopy(shipped()) | change
        with pytest.raises(DefinitionError) as caught:
            patches.from_mapping({key: value for key, value in mapping.items() if value is not None})
        (finding,) = caught.value.findings
        assert (finding.id, finding.severity) == (f"patch.{kind}", "error")
        assert finding.seen.startswith(f"Patch {mapping['id']}: ")
        assert word in finding.seen

    def test_all_faults_are_named_at_once(self) -> None:
        with pytest.raises(DefinitionError) as caught:
            patches.from_mapping({"file": 3})
        missing = [finding for finding in caught.value.findings if finding.id == "patch.key_missing"]
        assert len(missing) == 6
        assert len(caught.value.findings) == 7


class TestPlan:
    def test_the_shipped_edit_changes_the_one_statement(self, patched: bytes) -> None:
        pool = b"model_runner.token_to_kv_pool"
        old = b"%s.get_value_buffer(0).shape[\n                -1\n            ]\n" % pool
        new = b"%s.get_value_buffer(\n                %s.start_layer\n            ).shape[-1]\n" % (pool, pool)
        assert patched == ORIGINAL.replace(old, new) != ORIGINAL

    def test_applied_then_already_then_restored_then_already(self, patch: Patch) -> None:
        first = patches.plan(patch, ORIGINAL, RELEASE, "present")
        assert (first.state, first.changed, first.sha256) == ("applied", True, patch.releases[RELEASE].after)
        again = patches.plan(patch, first.after, RELEASE, "present")
        assert (again.state, again.changed, again.after) == ("already", False, first.after)
        back = patches.plan(patch, first.after, RELEASE, "absent")
        assert (back.state, back.changed, back.after) == ("restored", True, ORIGINAL)
        assert patches.plan(patch, back.after, RELEASE, "absent").state == "already"

    def test_dependent_edits_are_undone_in_the_opposite_order(self, patch: Patch) -> None:
        chain = with_edits(patch, Edit("self.device", "self.unit"), Edit("self.unit = model", "self.kind = model"))
        outcome = patches.plan(chain, ORIGINAL, RELEASE, "present")
        assert outcome.state == "applied"
        assert patches.plan(chain, outcome.after, RELEASE, "absent").after == ORIGINAL

    @pytest.mark.parametrize("version", ["0.5.18", "0.5.18.post1", "0.5.23", "0.6", "1.0rc1"])
    def test_not_needed_from_the_release_that_has_it(self, patch: Patch, version: str) -> None:
        outcome = patches.plan(patch, b"anything", version, "present")
        assert (outcome.state, outcome.after) == ("not_needed", b"anything")
        assert [finding.severity for finding in outcome.findings] == ["info"]
        assert patches.plan(patch, b"anything", version, "absent").state == "already"

    def test_a_fix_in_a_post_release_is_not_in_the_one_before(self, patch: Patch) -> None:
        late = replace(patch, releases={}, fixed_in="0.5.18.post1")
        states = [patches.plan(late, b"", version, "present").state for version in ("0.5.18", "0.5.18.post1", "0.5.19")]
        assert states == ["conflict", "not_needed", "not_needed"]

    @pytest.mark.parametrize("version", ["0.5.9", "0.5.18rc1", "0.5.12.post2", "nightly"])
    def test_a_release_without_hashes_is_a_conflict(self, patch: Patch, version: str) -> None:
        outcome = patches.plan(patch, ORIGINAL, version, "present")
        assert (outcome.state, outcome.findings[0].id) == ("conflict", "patch.release_unknown")
        assert version in outcome.findings[0].seen

    @pytest.mark.parametrize("want", ["present", "absent"])
    def test_a_file_that_someone_changed_is_a_conflict(self, patch: Patch, want: patches.Want) -> None:
        changed = ORIGINAL.replace(b"pool.get_value_buffer(0)", b"pool.get_value_buffer(self.first)")
        outcome = patches.plan(patch, changed, RELEASE, want)
        assert (outcome.state, outcome.changed, outcome.after) == ("conflict", False, changed)
        (finding,) = outcome.findings
        assert (finding.id, finding.severity) == ("patch.file_changed", "error")
        for expected in (sha256(changed), *patch.releases[RELEASE]):
            assert expected in finding.seen
        assert (
            "\n+self.v_head_dim = model_runner.token_to_kv_pool.get_value_buffer(self.first).shape[\n" in finding.seen
        )

    @pytest.mark.parametrize(("edited", "word"), [(False, "texts to replace"), (True, "edits are in the file")])
    def test_a_conflict_says_when_the_difference_is_elsewhere(
        self, patch: Patch, patched: bytes, edited: bool, word: str
    ) -> None:
        content = (patched if edited else ORIGINAL) + b"# local\n"
        assert word in patches.plan(patch, content, RELEASE, "present").findings[0].seen

    def test_a_conflict_says_when_the_file_is_of_another_release(self, patch: Patch) -> None:
        both = replace(patch, releases={**patch.releases, "0.5.11": Hashes("0" * 64, sha256(b"other"))})
        assert "the result of 0.5.11" in patches.plan(both, b"other", RELEASE, "present").findings[0].seen

    def test_a_missing_file_is_a_conflict(self, patch: Patch) -> None:
        outcome = patches.plan(patch, None, RELEASE, "present")
        assert (outcome.state, outcome.findings[0].id, outcome.sha256) == ("conflict", "patch.file_missing", "")

    @pytest.mark.parametrize(("old", "count"), [("get_value_buffer(0)", 2), ("start_layer", 0)])
    def test_an_edit_that_does_not_occur_exactly_once_is_a_conflict(self, patch: Patch, old: str, count: int) -> None:
        outcome = patches.plan(replace(patch, edits=(Edit(old, "x"),)), ORIGINAL, RELEASE, "present")
        assert (outcome.state, outcome.after) == ("conflict", ORIGINAL)
        assert outcome.findings[0].id == "patch.edit_not_unique"
        assert f"{old!r} occurs {count} times" in outcome.findings[0].seen

    def test_a_result_that_cannot_be_undone_is_a_conflict_on_the_way_back(self, patch: Patch) -> None:
        twice = with_edits(patch, Edit("self.device", "model_runner"))
        patched = patches.plan(twice, ORIGINAL, RELEASE, "present").after
        assert patches.plan(twice, patched, RELEASE, "absent").findings[0].id == "patch.edit_not_unique"

    def test_edits_that_miss_the_promised_result_are_a_conflict(self, patch: Patch) -> None:
        wrong = replace(patch, edits=(Edit("self.device", "self.unit"),))
        outcome = patches.plan(wrong, ORIGINAL, RELEASE, "present")
        assert (outcome.state, outcome.findings[0].id) == ("conflict", "patch.result_unexpected")

    def test_diff_is_text_before_and_after(self, patch: Patch, patched: bytes) -> None:
        diff = patches.plan(patch, ORIGINAL, RELEASE, "present").diff
        assert diff == {"before": ORIGINAL.decode(), "after": patched.decode()}


class TestDigest:
    def test_names_a_set_whatever_its_order(self, patch: Patch) -> None:
        other = replace(patch, id="other")
        name = patches.digest([patch, other], RELEASE)
        assert name == patches.digest([other, patch], RELEASE)
        assert len(name) == 8
        assert int(name, 16) >= 0
        assert len({name, patches.digest([patch], RELEASE), patches.digest([other], RELEASE)}) == 3

    def test_changes_with_the_result(self, patch: Patch) -> None:
        changed = replace(patch, releases={RELEASE: Hashes(patch.releases[RELEASE].before, "1" * 64)})
        assert patches.digest([patch], RELEASE) != patches.digest([changed], RELEASE)

    def test_is_none_where_nothing_is_patched(self, patch: Patch) -> None:
        assert patches.digest([], RELEASE) == patches.digest([patch], "0.5.18") == "none"


class TestConverge:
    def test_other_hard_links_keep_the_original(self, patch: Patch, patched: bytes, installed: Path) -> None:
        cached = installed.parents[5] / "cached.py"
        cached.hardlink_to(installed)
        report = converge(patch, installed)
        assert (report.name, report.changed, report.sha256) == ("applied", True, sha256(patched))
        assert report.probe is not None
        assert "512" in report.probe.output
        assert (installed.read_bytes(), cached.read_bytes()) == (patched, ORIGINAL)
        assert converge(patch, installed, "absent").name == "restored"
        assert installed.read_bytes() == ORIGINAL

    def test_mode_and_owner_stay(self, patch: Patch, installed: Path) -> None:
        installed.chmod(0o640)
        owner = (12345, 12346) if os.geteuid() == 0 else (os.getuid(), os.getgid())
        os.chown(installed, *owner)
        converge(patch, installed)
        status = installed.stat()
        assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o640, *owner)

    def test_only_the_compiled_forms_of_this_file_go(self, patch: Patch, installed: Path) -> None:
        compiled = installed.parent / "__pycache__"
        compiled.mkdir()
        for name in (
            "triton_backend.cpython-311",
            "triton_backend.cpython-311.opt-1",
            "triton_backend_two.cpython-311",
        ):
            (compiled / f"{name}.pyc").touch()
        converge(patch, installed)
        assert [path.name for path in compiled.iterdir()] == ["triton_backend_two.cpython-311.pyc"]

    def test_nothing_is_left_beside_the_file_also_after_a_killed_run(self, patch: Patch, installed: Path) -> None:
        (installed.parent / f".{installed.name}.patch").write_bytes(b"half of it")
        assert converge(patch, installed).name == "applied"
        assert list(installed.parent.iterdir()) == [installed]

    def test_check_writes_nothing(self, patch: Patch, patched: bytes, installed: Path) -> None:
        before = installed.stat()
        report = converge(patch, installed, check=True)
        assert (report.name, report.changed, report.sha256) == ("applied", True, sha256(patched))
        assert report.probe is None
        assert (installed.read_bytes(), installed.stat().st_ino) == (ORIGINAL, before.st_ino)

    def test_a_conflict_writes_nothing(self, patch: Patch, installed: Path) -> None:
        installed.write_bytes(ORIGINAL + b"# local\n")
        before = installed.stat()
        report = converge(patch, installed)
        assert (report.name, report.changed, report.probe) == ("conflict", False, None)
        assert (installed.stat().st_ino, installed.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    @pytest.mark.parametrize(
        ("expression", "word"),
        [
            ("model_runner.model_config.v_head_dim", "gives 128"),
            ("model_runner.token_to_kv_pool.v_head_dim", "AttributeError"),
            ("model_runner.token_to_kv_pool.get_value_buffer(1).shape[-1]", "IndexError"),
        ],
    )
    def test_a_wrong_fix_fails_the_shipped_probe_and_is_taken_back(
        self, patch: Patch, installed: Path, expression: str, word: str
    ) -> None:
        wrong = with_edits(patch, Edit(patch.edits[0].old, f"self.v_head_dim = {expression}"))
        report = converge(wrong, installed)
        assert (report.name, report.changed, report.sha256) == ("probe_failed", False, sha256(ORIGINAL))
        assert report.findings[-1].id == "patch.probe_failed"
        assert word in report.findings[-1].seen
        assert installed.read_bytes() == ORIGINAL

    def test_the_shipped_probe_fails_on_the_unpatched_file(self, patch: Patch, installed: Path) -> None:
        result = patches.run_probe(patch, PYTHON, installed)
        assert result.rc == 1
        assert "IndexError" in result.output

    def test_a_file_patched_earlier_is_probed_again_and_left(
        self, patch: Patch, patched: bytes, installed: Path
    ) -> None:
        installed.write_bytes(patched)
        report = converge(replace(patch, probe="raise SystemExit('no')"), installed)
        assert (report.name, report.changed, report.sha256) == ("probe_failed", False, sha256(patched))
        assert installed.read_bytes() == patched

    def test_a_probe_that_cannot_start_or_does_not_end_fails(self, patch: Patch, installed: Path) -> None:
        assert patches.run_probe(patch, installed.parent / "python", installed).rc == 127
        endless = replace(patch, probe="print('begun', flush=True)\nwhile True: pass")
        result = patches.run_probe(endless, PYTHON, installed, limit=1)
        assert result.rc == 124
        assert "begun" in result.output
