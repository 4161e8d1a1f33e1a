# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From the roles' variables, and what was read on the node, to an instance's plan; for plugins on the controller."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ansible_collections.inference.sglang.plugins.module_utils import (
    credentials,
    explanations,
    gpus,
    kernel_builds,
    models,
    plan,
    spellings,
    tuning,
    warmup,
    weights,
)
from ansible_collections.inference.sglang.plugins.module_utils import flags as flag_room
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, errors
from ansible_collections.inference.sglang.plugins.module_utils.launch_rules import Launch
from ansible_collections.inference.sglang.plugins.module_utils.memory import Layout
from ansible_collections.inference.sglang.plugins.module_utils.models import ModelError, Shape
from ansible_collections.inference.sglang.plugins.module_utils.plan import PREFIX
from ansible_collections.inference.sglang.plugins.module_utils.tuning import Hardware, Tuning, Wishes
from ansible_collections.inference.sglang.plugins.plugin_utils import flag_tables, role_files, variables
from ansible_collections.inference.sglang.plugins.plugin_utils.aiconfigurator import Asker

CUDA_ARCH = "12.0f"
"""What kernels are compiled for where no GPU is known: RTX PRO 6000."""

MOST_GPUS = 64
"""More than any node has; every layout of them is looked at."""

COMPILERS = "as many compilers at a time as the node's memory holds beside the engine"

# Of the instance itself, of the plan as a whole, or with a default that is a value: no preset says them.
_OWN = (
    *("name", "model_path", "served_name", "host", "port", "api_key", "preset", "probe_prompt", "aiconfigurator"),
    *("stop_timeout", "restart_limit", "accepted", "p2p_fallback"),
)
_MERGED = ("flags", "environment")
# Judgements about hardware, model and engine, which an operator may know better; not those about safety or syntax.
_ACCEPTABLE = ("gpus", "launch", "memory", "model", "tuning")
_WORDS = {
    "objective": tuple(tuning.CONCURRENCY),
    "gpu_link": ("pcie", "nvlink"),
    "nccl_p2p_level": ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS"),
}


@dataclass(frozen=True)
class Instance:
    """What the settings ask for.

    ``on_gpu``   false for the CPU engine, whatever the node has
    ``shape``    of the model by ``sglang_server_model_shape``, and its ``config``; None where that is not set
    ``online``   quantisation by which unquantised weights are packed while they load; empty for none
    ``preset``   settings that a preset made: they stand in for a node, and are not held against it
    ``patches``  ids of the patches that the release has
    """

    settings: plan.Settings
    wishes: Wishes
    on_gpu: bool
    card: gpus.Card | None
    count: int | None
    link: str
    shape: Shape | None
    config: Mapping[str, Any]
    online: str
    preset: frozenset[str]
    patches: frozenset[str]
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Planned:
    """An instance's plan as ``plan.json`` has it, which is empty where an error is among the findings."""

    content: Mapping[str, Any]
    tuning: Tuning
    settings: plan.Settings
    findings: tuple[Finding, ...]


