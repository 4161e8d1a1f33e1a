# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From the roles' variables, and what was read on the node, to an instance's plan; for plugins on the controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.inference.sglang.plugins.module_utils import (
    credentials,
    explanations,
    gpus,
    models,
    plan,
    spellings,
    tuning,
    warmup,
)
from ansible_collections.inference.sglang.plugins.module_utils import flags as flag_room
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, errors
from ansible_collections.inference.sglang.plugins.module_utils.models import ModelError, Shape
from ansible_collections.inference.sglang.plugins.module_utils.plan import PREFIX
from ansible_collections.inference.sglang.plugins.module_utils.tuning import Hardware, Tuning, Wishes
from ansible_collections.inference.sglang.plugins.plugin_utils import flag_tables, role_files
from ansible_collections.inference.sglang.plugins.plugin_utils.aiconfigurator import Asker

CUDA_ARCH = "12.0f"
"""What kernels are compiled for where no GPU is known: RTX PRO 6000."""

MOST_GPUS = 64
"""More than any node has; every layout of them is looked at."""

# Of the instance itself, or of the plan as a whole: no preset says them.
_OWN = ("name", "model_path", "served_name", "host", "port", "api_key", "preset", "probe_prompt", "aiconfigurator")
_MERGED = ("flags", "environment")
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
    )
    shape, config, wrong = _declared_shape(given.get("model_shape"), given.get("quantization"), folders)
    card, wrong_card = _declared_card(given.get("gpu_model"))
    selected, wrong_gpus = _selected(given.get("gpus") or [])
    patches, _wrong_patches = role_files.patch_definitions(values.get("sglang_patches", []), None, folders)
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
        patches=has,
        findings=(*findings, *wrong, *wrong_card, *wrong_gpus, *_of_key(key, has)),
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
    tuned = tuning.tune(instance.wishes, table, hardware, shape, patches=instance.patches, ask=ask_about)
    chosen = tuned.chosen
    capability = hardware.card.capability if hardware else 0
    settings = replace(
        instance.settings,
        cuda_arch=instance.settings.cuda_arch or (warmup.architecture(capability) if capability else CUDA_ARCH),
        serving=chosen.serving,
        environment={**chosen.environment, **instance.settings.environment},
        start_timeout=instance.settings.start_timeout or plan.start_timeout(shape, instance.wishes.read_rate),
    )
    findings += _other_architecture(settings.cuda_arch, capability)
    judged = (*instance.findings, *findings, *plan.check(settings, table), *tuned.findings)
    if errors(judged):
        return Planned({}, tuned, settings, judged)
    made = plan.make(settings, table)
    return Planned({**made, **explanations.explain(settings, table, tuned, hardware, shape)}, tuned, settings, judged)


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
    known = sorted(set(given) - set(_OWN))
    for strange in sorted(set(preset) - set(known)):
        seen = f"preset {name} sets {strange}, which no preset can"
        findings.append(Finding("preset.unknown", "error", seen, f"Use names among: {', '.join(known)}"))
    for setting in [setting for setting in preset if setting in known and setting not in _MERGED]:
        if given[setting] in (None, [], ""):
            given[setting] = preset[setting]
            origin[setting] = f"preset {name}"
    merged = {setting: preset.get(setting) or {} for setting in _MERGED}
    for setting, content in merged.items():
        if not isinstance(content, Mapping):
            seen = f"preset {name}: {setting} is {content!r}"
            findings.append(Finding("preset.type", "error", seen, "Write it as a mapping"))
            continue
        given[setting] = {**content, **given[setting]}
    return given, _of_flags(origin, given, merged, name), findings


def _of_key(key: str, has: frozenset[str]) -> list[Finding]:
    return [*credentials.judge_key(key), *credentials.judge_log(has)] if key else []


def _flagged(serving: Mapping[str, object], flags: Mapping[str, object]) -> list[str]:
    """The settings that an exact flag says, too."""
    exact = {flag_room.exact(flag) for flag, value in flags.items() if value is not None}
    return [
        name
        for name in serving
        if any(flag in exact for spelling in spellings.SETTINGS[name].spellings for flag in spelling)
    ]


def _of_flags(origin: dict[str, str], given: Mapping[str, Any], preset: Mapping[str, Any], name: str) -> dict[str, str]:
    """With where exact flags and variables are from."""
    for setting in _MERGED:
        for key in given[setting]:
            mine = key in (preset.get(setting) or {})
            origin[str(key)] = f"preset {name}" if mine else f"{PREFIX}{setting}"
    return origin


def _declared_shape(
    name: object, online: object, folders: tuple[str, ...]
) -> tuple[Shape | None, Mapping[str, Any], list[Finding]]:
    if not name:
        return None, {}, []
    config, findings = role_files.shape(str(name), folders)
    if findings:
        return None, {}, findings
    try:
        shape, findings = models.read(config, online=str(online or ""))
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
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
            found.append(Finding("plan.range", "error", f"{PREFIX}{name} is {value}", "Set it to a number above 0"))
            given[name] = None
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
        findings += gpus.judge(
            node,
            selected,
            declared=card,
            count=count,
            unit=facts["unit"]["name"],
            running=facts["unit"]["running"],
            others={other["name"]: other["gpus"] for other in facts["instances"]},
        )
        if node.of(selected):
            card = node.card(selected, card)
            count = count or len(node.gpus)
            link, level = link or node.link(selected), node.level(selected)
    hardware = None
    if instance.on_gpu and card is not None and (count or selected):
        hardware = Hardware(card, len(selected) or count or 1, link or card.link, level)
        if count and any(number >= count for number in selected):
            seen = f"{PREFIX}gpus names GPU {max(selected)}, {PREFIX}gpu_count is {count}"
            findings.append(Finding("gpus.numbers", "error", seen, f"Number the GPUs from 0 to {count - 1}"))
    shape = instance.shape
    if model := facts.get("model"):
        try:
            online = str(instance.settings.serving.get("quantization") or "")
            read, told_of_model = models.read(
                model["config"], index=model["index"], quantization=model["quantization"], online=online
            )
            findings += told_of_model
            findings += _differs(shape, read)
            shape = read
        except ModelError as error:
            if instance.wishes.tuned and hardware:
                findings += error.findings
    return hardware, shape, findings


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
