# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the planned memory takes from settings, release and GPUs."""

from __future__ import annotations

from typing import Any

import pytest
import shapes
from ansible_collections.inference.sglang.plugins.module_utils import memory, models, tuning
from ansible_collections.inference.sglang.plugins.module_utils.gpus import CARDS
from ansible_collections.inference.sglang.plugins.module_utils.memory import GIB
from ansible_collections.inference.sglang.plugins.module_utils.tuning import Candidate, Hardware, Tuning, Wishes
from ansible_collections.inference.sglang.plugins.plugin_utils import flag_tables

EIGHT = {"tensor_parallel": 8}


def tuned(
    name: str,
    card: str = "rtx_pro_6000_server",
    count: int = 8,
    release: str = "0.5.12.post1",
    serving: dict[str, Any] | None = None,
    **flags: Any,
) -> Tuning:
    shape = models.read(shapes.config(name))[0]
    given = {f"--{flag.replace('_', '-')}": value for flag, value in flags.items()}
    wishes = Wishes(serving=serving or {}, flags=given)
    return tuning.tune(wishes, flag_tables.load(release), Hardware(CARDS[card], count, "pcie"), shape)


def fitted(*given: Any, **flags: Any) -> tuple[Candidate, memory.Load, memory.Budget]:
    chosen = tuned(*given, **flags).chosen
    assert chosen.load
    assert chosen.budget
    return chosen, chosen.load, chosen.budget


@pytest.mark.parametrize("release", ["0.5.12.post1", "0.5.23"])
@pytest.mark.parametrize("serving", [EIGHT, {**EIGHT, "expert_parallel": 8}, {"pipeline_parallel": 8}])
def test_kimi_has_a_plan_with_room_for_images(serving: dict[str, Any], release: str) -> None:
    _, load, budget = fitted("kimi-k2.5", release=release, serving=serving)
    assert (load.concurrency, load.held, load.images) == (64, 2048, True)
    assert budget.fits
    assert budget.stages[0].encoder > 2 * GIB
    _, _, alone = fitted("kimi-k2.5", release=release, serving=serving, language_only=True)
    assert alone.stages[0].encoder == 0


@pytest.mark.parametrize(("chunk", "tokens"), [(4096, 4096), (0, 65536), (-1, 65536)])
def test_prompts_that_are_not_cut(chunk: int, tokens: int) -> None:
    serving = {**EIGHT, "chunked_prefill_size": chunk, "context_length": 65536}
    assert fitted("llama-3.1-8b", serving=serving)[1].chunk == tokens


def test_prompts_that_are_not_cut_are_taken_together() -> None:
    serving = {**EIGHT, "chunked_prefill_size": -1, "context_length": 4096}
    assert fitted("llama-3.1-8b", serving=serving)[1].chunk == 16384
    assert fitted("llama-3.1-8b", serving=serving, max_prefill_tokens=20000)[1].chunk == 20000


def test_a_draft_model_has_room() -> None:
    plain = fitted("llama-3.1-8b", serving=EIGHT)
    made = tuned("llama-3.1-8b", serving=EIGHT, speculative_algorithm="EAGLE3", speculative_draft_model_path="/srv/d")
    assert made.chosen.budget
    assert made.chosen.budget.stages[0].draft == 4 * GIB
    assert made.chosen.budget.fullest.reserve == plain[2].fullest.reserve + 4 * GIB
    (finding,) = (finding for finding in made.findings if finding.id == "tuning.draft_model")
    assert (finding.severity, "4 GiB" in finding.seen) == ("warning", True)
    assert not any(finding.id == "tuning.draft_model" for finding in tuned("llama-3.1-8b", serving=EIGHT).findings)


@pytest.mark.parametrize(("release", "pooled"), [("0.5.13.post1", False), ("0.5.14", True)])
def test_the_models_own_draft_layers_are_sized(release: str, pooled: bool) -> None:
    flags = {"speculative_algorithm": "EAGLE"}
    made = tuned("deepseek-v3", "h200", 8, release, EIGHT, **flags)
    assert made.chosen.load
    assert (made.chosen.load.own_draft, made.chosen.load.draft_pooled) == (True, pooled)
    assert not any(finding.id == "tuning.draft_model" for finding in made.findings)


@pytest.mark.parametrize("release", ["0.5.12.post1", "0.5.23"])
def test_gpt_oss_fits_on_one_h100(release: str) -> None:
    chosen, load, budget = fitted("gpt-oss-120b", "h100", 1, release)
    assert load.padding == (1, 64)
    assert budget.fits
    assert chosen.able