def wanted(values: Mapping[str, Any], *, key: str = "", folders: tuple[str, ...] = ()) -> Instance:
    """The instance that a host's settings describe; KeyError names a setting that could not be evaluated.

    ``key``      clients must send it; it is not among the values, and judged only
    ``folders``  where presets, shapes and patches with a relative path are looked for
    """
    given, origin, findings = _with_preset(values, folders)
    findings += _out_of_range(given)
    environment = {str(name): value for name, value in given["environment"].items()}
    if values["cpu_engine_enabled"]:
        environment = {**values["cpu_engine_environment"], **environment}
    serving = {
        name: given.get(name) for name in spellings.SETTINGS if name in given and spellings.is_set(name, given[name])
    }
    for name in _flagged(serving, given["flags"]):
        # An exact flag of the user wins over a preset, too.
        if origin.get(name, "").startswith("preset "):
            del serving[name]
    settings = plan.Settings(
        name=values["sglang_server_name"],
        user=values["sglang_user"],
        bin_path=f"{values['sglang_root']}/bin",
        release_path=values["sglang_release_path"],
        cuda_home=values["cuda_toolkit_home"],
        jit_cache=values["flashinfer_cache_path"],
        cuda_arch=values["flashinfer_architectures"] or "",
        model_path=values["sglang_server_model_path"],
        served_name=values["sglang_server_served_name"],
        host=values["sglang_server_host"],
        port=values["sglang_server_port"],
        flags=given["flags"],
        environment=environment,
        start_timeout=given["start_timeout"],
        stop_timeout=given["stop_timeout"],
        restart_limit=given["restart_limit"],
        serving=serving,
        keyed=bool(key),
        fetched=values.get("model_weights_source") in weights.FETCHED
        and values.get("model_weights_path") == values["sglang_server_model_path"],
    )
    online = str(_exact(given["flags"]).get("--quantization") or given.get("quantization") or "")
    shape, config, wrong = _declared_shape(given.get("model_shape"), online, folders)
    card, wrong_card = _declared_card(given.get("gpu_model"))
    selected, wrong_gpus = _selected(given.get("gpus") or _visible(environment))
    patches, _wrong_patches = role_files.patch_definitions(values.get("sglang_patches", []), None, folders)
    strangers = [name for name in map(str, given.get("accepted") or ()) if name.partition(".")[0] not in _ACCEPTABLE]
    if strangers:
        seen = f"{PREFIX}accepted names {', '.join(strangers)}"
        remedy = f"Name findings of these rooms only: {', '.join(_ACCEPTABLE)}"
        findings.append(Finding("plan.accepted", "error", seen, remedy))
    has = frozenset(str(patch["id"]) for patch in patches)
    wishes = Wishes(
        objective=given.get("objective") or "throughput",
        concurrency=given.get("concurrency"),
        tokens_per_request=given.get("tokens_per_request"),
        most_ttft=given.get("most_ttft"),
        most_tpot=given.get("most_tpot"),
        gpus=selected,
        nccl_p2p_level=given.get("nccl_p2p_level"),
        nccl_algo=given.get("nccl_algo"),
        nccl_ib_disable=given.get("nccl_ib_disable"),
        read_rate=given.get("read_rate"),
        accepted=frozenset(map(str, given.get("accepted") or ())),
        tuned=given.get("tuned") is not False and not values["cpu_engine_enabled"],
        serving=serving,
        flags=settings.flags,
        environment={name: str(value) for name, value in environment.items()},
        origin=origin,
    )
    return Instance(
        settings=settings,
        wishes=wishes,
        on_gpu=not values["cpu_engine_enabled"],
        card=card,
        count=given.get("gpu_count"),
        link=given.get("gpu_link") or "",
        shape=shape,
        config=config,
        online=online,
        preset=frozenset(name for name in origin if origin[name].startswith("preset ")),
        patches=has,
        findings=(*findings, *_weighed(wishes, tuple(wrong)), *wrong_card, *wrong_gpus, *_of_key(key, has)),
    )


def planned(
    instance: Instance, release: str, facts: Mapping[str, Any] | None = None, ask: Asker | None = None
) -> Planned:
    """The plan, from settings alone or also from what module ``serving_plan`` read on the node.

    ``ask``  gives the estimator for a model and its GPUs
    """
    table = flag_tables.load(release)
    hardware, shape, findings = _read(instance, facts or {})
    config = ((facts or {}).get("model") or {}).get("config") or instance.config
    ask_about = ask(config, shape, hardware.card.system) if ask and shape and hardware else None
    inputs = _inputs(instance, release, hardware, config)
    before = (facts or {}).get("chosen") or {}
    keep = before.get("layout") if before.get("inputs") == inputs else None
    tuned = tuning.tune(
        instance.wishes, table, hardware, shape, patches=instance.patches, ask=ask_about, keep=_layout(keep)
    )
    chosen = tuned.chosen
    capability = hardware.card.capability if hardware else 0
    jobs = _jobs(facts or {})
    settings = replace(
        instance.settings,
        cuda_arch=instance.settings.cuda_arch or (warmup.architecture(capability) if capability else CUDA_ARCH),
        serving=chosen.serving,
        environment={**chosen.environment, **jobs, **instance.settings.environment},
        start_timeout=instance.settings.start_timeout or plan.start_timeout(shape, instance.wishes.read_rate),
    )
    findings += [*_other_architecture(settings.cuda_arch, capability), *_own_code(config, chosen.launch)]
    findings = list(tuning.accept(findings, instance.wishes.accepted))
    judged = (*instance.findings, *findings, *plan.check(settings, table), *tuned.findings)
    if errors(judged):
        return Planned({}, tuned, settings, judged)
    made = {**plan.make(settings, table), "inputs": inputs}
    why = explanations.explain(settings, table, tuned, hardware, shape)
    if {**made["environment"], **jobs} == made["environment"]:
        why["reasons"].update(dict.fromkeys(jobs, COMPILERS))
    return Planned({**made, **why}, tuned, settings, judged)


