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
from ansible_collections.inference.sglang.plugins.module_utils.patches import (
    DefinitionError,
    Edit,
    Hashes,
    Patch,
    Variant,
)

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


def varied(patch: Patch, **changes: object) -> Patch:
    """The patch with a change in its one variant."""
    return replace(patch, variants=(replace(patch.variants[0], **changes),))


def with_edits(patch: Patch, *edits: Edit) -> Patch:
    """The patch with other edits, and hashes that say that they are right for ORIGINAL."""
    result = ORIGINAL
    for edit in edits:
        result = result.replace(edit.old.encode(), edit.new.encode())
    return varied(patch, edits=edits, releases={RELEASE: Hashes(sha256(ORIGINAL), sha256(result))})


@pytest.fixture
def patch() -> Patch:
    """The shipped layer probe patch, its hashes those of ORIGINAL."""
    definition = patches.from_mapping(shipped())
    return with_edits(definition, *definition.variants[0].edits)


@pytest.fixture
def patched(patch: Patch) -> bytes:
    content = patches.plan(patch, ORIGINAL, RELEASE, "present").after
    assert content is not None
    return content


@pytest.fixture
def installed(patch: Patch, tmp_path: Path) -> Path:
    path = tmp_path / "site-packages" / patch.variants[0].file
    path.parent.mkdir(parents=True)
    path.write_bytes(ORIGINAL)
    return path


def converge(patch: Patch, path: Path, want: patches.Want = "present", **options: object) -> patches.Report:
    site_packages = Path(str(path).removesuffix(patch.variants[0].file))
    return patches.converge(patch, site_packages, RELEASE, want, python=PYTHON, **options)


class TestDefinition:
    @pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yml")), ids=lambda path: path.stem)
    def test_shipped_definitions_are_valid_and_found_by_name(self, path: Path) -> None:
        assert patches.from_mapping(yaml.safe_load(path.read_text())).id == path.stem

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
            ({"requires": "other"}, "value_invalid", "requires"),
            ({"requires": ["../up"]}, "value_invalid", "'../up'"),
            ({"releases": {}}, "value_invalid", "releases"),
            ({"releases": [["0.5.12"]]}, "value_invalid", "releases"),
            ({"releases": {0.6: {}}}, "value_invalid", "0.6"),
            ({"releases": {"0.5.12": {"before": "0" * 64}}}, "value_invalid", "0.5.12"),
            ({"releases": {"0.5.12": {"before": "0" * 64, "after": "A" * 64}}}, "hash_malformed", "after"),
            ({"releases": {"0.5.12": {"before": "0" * 64, "after": "1" * 63}}}, "hash_malformed", "after"),
            ({"releases": {"0.5.12": {"before": "0" * 64, "after": "0" * 64}}}, "hash_malformed", "same hash"),
            ({"edits": []}, "value_invalid", "edits"),
            ({"edits": [["a", "b"]]}, "value_invalid", "edit 1"),
            ({"edits": [{"old": "a" * 999, "new": "a" * 999}]}, "value_invalid", "aaa …"),
            ({"edits": [{"old": ["a"], "new": {}}]}, "value_invalid", "edit 1"),
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

    @pytest.mark.parametrize("given", [None, "text", ["triton-layer-probe"], 3, [[]]])
    def test_what_is_no_mapping_is_named(self, given: object) -> None:
        with pytest.raises(DefinitionError) as caught:
            patches.from_mapping(given)
        assert repr(given) in caught.value.findings[0].seen

    def test_a_variant_has_of_the_definition_what_it_does_not_say_itself(self) -> None:
        base = {key: value for key, value in shipped().items() if key != "releases"}
        hashes = {"before": "0" * 64, "after": "1" * 64}
        patch = patches.from_mapping(
            base
            | {
                "variants": [
                    {"releases": {"0.5.11": hashes}},
                    {
                        "file": "sglang/other.py",
                        "edits": [{"old": "a", "new": "b"}],
                        "probe": "pass",
                        "releases": {"0.5.12": hashes},
                    },
                ]
            }
        )
        first, second = patch.variants
        assert (first.file, first.probe) == (base["file"], base["probe"])
        assert second == Variant("sglang/other.py", {"0.5.12": Hashes(**hashes)}, (Edit("a", "b"),), "pass")
        assert [patch.variant(version) for version in ("0.5.11", "0.5.12", "0.5.23")] == [first, second, second]
        assert list(patch.releases) == ["0.5.11", "0.5.12"]

    @pytest.mark.parametrize(
        ("variants", "kind", "word"),
        [
            ([], "value_invalid", "variants is []"),
            ({"0.5.12": {}}, "value_invalid", "variants is {"),
            (["0.5.12"], "value_invalid", "variant 1 is '0.5.12'"),
            ([{"release": {}}], "key_unknown", "variant 1 has 'release'"),
            ([{"probe": "pass"}], "key_missing", "variant 1 has no releases"),
            ([{"releases": {}}], "value_invalid", "variant 1: releases is {}"),
            ([{"releases": {"0.5.12": 0}, "file": ""}], "value_invalid", "variant 1: file is ''"),
            ([{"releases": {"0.5.12": 0}, "file": "../x"}], "value_invalid", "variant 1: file is '../x'"),
            ([{"releases": {"0.5.12": 0}, "edits": [3]}], "value_invalid", "variant 1: edit 1 is 3"),
            ([{"releases": {"0.5.12": 0}}, {"releases": {"0.5.12": 0}}], "value_invalid", "0.5.12 is in two variants"),
        ],
    )
    def test_each_fault_of_a_variant_is_named(self, variants: object, kind: str, word: str) -> None:
        hashes = {"before": "0" * 64, "after": "1" * 64}
        for variant in variants:
            if isinstance(variant, dict) and variant.get("releases"):
                variant["releases"] = dict.fromkeys(variant["releases"], hashes)
        base = {key: value for key, value in shipped().items() if key != "releases"}
        with pytest.raises(DefinitionError) as caught:
            patches.from_mapping(base | {"variants": variants})
        assert (f"patch.{kind}", True) in [(finding.id, word in finding.seen) for finding in caught.value.findings]

    def test_releases_belong_to_the_variants(self) -> None:
        with pytest.raises(DefinitionError, match="releases stands beside variants"):
            patches.from_mapping(shipped() | {"variants": [{"releases": shipped()["releases"]}]})


