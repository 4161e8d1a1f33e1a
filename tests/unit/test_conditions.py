# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""C30 and C32: what the command line gives as text, conditions that are no booleans, and a core that is too old."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.inference.sglang.plugins.action import validate_settings
from jinja2 import nodes
from test_roles import ROLES, options

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = {name: option for role in ROLES for name, option in options(role).items()}
CONDITIONS = ("when", "failed_when", "changed_when", "until", "that")
# True or False to Ansible, whoever sets it.
MAGIC = {"ansible_check_mode", "ansible_diff_mode"}
GOOD = {
    "model_weights_path": "/srv/models/tiny",
    "cuda_repository_url": "https://mirror.example/cuda/",
    "cuda_repository_key": "https://mirror.example/cuda/key.gpg",
}


def kinds(kind: str) -> list[str]:
    return sorted(name for name, option in OPTIONS.items() if option.get("type") == kind)


@pytest.mark.parametrize(("given", "meant"), [("false", False), ("no", False), ("True", True), ("1", True)])
def test_every_boolean_of_the_command_line_is_what_its_word_says(play, given: str, meant: bool) -> None:
    """Without the conversion, the text false is true."""
    extra = [word for name in kinds("bool") for word in ("-e", f"{name}={given}")]
    _outcome, result = play({"inference.sglang.validate_settings": {}}, {"node1": GOOD}, *extra)["node1"]
    # Some of them contradict each other, which is told by its own finding and by no type.
    assert [finding for finding in result["findings"] if finding["id"].startswith("settings.")] == []
    if "settings" not in result:
        pytest.fail(result["msg"])
    assert {name: result["settings"][name] for name in kinds("bool")} == dict.fromkeys(kinds("bool"), meant)


def test_every_number_of_the_command_line_is_one(play) -> None:
    numbers = {name: OPTIONS[name]["default"] for name in kinds("int") + kinds("float") if "default" in OPTIONS[name]}
    extra = [word for name, value in numbers.items() for word in ("-e", f"{name}={value}")]
    outcome, result = play({"inference.sglang.validate_settings": {}}, {"node1": GOOD}, *extra)["node1"]
    assert outcome == "ok", result
    given = {name: result["settings"][name] for name in numbers}
    assert given == numbers
    assert {type(value) for value in given.values()} <= {int, float}


# Conditions


def is_boolean(node: nodes.Node, registered: set[str]) -> bool:
    """Whether an expression gives True or False whatever its variables hold; ``a and b`` gives one of both."""
    match node:
        case nodes.Compare() | nodes.Not() | nodes.Test():
            # ``not text`` is a boolean, and wrong for the text false.
            return not isinstance(node, nodes.Not) or is_boolean(node.node, registered)
        case nodes.And() | nodes.Or():
            return is_boolean(node.left, registered) and is_boolean(node.right, registered)
        case nodes.CondExpr():
            return is_boolean(node.expr1, registered) and is_boolean(node.expr2, registered)
        case nodes.Const():
            return isinstance(node.value, bool)
        case nodes.Filter():
            return node.name == "bool"
        case nodes.Name():
            return node.name in MAGIC or internal(node.name, registered)
        case nodes.Getattr():
            # A result of a module, or of validate_settings, which converts: a setting among them must be a bool.
            root = node
            while isinstance(root, nodes.Getattr):
                root = root.node
            setting = OPTIONS.get(node.attr)
            known = isinstance(root, nodes.Name) and root.name in registered
            return known and (setting is None or setting.get("type") == "bool")
    return False


def documents() -> list[Path]:
    found = [*ROOT.glob("playbooks/*.yml"), *ROOT.glob("molecule/**/*.yml"), ROOT / "site.yml"]
    return [
        *found,
        *(
            path
            for role in ROLES
            for part in ("tasks", "handlers", "defaults", "vars")
            for path in (role / part).rglob("*.yml")
        ),
    ]


def walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key with its value, at any depth; the items of a list under its own."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key), inner
            yield from walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner)


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from texts(inner)


def environment() -> jinja2.Environment:
    """It parses only, so that no filter or test need be known."""
    return jinja2.Environment()  # noqa: S701


def load(path: Path) -> Any:
    class Loader(yaml.SafeLoader):
        """Takes Ansible's own tags, such as !vault, for text."""

    Loader.add_multi_constructor("!", lambda loader, _tag, node: str(node.value))
    return yaml.load(path.read_text(encoding="utf-8"), Loader)  # noqa: S506


LOADED = {path: load(path) for path in documents()} | {
    path: path.read_text(encoding="utf-8") for role in ROLES for path in (role / "templates").rglob("*.j2")
}
REGISTERED = {value for content in LOADED.values() for key, value in walk(content) if key == "register"} | {
    key for content in LOADED.values() for key, _value in walk(content) if key.startswith("__") and key.endswith("_set")
}