def _jobs(facts: Mapping[str, Any]) -> dict[str, str]:
    """How many compilers a serving process may run: ninja would run one a processor and more, each of up to 8 GiB
    (flashinfer-ai/flashinfer#3634). By all memory of the node, which is the same at every reading.
    """
    host = facts.get("host")
    if not host or not facts.get("gpus"):
        return {}
    return {"MAX_JOBS": str(kernel_builds.engine_jobs(host["processors"], host["memory"]))}


def _own_code(config: Mapping[str, Any], launch: Launch) -> list[Finding]:
    """A model that brings code of its own is loaded by it, or not at all."""
    if not config.get("auto_map") or launch.switch("--trust-remote-code"):
        return []
    seen = "the model brings code of its own (auto_map in config.json), which SGLang does not run unasked"
    remedy = "Read it, and set sglang_server_trust_remote_code to true if the engine needs it"
    return [Finding("model.own_code", "warning", seen, remedy, "sglang/srt/utils/hf_transformers_utils.py")]


def _inputs(instance: Instance, release: str, hardware: Hardware | None, config: Mapping[str, Any]) -> str:
    """A digest of what a layout is chosen from, but for the estimator, which may answer one day and not the next."""
    wishes = replace(instance.wishes, origin={})
    told = [release, asdict(wishes), hardware and asdict(hardware), config]
    content = json.dumps(told, sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def _layout(values: object) -> Layout | None:
    """The layout that a plan states; None where it states none."""
    if not isinstance(values, Mapping):
        return None
    names = ("tensor", "pipeline", "expert", "attention_data")
    sizes = [size for name in names if isinstance(size := values.get(name), int)]
    if len(sizes) < len(names):
        return None
    return Layout(tensor=sizes[0], pipeline=sizes[1], expert=sizes[2], attention_data=sizes[3])


def _other_architecture(given: str, capability: int) -> list[Finding]:
    """Kernels for other GPUs than the node's: they would be compiled again at the first start, or fail to load."""
    major, minor = divmod(capability, 10)
    fitting = (
        word.rstrip("af") == f"{major}.{minor}" or (word.split(".")[0] == str(major) and word.endswith("f"))
        for word in given.split()
    )
    if not capability or any(fitting):
        return []
    seen = f"flashinfer_architectures is {given}, the GPUs have compute capability {major}.{minor}"
    remedy = f"Set it to {warmup.architecture(capability)}, or to null"
    return [Finding("plan.architecture", "error", seen, remedy, "roles/flashinfer/defaults/main.yml")]


def _with_preset(
    values: Mapping[str, Any], folders: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, str], list[Finding]]:
    """The settings without their prefix, those of the preset where they are not set, and where each is from."""
    given = {name.removeprefix(PREFIX): value for name, value in values.items() if name.startswith(PREFIX)}
    origin = {name: f"{PREFIX}{name}" for name, value in given.items() if value not in (None, [], {}, "")}
    name = values.get(f"{PREFIX}preset")
    if not name:
        return given, _of_flags(origin, given, {}, ""), []
    preset, findings = role_files.preset(name, folders)
    options = role_files.options("sglang_server")
    known = sorted(option.removeprefix(PREFIX) for option in options if option.removeprefix(PREFIX) not in _OWN)
    for strange in sorted({str(setting) for setting in preset} - set(known)):
        seen = f"preset {name} sets {strange}, which no preset can"
        findings.append(Finding("preset.unknown", "error", seen, f"Use names among: {', '.join(known)}"))
    for setting in [setting for setting in preset if setting in known and preset[setting] is not None]:
        variable = PREFIX + setting
        wrong, value = variables.judge(variable, options[variable], "sglang_server", {variable: preset[setting]}, None)
        findings += [replace(finding, seen=f"preset {name}: {finding.seen}") for finding in wrong]
        if not wrong and setting not in _MERGED and given.get(setting) in (None, [], ""):
            given[setting] = value
            origin[setting] = f"preset {name}"
    merged: dict[str, Mapping[str, Any]] = {
        setting: content if isinstance(content := preset.get(setting), Mapping) else {} for setting in _MERGED
    }
    for setting, content in merged.items():
        given[setting] = {**content, **given[setting]}
    return given, _of_flags(origin, given, merged, name), findings