class TestSet:
    @pytest.fixture
    def other(self, patch: Patch) -> Patch:
        return replace(varied(patch, file="sglang/other.py"), id="other")

    def test_patches_of_different_files_go_together(self, patch: Patch, other: Patch) -> None:
        assert patches.check_set([patch, other], RELEASE) == []
        assert patches.check_set([patch, other], "0.5.18") == []

    def test_one_given_twice_is_told_once(self, patch: Patch) -> None:
        (finding,) = patches.check_set([patch, patch], RELEASE)
        assert (finding.id, finding.severity) == ("patch.duplicate", "error")

    def test_one_without_hashes_for_the_release_is_told(self, patch: Patch) -> None:
        (finding,) = patches.check_set([patch], "0.5.9")
        assert (finding.id, finding.severity) == ("patch.release_unknown", "error")

    def test_two_on_one_file_are_told_with_their_ids(self, patch: Patch) -> None:
        # Another spelling of the same path.
        second = replace(varied(patch, file=patch.variants[0].file.replace("/srt/", "/srt/./")), id="other")
        (finding,) = patches.check_set([patch, second], RELEASE)
        assert (finding.id, finding.severity) == ("patch.same_file", "error")
        for word in (patch.id, "other", patch.variants[0].file):
            assert word in finding.seen
        assert patches.check_set([patch, second], "0.5.18") == []

    def test_two_on_one_file_in_different_releases_go_together(self, patch: Patch) -> None:
        later = replace(varied(patch, releases={"0.5.11": Hashes("0" * 64, "1" * 64)}), id="other", fixed_in="0.5.12")
        assert patches.check_set([patch, later], RELEASE) == []

    def test_a_missing_requirement_is_told_where_it_changes_the_release(self, patch: Patch, other: Patch) -> None:
        demanding = replace(other, requires=(patch.id,))
        (finding,) = patches.check_set([demanding], RELEASE, [patch])
        assert (finding.id, finding.severity) == ("patch.requirement_missing", "error")
        assert f"Add {patch.id}" in finding.remedy
        assert patches.check_set([demanding, patch], RELEASE, [patch]) == []
        assert patches.check_set([demanding, patch], RELEASE) == []
        unaffected = varied(patch, releases={"0.5.11": Hashes("0" * 64, "1" * 64)})
        assert patches.check_set([demanding], RELEASE, [unaffected]) == []
        assert patches.check_set([demanding], "0.5.18", [patch]) == []  # is not applied itself

    def test_a_requirement_that_nobody_knows_is_told(self, patch: Patch) -> None:
        (finding,) = patches.check_set([replace(patch, requires=("nothing",))], RELEASE)
        assert finding.id == "patch.requirement_missing"
        assert "there is no such patch" in finding.seen


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
        late = replace(patch, fixed_in="0.5.18.post1")
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
        both = varied(patch, releases={**patch.releases, "0.5.11": Hashes("0" * 64, sha256(b"other"))})
        assert "the result of 0.5.11" in patches.plan(both, b"other", RELEASE, "present").findings[0].seen

    def test_a_missing_file_is_a_conflict(self, patch: Patch) -> None:
        outcome = patches.plan(patch, None, RELEASE, "present")
        assert (outcome.state, outcome.findings[0].id, outcome.sha256) == ("conflict", "patch.file_missing", "")

    @pytest.mark.parametrize(("old", "count"), [("get_value_buffer(0)", 2), ("start_layer", 0)])
    def test_an_edit_that_does_not_occur_exactly_once_is_a_conflict(self, patch: Patch, old: str, count: int) -> None:
        outcome = patches.plan(varied(patch, edits=(Edit(old, "x"),)), ORIGINAL, RELEASE, "present")
        assert (outcome.state, outcome.after) == ("conflict", ORIGINAL)
        assert outcome.findings[0].id == "patch.edit_not_unique"
        assert f"{old!r} occurs {count} times" in outcome.findings[0].seen

    def test_a_result_that_cannot_be_undone_is_a_conflict_on_the_way_back(self, patch: Patch) -> None:
        twice = with_edits(patch, Edit("self.device", "model_runner"))
        patched = patches.plan(twice, ORIGINAL, RELEASE, "present").after
        assert patches.plan(twice, patched, RELEASE, "absent").findings[0].id == "patch.edit_not_unique"

    def test_edits_that_miss_the_promised_result_are_a_conflict(self, patch: Patch) -> None:
        wrong = varied(patch, edits=(Edit("self.device", "self.unit"),))
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
        changed = varied(patch, releases={RELEASE: Hashes(patch.releases[RELEASE].before, "1" * 64)})
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
        wrong = with_edits(patch, Edit(patch.variants[0].edits[0].old, f"self.v_head_dim = {expression}"))
        report = converge(wrong, installed)
        assert (report.name, report.changed, report.sha256) == ("probe_failed", False, sha256(ORIGINAL))
        assert report.findings[-1].id == "patch.probe_failed"
        assert word in report.findings[-1].seen
        assert installed.read_bytes() == ORIGINAL

    def test_the_shipped_probe_fails_on_the_unpatched_file(self, patch: Patch, installed: Path) -> None:
        result = patches.run_probe(patch.variants[0].probe, PYTHON, installed, RELEASE)
        assert result.rc == 1
        assert "IndexError" in result.output

    def test_a_file_patched_earlier_is_probed_again_and_left(
        self, patch: Patch, patched: bytes, installed: Path
    ) -> None:
        installed.write_bytes(patched)
        report = converge(varied(patch, probe="raise SystemExit('no')"), installed)
        assert (report.name, report.changed, report.sha256) == ("probe_failed", False, sha256(patched))
        assert installed.read_bytes() == patched

    def test_an_interpreter_that_cannot_be_started_is_no_fault_of_the_edits(
        self, patch: Patch, installed: Path
    ) -> None:
        report = patches.converge(patch, installed.parents[4], RELEASE, "present", python=installed.parent / "python")
        assert report.findings[-1].remedy == "Name the interpreter of the release, which runs the probe"
        assert installed.read_bytes() == ORIGINAL

    def test_a_probe_that_cannot_start_or_does_not_end_fails(self, installed: Path) -> None:
        assert patches.run_probe("pass", installed.parent / "python", installed, RELEASE).rc == 127
        endless = "print('begun', flush=True)\nwhile True: pass"
        result = patches.run_probe(endless, PYTHON, installed, RELEASE, limit=1)
        assert result.rc == 124
        assert "begun" in result.output

    def test_a_probe_gets_the_file_and_the_release(self, installed: Path) -> None:
        result = patches.run_probe("import sys; print(sys.argv[1:])", PYTHON, installed, RELEASE)
        assert result == patches.ProbeResult(0, str([str(installed), RELEASE]))

    def test_the_variant_of_the_release_is_what_is_applied(self, patch: Patch, installed: Path) -> None:
        other = replace(patch.variants[0], file="sglang/other.py", releases={"0.5.11": Hashes("0" * 64, "1" * 64)})
        report = converge(replace(patch, variants=(*patch.variants, other)), installed)
        assert (report.name, report.path) == ("applied", installed)

    def test_a_file_of_another_distribution_is_patched_by_the_release(self, patch: Patch, tmp_path: Path) -> None:
        path = tmp_path / "flashinfer/jit/env.py"
        path.parent.mkdir(parents=True)
        path.write_text("WORKSPACE = '.cache'\n")
        hashes = Hashes(sha256(path.read_bytes()), sha256(b"WORKSPACE = '.cache/flashinfer'\n"))
        probe = "import runpy, sys; sys.exit('flashinfer' not in runpy.run_path(sys.argv[1])['WORKSPACE'])"
        variant = Variant("flashinfer/jit/env.py", {RELEASE: hashes}, (Edit(".cache", ".cache/flashinfer"),), probe)
        own = replace(patch, id="own", distribution="flashinfer-python", variants=(variant,))
        assert patches.check_set([patch, own], RELEASE) == []
        assert patches.digest([own], RELEASE) != "none"
        done = patches.converge(own, tmp_path, RELEASE, "present", python=PYTHON)
        assert (done.name, done.sha256) == ("applied", hashes.after)
        assert patches.converge(own, tmp_path, RELEASE, "absent").sha256 == hashes.before
        path.unlink()
        (finding,) = patches.converge(own, tmp_path, RELEASE, "present").findings
        assert "flashinfer-python" in finding.remedy


