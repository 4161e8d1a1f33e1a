# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Why a plan is as it is and what to expect of it: for ``plan.json``, and as lines for a person."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ansible_collections.inference.sglang.plugins.module_utils import flags, spellings, warmup
from ansible_collections.inference.sglang.plugins.module_utils.findings import errors
from ansible_collections.inference.sglang.plugins.module_utils.flags import FlagTable
from ansible_collections.inference.sglang.plugins.module_utils.memory import GIB, Budget, Layout
from ansible_collections.inference.sglang.plugins.module_utils.models import Shape
from ansible_collections.inference.sglang.plugins.module_utils.plan import Settings
from ansible_collections.inference.sglang.plugins.module_utils.tuning import Candidate, Hardware, Tuning

_PARTS = {"weights": "weights", "kv": "KV promised", "graphs": "graphs", "activations": "activations", "other": "other"}
_WIDEST = 46
"""Columns that a flag with its value takes before its reason is moved."""


def explain(
    settings: Settings, table: FlagTable, tuned: Tuning, hardware: Hardware | None, shape: Shape | None
) -> dict[str, Any]:
    """Why the plan is as it is, and what is to be expected of it; no part of its digest.

    ``reasons``     flag or variable -> why it has its value
    ``layout``      ranks and stages, and how many ``gpus`` they are
    ``memory``      bytes of each stage, and what the KV cache holds; empty where it could not be computed
    ``expected``    tok/s and seconds for one request and for all promised; empty where nobody can tell
    ``warmup``      kernels that these flags compile at first use, and ``ahead``, those that need no GPU for it
    ``candidates``  all layouts that were looked at, best first, with what stands against each
    """
    chosen = tuned.chosen
    reasons = {}
    for name, value in chosen.serving.items():
        if name in chosen.reasons:
            written = spellings.spell({name: value}, table)
            reasons.update(dict.fromkeys(written, chosen.reasons[name]))
    for name in (*settings.flags, *chosen.environment):
        if name in chosen.reasons:
            reasons[name if name in chosen.environment else flags.exact(name)] = chosen.reasons[name]
    budget, kernels = chosen.budget, warmup.kernels(chosen.launch)
    return {
        "gpus": str(hardware or ""),
        "model": shape.architecture if shape else "",
        "layout": _layout(chosen.layout),
        "reasons": reasons,
        "memory": _memory(budget) if budget and budget.stages else {},
        "expected": _speeds(chosen, tuned.concurrency),
        "warmup": [asdict(kernel) for kernel in kernels],
        "ahead": warmup.ahead(kernels),
        "candidates": [
            {
                "layout": _layout(candidate.layout),
                "able": candidate.able,
                "tokens": candidate.budget.tokens * candidate.layout.attention_data if candidate.budget else 0,
                "expected": _speeds(candidate, tuned.concurrency),
                "against": [finding.seen for finding in errors(candidate.findings)],
            }
            for candidate in tuned.candidates
        ],
    }


def _layout(layout: Layout) -> dict[str, Any]:
    return {
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "expert": layout.expert,
        "attention_data": layout.attention_data,
        "gpus": layout.gpus,
        "partition": list(layout.partition),
    }


def _memory(budget: Budget) -> dict[str, Any]:
    return {
        "usable_bytes": budget.usable,
        "promised_tokens": budget.promised,
        "tokens": budget.tokens,
        "fraction": budget.fraction,
        "stages": [
            {
                "layers": stage.layers,
                "weights_bytes": stage.weights,
                "kv_bytes": stage.kv,
                "graphs_bytes": stage.graphs,
                "activations_bytes": stage.activations,
                "other_bytes": stage.other,
            }
            for stage in budget.stages
        ],
    }


def _speeds(candidate: Candidate, concurrency: int) -> dict[str, Any]:
    if candidate.single is None or candidate.loaded is None:
        return {}
    return {
        name: {
            "requests": requests,
            "tokens_per_second": round(estimate.tokens_per_second, 1),
            "time_per_token": round(estimate.time_per_token, 5),
            "time_to_first_token": round(estimate.time_to_first_token, 4),
            "source": estimate.source,
        }
        for name, requests, estimate in (("single", 1, candidate.single), ("loaded", concurrency, candidate.loaded))
    }


