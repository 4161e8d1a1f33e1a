# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a person is told of a plan: each choice with its reason, and the numbers behind it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import explanations
from ansible_collections.inference.sglang.plugins.module_utils.memory import GIB
from test_instances import REST, model, node, planned

BOX = {"gpu_model": "rtx_pro_6000_server", "gpu_count": 8, "model_shape": "kimi-k2.5"}
STAGES = {**BOX, "pipeline_parallel": 8}


def told(**changes: Any) -> list[str]:
    return explanations.told(planned(**changes).content)


def part(lines: list[str], title: str) -> list[str]:
    """The lines below a heading, up to the next empty one."""
    start = next(index for index, line in enumerate(lines) if line.startswith(title)) + 1
    end = next((index for index in range(start, len(lines)) if not lines[index]), len(lines))
    return lines[start:end]


def test_every_flag_and_variable_that_was_chosen_has_its_reason() -> None:
    made = planned(**STAGES, context_length=16384, environment={"OMP_NUM_THREADS": "8"}).content
    lines = explanations.told(made)
    own = {"--model-path", "--served-model-name", "--host", "--port"}
    given = [re.split(r"\s{2,}", line, maxsplit=1) for line in part(lines, "flags")]
    assert [words[0] for words in given] == [" ".join(words) for words in made["arguments"]]
    assert {words[0].split()[0] for words in given if len(words) == 1} == own
    reasons = {words[0]: words[1] for words in given if len(words) == 2}
    assert reasons["--context-length 16384"] == "sglang_server_context_length"
    assert reasons["--tp-size 1"] == "SGLang's default, beside the sizes that are given"
    variables = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in part(lines, "environment"))
    assert variables["OMP_NUM_THREADS=8"] == "sglang_server_environment"
    assert variables["SGLANG_PP_LAYER_PARTITION=8,7,7,8,8,8,8,7"].startswith("holds more tokens than stages of 7,7,7,8")
    assert not any(name.startswith(("PATH", "HOME")) for name in variables)


def test_a_reason_is_told_by_the_name_of_the_releases_own_flag() -> None:
    old, new = (planned(release, **STAGES).content["reasons"] for release in ("0.5.12.post1", "0.5.23"))
    assert old["--cuda-graph-max-bs"] == new["--cuda-graph-max-bs-decode"]
    assert "cuda_graph_max_batch_size" not in old


def test_stages_that_need_the_same_are_one_line_of_gibibytes() -> None:
    memory = planned(**STAGES).content["memory"]
    heading, *rows, last = [line for line in told(**STAGES) if re.match(r"GiB of|PP\d|The KV", line)]
    assert heading.split()[4:] == ["layers", "weights", "KV", "promised", "graphs", "activations", "other"]
    stages = [re.match(r"PP(\d)(?: to PP(\d))? of ([\d.]+) +(\d+) +([\d.]+)", row) for row in rows]
    counted = []
    for found in stages:
        assert found
        first, end = int(found[1]), int(found[2] or found[1])
        for index in range(first, end + 1):
            counted.append(index)
            stage = memory["stages"][index]
            assert int(found[4]) == stage["layers"]
            assert float(found[5]) == pytest.approx(stage["weights_bytes"] / GIB, abs=0.06)
    assert counted == list(range(8))
    assert len(rows) < 8
    assert last == f"The KV cache holds {memory['tokens']} tokens; {memory['promised_tokens']} are promised."


def test_layouts_stand_in_columns_with_their_source() -> None:
    lines = told(**BOX)
    rows = part(lines, "layout ")
    assert rows[-1] == "(expected for 128 tokens in and 128 out: roofline)"
    assert len(rows) > 10
    heading = next(line for line in lines if line.startswith("layout "))
    assert {len(row) for row in rows[:-1] if "are missing" not in row} == {len(heading)}
    first = planned(**BOX).content["candidates"][0]
    assert rows[0].startswith("tensor 8 ")
    assert rows[0].split()[-1] == str(first["tokens"])
    assert f"{first['expected']['loaded']['tokens_per_second']:.0f} of 64" in rows[0]


def test_what_stands_against_a_layout_is_told_beside_it() -> None:
    rows = part(told(**BOX, read_rate=900.0), "layout ")
    against = [row for row in rows if "tensor ranks wait 480 s for each other" in row]
    assert len(against) == len(rows) - 2
    assert rows[0].startswith("tensor 1, pipeline 8 ")
    assert all(row.startswith("tensor ") for row in against)


def test_a_card_of_unknown_speed_has_no_numbers_but_tokens() -> None:
    facts = {"gpus": node(product="NVIDIA RTX PRO 9000"), "model": model(), **REST}
    lines = explanations.told(planned(facts=facts).content)
    assert not any(line.startswith("(expected") for line in lines)
    assert planned(facts=facts).content["expected"] == {}
    assert any(line.startswith("The KV cache holds ") for line in lines)


def test_kernels_are_told_with_when_they_are_compiled() -> None:
    found = planned(**STAGES).content["warmup"]
    rows = part(told(**STAGES), "kernels that these flags compile")
    assert len(rows) == len(found) > 5
    for row, kernel in zip(rows, found, strict=True):
        when = "at the first start" if kernel["needs_gpu"] else "at installation"
        assert re.fullmatch(rf"{re.escape(kernel['name'])} +{when}: {re.escape(kernel['reason'])}", row)
    assert {kernel["needs_gpu"] for kernel in found} == {True, False}


def test_of_what_nobody_knows_nothing_is_told() -> None:
    lines = told()
    assert lines[0] == "instance kimi of release r at http://127.0.0.1:30000"
    assert [line for line in lines[1:] if line and not line.startswith(("flags", "--"))] == []