def _of_key(key: str, has: frozenset[str]) -> list[Finding]:
    return [*credentials.judge_key(key), *credentials.judge_log(has)] if key else []


def _flagged(serving: Mapping[str, object], flags: Mapping[str, object]) -> list[str]:
    """The settings that an exact flag says, too."""
    exact = _exact(flags)
    return [
        name
        for name in serving
        if any(flag in exact for spelling in spellings.SETTINGS[name].spellings for flag in spelling)
    ]


def _exact(flags: Mapping[str, object]) -> dict[str, object]:
    return {flag_room.exact(flag): value for flag, value in flags.items() if value is not None}


def _visible(environment: Mapping[str, object]) -> list[int]:
    """The GPUs that the user's environment selects by number; none where it does not."""
    words = str(environment.get("CUDA_VISIBLE_DEVICES", "")).split(",")
    return [int(word) for word in words] if all(word.strip().isdecimal() for word in words) else []


def _of_flags(origin: dict[str, str], given: Mapping[str, Any], preset: Mapping[str, Any], name: str) -> dict[str, str]:
    """With where exact flags and variables are from."""
    for setting in _MERGED:
        for key in given[setting]:
            mine = key in (preset.get(setting) or {})
            origin[str(key)] = f"preset {name}" if mine else f"{PREFIX}{setting}"
    return origin


def _declared_shape(
    name: object, online: str, folders: tuple[str, ...]
) -> tuple[Shape | None, Mapping[str, Any], list[Finding]]:
    if not name:
        return None, {}, []
    config, findings = role_files.shape(str(name), folders)
    if findings:
        return None, {}, findings
    try:
        shape, findings = models.read(config, online=online)
    except ModelError as error:
        return None, {}, [replace(finding, seen=f"{PREFIX}model_shape: {finding.seen}") for finding in error.findings]
    return shape, config, findings


def _declared_card(name: object) -> tuple[gpus.Card | None, list[Finding]]:
    if not name:
        return None, []
    if name in gpus.CARDS:
        return gpus.CARDS[str(name)], []
    seen = f"{PREFIX}gpu_model is {name!r}"
    return None, [Finding("gpus.unknown_model", "error", seen, f"Use one of: {', '.join(gpus.CARDS)}", gpus.HERE)]


def _selected(numbers: list[Any]) -> tuple[tuple[int, ...], list[Finding]]:
    wrong = [number for number in numbers if isinstance(number, bool) or not isinstance(number, int) or number < 0]
    if wrong or len(set(numbers)) < len(numbers):
        seen = f"{PREFIX}gpus is {numbers}"
        return (), [Finding("gpus.numbers", "error", seen, "List each GPU's number once, from 0, as nvidia-smi does")]
    return tuple(numbers), []


def _out_of_range(given: dict[str, Any]) -> list[Finding]:
    """Promises and counts below one, and words that mean nothing; all taken out, so that the rest is planned."""
    found = []
    for name in ("concurrency", "tokens_per_request", "gpu_count", "most_ttft", "most_tpot", "read_rate"):
        value = given.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if value is not None and not (number and value > 0):
            found.append(Finding("plan.range", "error", f"{PREFIX}{name} is {value}", "Set it to a number above 0"))
            given[name] = None
    fraction = given.get("memory_fraction")
    if fraction is not None and not 0 < fraction < 1:
        seen = f"{PREFIX}memory_fraction is {fraction}"
        found.append(
            Finding("plan.range", "error", seen, "Set it to a number between 0 and 1, or leave it to the plan")
        )
        given["memory_fraction"] = None
    if (given.get("gpu_count") or 0) > MOST_GPUS:
        seen = f"{PREFIX}gpu_count is {given['gpu_count']}"
        found.append(Finding("plan.range", "error", seen, f"Set it to the GPUs of a node, {MOST_GPUS} at most"))
        given["gpu_count"] = None
    for name, words in _WORDS.items():
        if given.get(name) not in (None, *words):
            seen = f"{PREFIX}{name} is {given[name]!r}"
            found.append(Finding("plan.choice", "error", seen, f"Set it to one of: {', '.join(words)}"))
            given[name] = None
    return found


