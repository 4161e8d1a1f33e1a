# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What became of flags between releases (field case C16 and its kind), by the tables that are shipped."""

from __future__ import annotations

import re

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import flag_history, flags
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding
from ansible_collections.inference.sglang.plugins.module_utils.flags import Flag, FlagTable
from ansible_collections.inference.sglang.plugins.plugin_utils import flag_tables

HISTORY = flag_tables.history()
FIRST = "0.5.12.post1"
LAST = "0.5.23"


def found(release: str, given: dict[str, object]) -> Finding:
    (finding,) = flags.check(given, HISTORY[release])
    return finding


def test_releases_are_in_their_order() -> None:
    assert list(HISTORY)[:6] == ["0.5.10", "0.5.10.post1", "0.5.11", "0.5.12", "0.5.12.post1", "0.5.13"]
    assert (len(HISTORY), list(HISTORY)[-1]) == (18, LAST)
    assert flag_history.version_key("0.5.9") < flag_history.version_key("0.5.10")


def test_case_c16_a_flag_that_was_renamed_and_dropped() -> None:
    """argparse itself says "ambiguous option" to the old name, as it is the beginning of two new ones."""
    finding = found(LAST, {"--cuda-graph-max-bs": 64})
    assert (finding.id, finding.severity) == ("flag.removed", "error")
    assert (
        finding.seen
        == "--cuda-graph-max-bs is gone since SGLang 0.5.20, and this is 0.5.23; it was deprecated in 0.5.14"
    )
    assert finding.remedy == "Use --cuda-graph-max-bs-decode"
    assert finding.source == "sglang/srt/server_args.py of 0.5.19"


def test_case_c16_a_flag_that_is_deprecated() -> None:
    finding = found("0.5.17", {"cuda-graph-max-bs": 64})
    assert (finding.id, finding.severity) == ("flag.deprecated", "warning")
    assert finding.remedy == "Use --cuda-graph-max-bs-decode before a release drops --cuda-graph-max-bs"
    assert flags.check({"cuda-graph-max-bs": 64}, HISTORY[FIRST]) == []


def test_case_c16_graphs_off_is_still_understood() -> None:
    finding = found(LAST, {"disable-cuda-graph": True})
    assert (finding.id, finding.severity) == ("flag.deprecated", "warning")


def test_case_c16_underscores() -> None:
    finding = found(LAST, {"--reasoning_parser": "kimi_k2"})
    assert (finding.id, finding.remedy) == ("flag.underscore", "Write --reasoning-parser")
    finding = found(LAST, {"cuda_graph_max_bs": 64})
    assert (finding.id, finding.remedy) == ("flag.removed", "Use --cuda-graph-max-bs-decode")


def test_case_c16_the_flags_that_went_between_two_releases() -> None:
    """None of the flags of 0.5.12.post1 that 0.5.23 lacks is an unknown flag: each has its release and its remedy."""
    gone = sorted(set(HISTORY[FIRST]) - set(HISTORY[LAST]))
    assert len(gone) == 32
    for spelling in gone:
        finding = found(LAST, {spelling: 1})
        assert finding.id == "flag.removed", spelling
        assert re.match(rf"{spelling} is gone since SGLang 0\.5\.\d+, and this is 0\.5\.23", finding.seen)


def test_a_flag_that_sglang_gives_no_word_for_has_its_replacement_from_our_own_table() -> None:
    finding = found("0.5.16", {"enable-deepep-waterfill": True})
    assert finding.seen == "--enable-deepep-waterfill is gone since SGLang 0.5.16, and this is 0.5.16"
    assert (finding.remedy, finding.source) == (
        "Use --enable-waterfill",
        flag_history.REPLACEMENTS["--enable-deepep-waterfill"][1],
    )


def test_a_replacement_is_followed_to_the_release_at_hand() -> None:
    assert (
        found("0.5.19", {"enable-piecewise-cuda-graph": True}).remedy == "Use --cuda-graph-backend-prefill=tc_piecewise"
    )
    assert HISTORY.replacement("--enable-nsa-prefill-context-parallel", "0.5.20") == "--enable-prefill-cp"


def test_a_replacement_that_went_as_well_is_not_named() -> None:
    """tc_piecewise is no backend any more from 0.5.22 on."""
    for spelling in ("enable-piecewise-cuda-graph", "enforce-piecewise-cuda-graph", "piecewise-cuda-graph-compiler"):
        assert found(LAST, {spelling: "eager"}).remedy == "Remove it: no other flag takes its place"


def test_a_flag_that_nothing_replaces() -> None:
    finding = found(LAST, {"torchao-config": "int4wo-128"})
    assert finding.seen == "--torchao-config is gone since SGLang 0.5.18, and this is 0.5.23"
    assert finding.remedy == "Remove it: no other flag takes its place"


@pytest.mark.parametrize("release", ["0.5.18", "0.5.19", "0.5.20"])
def test_a_flag_that_the_parser_knows_only_to_end(release: str) -> None:
    finding = found(release, {"enable-expert-distribution-metrics": True})
    assert finding.id == "flag.removed"
    assert "gone since SGLang 0.5.18" in finding.seen
    assert "Use --expert-balancedness-report-mode with one of" in finding.remedy


