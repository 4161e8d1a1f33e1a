# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The adapter against the real aiconfigurator: ``AICONFIGURATOR`` names its command."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import models
from ansible_collections.inference.sglang.plugins.module_utils.estimates import Work
from ansible_collections.inference.sglang.plugins.module_utils.memory import Layout
from ansible_collections.inference.sglang.plugins.plugin_utils import aiconfigurator

SHAPES = Path(__file__).parents[2] / "roles" / "sglang_server" / "files" / "shapes"
CONFIG = json.loads((SHAPES / "kimi-k2.5.json").read_text())
KIMI = models.read(CONFIG)[0]
SYSTEM = "rtx_pro_6000_server"
TP8, EP8, PP8 = Layout(tensor=8), Layout(tensor=8, expert=8), Layout(pipeline=8)
# Decode of Kimi K2.6 in INT4 on such a box, vLLM at tensor size 8: local-inference-lab/rtx6kpro, 2026-05-15.
PUBLISHED = {1: 92.4, 8: 350.9}
# What 0.12.0 says for them, tokens a second of all requests.
SAID = {1: {TP8: 99.27, EP8: 95.55, PP8: 303.35 / 8}, 8: {TP8: 341.54, PP8: 303.35, EP8: 297.79}}


@pytest.fixture(scope="module")
def command() -> str:
    return os.environ["AICONFIGURATOR"]


@pytest.mark.parametrize("concurrency", PUBLISHED)
def test_layouts_of_the_first_target(command: str, concurrency: int) -> None:
    layouts, work = [TP8, EP8, PP8], Work(concurrency)
    questions = [(layout, work) for layout in layouts]
    found, findings = aiconfigurator.estimates(command, CONFIG, KIMI, questions, system=SYSTEM)
    assert findings == []
    assert {answer.source for answer in found} == {"aiconfigurator 0.12.0"}
    answers = dict(zip(layouts, found, strict=True))
    tokens = {layout: answer.tokens_per_second for layout, answer in answers.items()}
    assert tokens == pytest.approx(SAID[concurrency], rel=0.001)
    assert sorted(tokens, key=lambda layout: -tokens[layout]) == list(SAID[concurrency])
    assert concurrency / answers[TP8].time_per_token == pytest.approx(PUBLISHED[concurrency], rel=0.25)
    assert answers[PP8].per_request < 55


def test_attention_data_ranks(command: str) -> None:
    layout = Layout(tensor=8, expert=8, attention_data=8)
    answer, findings = aiconfigurator.estimate(command, CONFIG, KIMI, layout, system=SYSTEM, work=Work(8))
    assert findings == []
    assert answer is not None
    assert answer.tokens_per_second == pytest.approx(270.0, rel=0.001)


@pytest.mark.parametrize(
    ("config", "layout", "system", "fault"),
    [
        (CONFIG, TP8, "unknown", "unknown_system"),
        (CONFIG["text_config"] | {"architectures": ["FooForCausalLM"]}, TP8, SYSTEM, "unknown_architecture"),
        (CONFIG, Layout(), SYSTEM, "no_room"),
        (CONFIG, Layout(tensor=3), SYSTEM, "failed"),
    ],
)
def test_why_it_does_not_answer(
    command: str, config: dict[str, object], layout: Layout, system: str, fault: str
) -> None:
    answer, findings = aiconfigurator.estimate(command, config, KIMI, layout, system=system, work=Work(1))
    assert answer is None
    assert [finding.id for finding in findings] == [f"estimate.{fault}"]