def _read(instance: Instance, facts: Mapping[str, Any]) -> tuple[Hardware | None, Shape | None, list[Finding]]:
    """Hardware and model as they were read, or as the settings declare them; and where the two differ."""
    findings = [Finding(**finding) for finding in facts.get("findings", [])]
    selected, card, count, link, level = instance.wishes.gpus, instance.card, instance.count, instance.link, ""
    if facts.get("gpus"):
        node = gpus.NodeGpus.from_dict(facts["gpus"])
        declared = None if "gpu_model" in instance.preset else card
        findings += gpus.judge(
            node,
            selected,
            declared=declared,
            count=None if "gpu_count" in instance.preset else count,
            unit=facts["unit"]["name"],
            running=facts["unit"]["running"],
            others={other["name"]: other["gpus"] for other in facts["instances"]},
        )
        if node.of(selected):
            there = node.card(selected, card)
            findings += _other_box(instance, there, len(node.gpus))
            card = there
            count = len(node.gpus) if "gpu_count" in instance.preset or not count else count
            link, level = link or node.link(selected), node.level(selected)
    hardware = None
    if instance.on_gpu and card is not None and (count or selected):
        card = gpus.linked(card, "pcie" if (link or card.link) == "pcie" else "nvlink")
        hardware = Hardware(card, len(selected) or count or 1, card.link, level)
        if count and any(number >= count for number in selected):
            seen = f"{PREFIX}gpus names GPU {max(selected)}, {PREFIX}gpu_count is {count}"
            findings.append(Finding("gpus.numbers", "error", seen, f"Number the GPUs from 0 to {count - 1}"))
    shape = instance.shape
    if model := facts.get("model"):
        try:
            read, told_of_model = models.read(
                model["config"], index=model["index"], quantization=model["quantization"], online=instance.online
            )
            findings += told_of_model
            findings += _differs(None if "model_shape" in instance.preset else shape, read)
            shape = read
        except ModelError as error:
            if hardware:
                findings += _weighed(instance.wishes, error.findings)
            shape = None
    return hardware, shape, findings


def _weighed(wishes: Wishes, found: tuple[Finding, ...]) -> list[Finding]:
    """That a model cannot be sized is no error to whoever needs no plan of its memory."""
    given = {*wishes.serving, *_exact(wishes.flags)}
    sized = {"memory_fraction", "--mem-fraction-static"} & given and {*tuning.SIZES, "--tp-size", "--pp-size"} & given
    if wishes.tuned and not sized:
        return list(found)
    return [replace(finding, severity="warning") for finding in found]


def _other_box(instance: Instance, there: gpus.Card | None, count: int) -> list[Finding]:
    """That a preset was made for other GPUs than the node has, which are planned for."""
    meant = {"gpu_model": instance.card and instance.card.name, "gpu_count": instance.count}
    real = {"gpu_model": there and there.name, "gpu_count": count}
    wrong = [name for name in meant if name in instance.preset and meant[name] != real[name]]
    if not wrong:
        return []
    seen = f"the preset is for {' and '.join(f'{name} {meant[name]}' for name in wrong)}, the node has "
    seen += f"{' and '.join(str(real[name]) for name in wrong)}"
    return [Finding("gpus.preset", "info", seen, "Compare the plan, which is for the node, with the preset", gpus.HERE)]


def _differs(declared: Shape | None, read: Shape) -> list[Finding]:
    """Settings that describe another model than the one in the folder."""
    if declared is None:
        return []
    names = ("hidden", "heads", "experts", "attention", "expert_width", "vocabulary")
    wrong = [
        f"{name} {getattr(declared, name)} for {getattr(read, name)}"
        for name in names
        if getattr(declared, name) != getattr(read, name)
    ]
    if len(declared.layers) != len(read.layers):
        wrong.append(f"{len(declared.layers)} layers for {len(read.layers)}")
    if not wrong:
        return []
    seen = f"{PREFIX}model_shape has {', '.join(wrong)} of the model in {PREFIX}model_path"
    remedy = "Correct it, or leave it out: the plan then takes what it reads on the node"
    return [Finding("model.declared", "error", seen, remedy, "roles/sglang_server/files/shapes")]
