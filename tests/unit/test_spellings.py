# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Settings that mean the same in every release: what each release's own flags for them are (field case C16)."""

from __future__ import annotations

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import flags, spellings
from ansible_collections.inference.sglang.plugins.plugin_utils import flag_tables

HISTORY = flag_tables.history()
SWITCHES = {
    name: spellings.VALUE not in [value for spelling in setting.spellings for value in spelling.values()]
    for name, setting in spellings.SETTINGS.items()
}


@pytest.mark.parametrize(
    ("release", "flag"),
    [
        ("0.5.12.post1", "--cuda-graph-max-bs"),
        ("0.5.13.post1", "--cuda-graph-max-bs"),
        ("0.5.14", "--cuda-graph-max-bs-decode"),
        ("0.5.17", "--cuda-graph-max-bs-decode"),
        ("0.5.23", "--cuda-graph-max-bs-decode"),
    ],
)
def test_case_c16_a_graph_cap_is_each_releases_own_flag(release: str, flag: str) -> None:
    given = {"cuda_graph_max_batch_size": 64}
    assert spellings.check(given, {}, HISTORY[release]) == []
    assert spellings.spell(given, HISTORY[release]) == {flag: 64}


@pytest.mark.parametrize(
    ("setting", "value", "older", "newer"),
    [
        (
            "cuda_graphs",
            False,
            {"--disable-cuda-graph": True, "--disable-piecewise-cuda-graph": True},
            {"--cuda-graph-backend-decode": "disabled", "--cuda-graph-backend-prefill": "disabled"},
        ),
        (
            "attention_data_parallel",
            8,
            {"--dp-size": 8, "--enable-dp-attention": True},
            {"--attn-dp-size": 8},
        ),
        ("expert_waterfill", True, {"--enable-deepep-waterfill": True}, {"--enable-waterfill": True}),
        ("cuda_graph_batch_sizes", [1, 8], {"--cuda-graph-bs": [1, 8]}, {"--cuda-graph-bs-decode": [1, 8]}),
    ],
)
def test_what_a_setting_is_before_and_after(setting: str, value: object, older: object, newer: object) -> None:
    assert spellings.spell({setting: value}, HISTORY["0.5.12.post1"]) == older
    assert spellings.spell({setting: value}, HISTORY["0.5.23"]) == newer


@pytest.mark.parametrize("release", [release for release in HISTORY if release >= "0.5.12"])
@pytest.mark.parametrize("setting", spellings.SETTINGS)
def test_every_release_takes_what_is_written_for_it_without_a_warning(setting: str, release: str) -> None:
    table = HISTORY[release]
    off = spellings.SETTINGS[setting].off
    choices = (choice for flag in _first(setting, release) for choice in table[flag].choices or () if choice != off)
    choice = next(choices, 8)
    value: object = not spellings.SETTINGS[setting].when_false if SWITCHES[setting] else choice
    assert spellings.check({setting: value}, {}, table) == []
    written = spellings.spell({setting: value}, table)
    assert written
    assert flags.check(written, table) == []


def _first(setting: str, release: str) -> list[str]:
    """The flags of a setting that have choices in a release."""
    table = HISTORY[release]
    return [
        flag
        for spelling in spellings.SETTINGS[setting].spellings
        for flag in spelling
        if flag in table and table[flag].choices
    ]


@pytest.mark.parametrize("setting", spellings.SETTINGS)
def test_the_newest_spelling_is_there_in_the_newest_release_and_every_spelling_in_one(setting: str) -> None:
    newest, *older = spellings.SETTINGS[setting].spellings
    assert set(newest) <= set(HISTORY["0.5.23"])
    for spelling in older:
        assert any(set(spelling) <= set(table) for table in HISTORY.values())


@pytest.mark.parametrize("value", [None, False, "", []])
def test_what_is_not_set_writes_no_flag(value: object) -> None:
    given = {
        name: True if setting.when_false and value is False else value for name, setting in spellings.SETTINGS.items()
    }
    assert spellings.spell(given, HISTORY["0.5.23"]) == {}
    assert spellings.check(given, {"cuda-graph-max-bs-decode": 8}, HISTORY["0.5.23"]) == []


def test_one_attention_group_is_none() -> None:
    assert spellings.spell({"attention_data_parallel": 1}, HISTORY["0.5.12.post1"]) == {}


def test_a_release_that_cannot_is_told_with_those_that_can() -> None:
    (finding,) = spellings.check({"expert_waterfill": True}, {}, HISTORY["0.5.11"], "sglang_server_")
    assert (finding.id, finding.severity) == ("spelling.unsupported", "error")
    assert finding.seen.startswith("SGLang 0.5.11 has no flag for sglang_server_expert_waterfill (the shared expert")
    assert finding.remedy == "Remove sglang_server_expert_waterfill, or use a release from 0.5.12 to 0.5.23"


@pytest.mark.parametrize("value", [0, -1, True, "8", 1.5])
def test_a_number_that_makes_no_sense(value: object) -> None:
    ids = [finding.id for finding in spellings.check({"cuda_graph_max_batch_size": value}, {}, HISTORY["0.5.23"])]
    assert "spelling.range" in ids


def test_a_value_that_the_releases_flag_refuses() -> None:
    (finding,) = spellings.check({"sparse_attention_decode_backend": "flashmla_sparse_q8"}, {}, HISTORY["0.5.15"], "x_")
    assert finding.id == "flag.choice_later"
    assert finding.seen.startswith("x_sparse_attention_decode_backend: --dsa-decode-backend accepts")


@pytest.mark.parametrize(
    ("release", "flag"),
    [
        ("0.5.12.post1", "cuda-graph-max-bs"),
        ("0.5.17", "--cuda-graph-max-bs"),
        ("0.5.17", "cuda-graph-max-bs-decode"),
        ("0.5.23", "--cuda-graph-max-bs-decode"),
    ],
)
def test_a_setting_and_its_flag_in_one_are_refused(release: str, flag: str) -> None:
    """Also where the flag is a deprecated name of what the setting writes."""
    (finding,) = spellings.check({"cuda_graph_max_batch_size": 8}, {flag: 16}, HISTORY[release], "sglang_server_")
    assert (finding.id, finding.severity) == ("spelling.twice", "error")
    assert "sglang_server_cuda_graph_max_batch_size and the flag --cuda-graph-max-bs" in finding.seen
    assert spellings.check({"cuda_graph_max_batch_size": 8}, {flag: None}, HISTORY[release]) == []