def test_a_flag_of_a_later_release() -> None:
    finding = found(FIRST, {"cuda-graph-max-bs-decode": 8})
    assert (finding.id, finding.severity) == ("flag.later", "error")
    assert finding.seen == "--cuda-graph-max-bs-decode exists from SGLang 0.5.14 on, and this is 0.5.12.post1"
    assert finding.remedy == "Use --cuda-graph-max-bs in this release, or 0.5.14 or a later release"
    assert found(FIRST, {"swa-prefix-tails": 8}).remedy == "Use 0.5.21 or a later release"


@pytest.mark.parametrize("spelling", ["attn-dp-size", "attention-data-parallel-size"])
def test_a_later_flag_that_took_the_place_of_two(spelling: str) -> None:
    finding = found("0.5.21", {spelling: 8})
    assert finding.remedy == "Use --dp-size with --enable-dp-attention in this release, or 0.5.22 or a later release"


@pytest.mark.parametrize(
    ("release", "flag", "value", "gone"),
    [
        ("0.5.20", "attention-backend", "cutlass_mla", "0.5.20"),
        (LAST, "decode-attention-backend", "dual_chunk_flash_attn", "0.5.20"),
        (LAST, "quantization", "marlin", "0.5.20"),
        ("0.5.16", "quantization", "qoq", "0.5.16"),
        ("0.5.22", "cuda-graph-backend-prefill", "tc_piecewise", "0.5.22"),
        (LAST, "fp4-gemm-backend", "cutlass", "0.5.16"),
    ],
)
def test_a_choice_that_is_gone(release: str, flag: str, value: str, gone: str) -> None:
    finding = found(release, {flag: value})
    assert (finding.id, finding.severity) == ("flag.choice_removed", "error")
    assert finding.seen == f"--{flag} does not accept '{value}' in SGLang {release}: that is gone since {gone}"
    assert finding.remedy.startswith("Use one of: ")


def test_a_choice_that_another_replaced() -> None:
    finding = found("0.5.21", {"kv-cache-dtype": "fp4_e2m1"})
    assert (finding.id, finding.remedy) == ("flag.choice_removed", "Use 'fp4_mx_block16'")
    assert "gone since 0.5.21" in finding.seen


def test_a_choice_of_a_later_release() -> None:
    finding = found(FIRST, {"tool-call-parser": "kimi_k3"})
    assert (finding.id, finding.severity) == ("flag.choice_later", "error")
    assert finding.seen == "--tool-call-parser accepts 'kimi_k3' from SGLang 0.5.17 on, and this is 0.5.12.post1"
    assert finding.remedy.startswith("Use 0.5.17 or a later release, or one of: auto, ")
    assert found(FIRST, {"tool-call-parser": "kimi_k9"}).id == "flag.choice"


def test_a_flag_that_says_another_thing_since_a_release() -> None:
    both: dict[str, object] = {"dp-size": 8, "enable-dp-attention": True}
    assert flags.check(both, HISTORY["0.5.21"]) == []
    assert [finding.id for finding in flags.check(both, HISTORY["0.5.22"])] == ["flag.deprecated", "flag.meaning"]
    meaning = flags.check(both, HISTORY[LAST])[-1]
    assert (meaning.severity, meaning.remedy) == ("warning", "Write --attn-dp-size in the place of the two")
    refused = found(LAST, {"data-parallel-size": 2, "attention-data-parallel-size": 4})
    assert (refused.id, refused.severity) == ("flag.meaning", "error")
    for sound in ({"dp-size": 2}, {"dp-size": 1, "attn-dp-size": 4}, {"dp-size": "2", "attn-dp-size": "1"}):
        assert flags.check(sound, HISTORY[LAST]) == []


def test_what_no_release_knows_is_unknown() -> None:
    assert found(LAST, {"--no-such-flag": 1}).id == "flag.unknown"
    assert HISTORY.absent("--no-such-flag", LAST) is None


@pytest.mark.parametrize("release", HISTORY)
def test_every_remedy_names_only_what_the_release_takes(release: str) -> None:
    table = HISTORY[release]
    everything = {spelling for other in HISTORY.values() for spelling in other}
    for spelling in everything:
        if spelling in table and not table[spelling].refused:
            continue
        finding = HISTORY.absent(spelling, release)
        assert finding is not None, spelling
        for name, value in re.findall(r"(--[a-z0-9][a-z0-9-]*)(?:=([a-z_]+))?", finding.remedy):
            assert name in table or name == spelling, finding
            assert not value or flags.accepts(table[name], value), finding


def test_our_own_tables_are_about_flags_that_went_or_came() -> None:
    last = HISTORY[LAST]
    assert {old for old in flag_history.REPLACEMENTS if old in last} == set()
    assert {new for new in flag_history.FORMER if new not in last or new in HISTORY[FIRST]} == set()
    for flag, choice in flag_history.CHOICE_REPLACEMENTS:
        assert choice not in (last[flag].choices or ())
        assert any(choice in (table[flag].choices or ()) for table in HISTORY.values())


def test_a_table_alone_knows_nothing_of_others() -> None:
    table = FlagTable([Flag("--a", refused="--a is no more."), Flag("--secret-knob", hidden=True)])
    (finding,) = flags.check({"a": 1}, table)
    assert (finding.id, finding.seen) == ("flag.removed", "--a is gone: --a is no more")
    (finding,) = flags.check({"secret-kno": 1}, table)
    assert (finding.id, finding.remedy) == ("flag.unknown", "Remove --secret-kno"), "what is hidden is not offered"
    assert flags.check({"secret-knob": 1}, table) == []