INTERNAL = {
    key: value
    for content in LOADED.values()
    for key, value in walk(content)
    if key.startswith("__") and isinstance(value, str)
}


def internal(name: str, registered: set[str]) -> bool:
    """Whether a variable of a role's own is defined as a boolean expression, and nothing around it."""
    outputs = list(environment().parse(INTERNAL.get(name, "").strip()).find_all(nodes.Output))
    return len(outputs) == 1 and len(outputs[0].nodes) == 1 and is_boolean(outputs[0].nodes[0], registered)


def conditions(content: Any) -> Iterator[str]:
    for key, value in walk(content):
        if key in CONDITIONS:
            for condition in value if isinstance(value, list) else [value]:
                if not isinstance(condition, bool):
                    yield str(condition)


def wrong(content: Any) -> list[str]:
    """Conditions that may not be boolean, and choices within values by text that is true even where it says false."""
    found = []
    for condition in conditions(content):
        (output,) = environment().parse("{{ " + condition + " }}").find_all(nodes.Output)
        if not is_boolean(output.nodes[0], REGISTERED):
            found.append(condition)
    for text in texts(content):
        if "{{" in text or "{%" in text:
            choices = environment().parse(text).find_all((nodes.CondExpr, nodes.If))
            found += [text for choice in choices if unsafe(choice.test)]
    return found


def unsafe(node: nodes.Node) -> bool:
    """Whether a variable of type bool is read otherwise than through the filter bool."""
    if isinstance(node, nodes.Name):
        return OPTIONS.get(node.name, {}).get("type") == "bool"
    read = isinstance(node, nodes.Filter) and node.name == "bool"
    return not read and any(map(unsafe, node.iter_child_nodes()))


@pytest.mark.parametrize("path", LOADED, ids=lambda path: str(path.relative_to(ROOT)))
def test_conditions_are_booleans(path: Path) -> None:
    """ansible/ansible#85775: ansible-core 2.19 refuses others, some of them in check mode alone."""
    assert wrong(LOADED[path]) == []


@pytest.mark.parametrize(
    "condition",
    [
        *("cpu_engine_enabled", "not cpu_engine_enabled", "sglang_release", "__x.stdout | length", "'a'", "1"),
        *("x | default('')", "x is defined and x", "cpu_engine_enabled or x is defined", "unregistered.changed"),
        *("x | default(false)", "__flashinfer_settings.settings.sglang_release", "['a'] if x is defined else []"),
    ],
)
def test_a_condition_that_may_be_no_boolean_is_noticed(condition: str) -> None:
    assert wrong([{"when": condition}]) == [condition]
    assert wrong([{"when": ["x is defined", condition]}]) == [condition]


@pytest.mark.parametrize(
    "text", ["{{ 'a' if cpu_engine_enabled else 'b' }}", "{% if not cpu_engine_enabled %}x{% endif %}"]
)
def test_a_choice_by_text_that_says_false_is_noticed(text: str) -> None:
    assert wrong({"x": text}) == [text]
    assert wrong({"x": text.replace("cpu_engine_enabled", "(cpu_engine_enabled | bool)")}) == []


# The core


@pytest.mark.parametrize("version", ["2.17.14", "2.18.0", "2.18.12"])
def test_a_core_that_is_too_old_ends_the_first_task(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Nothing of it is used before: what is missing there would be told first."""
    monkeypatch.setattr(validate_settings, "__version__", version)
    monkeypatch.setattr(ActionBase, "run", lambda *_given: {})
    plugin = validate_settings.ActionModule.__new__(validate_settings.ActionModule)
    with pytest.raises(AnsibleActionFail, match=rf"ansible-core {version} .* needs >=2\.19\.0"):
        plugin.run(None, {})


@pytest.mark.parametrize("version", ["2.19.0", "2.19.14", "2.21.5", "2.22.0.dev0"])
def test_a_core_that_is_new_enough_goes_on(version: str) -> None:
    validate_settings.ActionModule._check_core(version)


def test_it_is_the_first_task_of_all() -> None:
    first = LOADED[ROOT / "playbooks" / "preflight.yml"][0]["tasks"][0]
    assert first["ansible.builtin.import_role"] == {"name": "inference.sglang.preflight", "tasks_from": "settings"}
    (block,) = LOADED[ROOT / "roles" / "preflight" / "tasks" / "settings.yml"]
    assert "inference.sglang.validate_settings" in block["block"][0]
    assert LOADED[ROOT / "playbooks" / "site.yml"][0]["ansible.builtin.import_playbook"] == "preflight.yml"
