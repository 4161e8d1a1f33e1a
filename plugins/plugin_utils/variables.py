# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One variable of a role against its argument spec, for plugins on the controller."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.errors import ArgumentValueError, RequiredError
from ansible_collections.inference.sglang.plugins.module_utils import settings
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding


def judge(
    name: str, option: Mapping[str, Any], role: str, given: dict[str, Any], default: object
) -> tuple[list[Finding], Any]:
    """The findings on one variable, and its value as the type that its role wants."""
    if given and (findings := settings.misread(name, option, given[name], default)):
        return findings, None
    # Type path would expand ~ to the home of whoever runs Ansible here, not on the node.
    spec = {**option, "type": "str"} if option.get("type") == "path" else option
    try:
        checked = ArgumentSpecValidator({name: spec}).validate(given, validate_role_argument_spec=True)
    except (OverflowError, ValueError):  # an infinite number for a whole one
        seen = f"{name} is {given[name]!r}"
        remedy = f"Give it a value of type {option.get('type', 'str')}: {_first_sentence(option)}"
        return [Finding("settings.type", "error", seen, remedy, f"roles/{role}/meta/argument_specs.yml")], None
    kind = option.get("type", "str")
    # A list or dict may hold a token among other things.
    shown = kind in ("str", "path", "int", "float", "bool") and not option.get("no_log")
    findings = []
    for error in checked.errors.errors:
        if isinstance(error, RequiredError):
            fault, seen, remedy = "required", f"{name} is not set", f"Set {name}: {_first_sentence(option)}"
        else:
            seen = f"{name} is {repr(given[name]) if shown else 'of type ' + settings.type_of(given[name])}"
            if isinstance(error, ArgumentValueError):
                fault, remedy = "choice", f"Set it to one of: {', '.join(map(str, option['choices']))}"
            else:
                fault, remedy = "type", f"Give it a value of type {kind}: {_first_sentence(option)}"
                seen = _not_of_type(name, option, given[name])
        findings.append(Finding(f"settings.{fault}", "error", seen, remedy, f"roles/{role}/meta/argument_specs.yml"))
    value = checked.validated_parameters.get(name)
    return findings or settings.judge_value(name, value), value


_MEANT = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "path": "a path",
    "list": "a list",
    "dict": "a mapping",
}


def _not_of_type(name: str, option: Mapping[str, Any], value: object) -> str:
    """What a value is, and is not, in a sentence; Ansible's own names Python's types."""
    kind, elements = str(option.get("type", "str")), str(option.get("elements", "str"))
    found, meant = settings.type_of(value), _MEANT.get(kind, f"of type {kind}")
    if found == kind:  # one of its elements is wrong, and may be a secret
        return f"{name} holds something that is not {_MEANT.get(elements, f'of type {elements}')}"
    if option.get("no_log") or found in ("list", "dict"):
        return f"{name} is of type {found}, not {meant}"
    return f"{name} is {value!r}, not {meant}"


def _first_sentence(option: Mapping[str, Any]) -> str:
    description = option.get("description", "")
    plain = re.sub(r"\b[A-Z]\(([^)]*)\)", r"\1", description if isinstance(description, str) else description[0])
    return plain.split(". ")[0].rstrip(".")