class TestDifference:
    """What a conflict shows of a file that is neither the original nor the result."""

    @pytest.fixture
    def cache(self, patch: Patch, tmp_path: Path) -> Path:
        """uv's cache with the wheels of two releases."""
        for wheel, content in (("Ab-1", b"another release\n"), ("Cd-2", ORIGINAL)):
            path = tmp_path / "cache/archive-v0" / wheel / patch.variants[0].file
            path.parent.mkdir(parents=True)
            path.write_bytes(content)
        return tmp_path / "cache"

    def seen(self, report: patches.Report) -> str:
        (finding,) = report.findings
        assert (report.name, finding.id) == ("conflict", "patch.file_changed")
        return finding.seen

    def test_the_difference_from_the_original_is_shown(self, patch: Patch, installed: Path, cache: Path) -> None:
        installed.write_bytes(ORIGINAL.replace(b"device\r", b"gpu\r").replace(b"hybrid", b"mixed"))
        seen = self.seen(converge(patch, installed, cache=cache))
        assert "--- original\n+++ found\n" in seen
        assert "\n-        if model_runner.hybrid:\n+        if model_runner.mixed:\n" in seen
        assert "\n-        self.device = model_runner.device\\r\n+        self.device = model_runner.gpu\\r\n" in seen
        assert "# café\n" in seen

    def test_line_ends_of_another_system_are_shown(self, patch: Patch, installed: Path, cache: Path) -> None:
        installed.write_bytes(ORIGINAL.replace(b"\n", b"\r\n"))
        assert "\n+class TritonAttnBackend:\\r\n" in self.seen(converge(patch, installed, cache=cache))

    def test_the_difference_from_the_result_is_shown_where_that_is_nearer(
        self, patch: Patch, patched: bytes, installed: Path, cache: Path
    ) -> None:
        installed.write_bytes(patched + b"# local\n")
        seen = self.seen(converge(patch, installed, cache=cache))
        assert "--- patched\n+++ found\n" in seen
        assert [line for line in seen.splitlines() if line.startswith(("+", "-"))] == [
            "--- patched",
            "+++ found",
            "+# local",
        ]

    def test_an_original_that_was_changed_with_the_file_is_none(
        self, patch: Patch, installed: Path, cache: Path
    ) -> None:
        """Written in place, both are the same file."""
        cached = cache / "archive-v0/Cd-2" / patch.variants[0].file
        cached.unlink()
        cached.hardlink_to(installed)
        with installed.open("ab") as stream:
            stream.write(b"# local\n")
        assert patches.find_original(cache, patch.variants[0].file, sha256(ORIGINAL)) is None
        assert "the texts to replace are in the file" in self.seen(converge(patch, installed, cache=cache))

    def test_a_wrong_original_is_not_compared_with(self, patch: Patch) -> None:
        outcome = patches.plan(patch, ORIGINAL + b"#", RELEASE, "present", original=b"something else")
        assert "something else" not in outcome.findings[0].seen

    def test_it_is_short_whatever_the_file_is(self, patch: Patch, installed: Path, cache: Path) -> None:
        installed.write_bytes(b"\xff\x00" * 500 + b"\n" + b"line\n" * 10_000)
        seen = self.seen(converge(patch, installed, cache=cache))
        assert "more lines" in seen
        assert len(seen.splitlines()) < 70
        assert max(map(len, seen.splitlines())) < 400

    def test_nothing_is_looked_for_where_all_is_well(self, patch: Patch, installed: Path, monkeypatch) -> None:
        monkeypatch.setattr(patches, "find_original", None)
        assert converge(patch, installed, cache=installed.parent).name == "applied"