def told(plan: Mapping[str, Any]) -> list[str]:
    """A plan with its explanation, for a person: what was chosen, a line each, with its reason."""
    return [
        f"instance {plan['name']} of release {plan['release_path'].rpartition('/')[2]} at {plan['url']}",
        *([f"{plan['model']} on {plan['gpus']}"] if plan["gpus"] and plan["model"] else []),
        *_told_layouts(plan["candidates"]),
        *_told_choices("flags", [(" ".join(words), words[0]) for words in plan["arguments"]], plan["reasons"]),
        *_told_choices(
            "environment, beside paths and caches",
            [(f"{name}={value}", name) for name, value in plan["environment"].items() if name in plan["reasons"]],
            plan["reasons"],
        ),
        *(_told_memory(plan["memory"]) if plan["memory"] else []),
        *_told_kernels(plan["warmup"]),
    ]


def _told_layouts(candidates: list[Mapping[str, Any]]) -> Iterator[str]:
    if not any(candidate["expected"] or candidate["against"] for candidate in candidates):
        return
    yield ""
    names = ("tensor", "pipeline", "expert", "attention_data")
    layouts = [str(Layout(**{name: candidate["layout"][name] for name in names})) for candidate in candidates]
    width = max(map(len, layouts))
    yield f"{'layout':<{width}}{'tok/s of one':>14}{'of all':>16}{'ms a token':>12}{'KV tokens':>12}"
    for shown, candidate in zip(layouts, candidates, strict=True):
        if candidate["against"]:
            yield f"{shown:<{width}}  {'; '.join(candidate['against'])}"
            continue
        numbers = ["?", "?", "?"]
        if candidate["expected"]:
            one, all_of_them = candidate["expected"]["single"], candidate["expected"]["loaded"]
            numbers = [
                f"{one['tokens_per_second']:.0f}",
                f"{all_of_them['tokens_per_second']:.0f} of {all_of_them['requests']}",
                f"{all_of_them['time_per_token'] * 1000:.1f}",
            ]
        yield f"{shown:<{width}}{numbers[0]:>14}{numbers[1]:>16}{numbers[2]:>12}{candidate['tokens']:>12}"
    sources = [candidate["expected"]["loaded"]["source"] for candidate in candidates if candidate["expected"]]
    if sources:
        yield f"(expected for 128 tokens in and 128 out: {', the rest by '.join(dict.fromkeys(sources))})"


def _told_choices(title: str, choices: list[tuple[str, str]], reasons: Mapping[str, str]) -> Iterator[str]:
    if not choices:
        return
    width = min(max(len(what) for what, _name in choices), _WIDEST)
    yield ""
    yield title
    for what, name in choices:
        yield f"{what:<{width}}  {reasons.get(name, '')}".rstrip()


def _told_memory(memory: Mapping[str, Any]) -> Iterator[str]:
    """Stages that need the same are one line."""
    yield ""
    yield f"{'GiB of each GPU':<24}{'layers':>8}" + "".join(f"{shown:>13}" for shown in _PARTS.values())
    usable = memory["usable_bytes"] / GIB
    numbered = enumerate(memory["stages"])
    for stage, alike in itertools.groupby(numbered, key=lambda pair: pair[1]):
        indices = [index for index, _stage in alike]
        which = f"PP{indices[0]}" + (f" to PP{indices[-1]}" if len(indices) > 1 else "")
        parts = "".join(f"{stage[f'{name}_bytes'] / GIB:>13.1f}" for name in _PARTS)
        yield f"{f'{which} of {usable:.1f}':<24}{stage['layers']:>8}{parts}"
    yield f"The KV cache holds {memory['tokens']} tokens; {memory['promised_tokens']} are promised."


def _told_kernels(kernels: list[Mapping[str, Any]]) -> Iterator[str]:
    if not kernels:
        return
    yield ""
    yield "kernels that these flags compile"
    width = max(len(kernel["name"]) for kernel in kernels)
    for kernel in kernels:
        when = "at the first start" if kernel["needs_gpu"] else "at installation"
        yield f"{kernel['name']:<{width}}  {when}: {kernel['reason']}"
