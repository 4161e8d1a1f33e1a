# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filters that write a systemd unit and the file of its API key; each is documented in a YAML file of its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ansible.errors import AnsibleError, AnsibleFilterError
from ansible_collections.inference.sglang.plugins.module_utils import credentials, flags, units
from ansible_collections.inference.sglang.plugins.plugin_utils import flag_tables


def systemd_exec(argument: object) -> str:
    """One argument of ExecStart=."""
    try:
        return units.quote_exec(_text(argument))
    except ValueError as error:
        raise AnsibleFilterError(f"systemd_exec: {error}") from error


def systemd_environment(name: object, value: object) -> str:
    """One assignment of Environment=."""
    try:
        return units.quote_environment(_text(name), _text(value))
    except ValueError as error:
        raise AnsibleFilterError(f"systemd_environment: {name}: {error}") from error


def key_file(key: object) -> str:
    """The file that SGLang reads its API key from."""
    if not isinstance(key, str) or credentials.judge_key(key):
        raise AnsibleFilterError("key_file: Give ASCII characters without blanks, not beginning with a dash")
    return credentials.key_file(key)


def sglang_arguments(settings: object, release: str) -> list[list[str]]:
    """SGLang flags as arguments, one inner list a flag."""
    if not isinstance(settings, Mapping):
        raise AnsibleFilterError(f"sglang_arguments: flags are a mapping, not {type(settings).__name__}")
    try:
        return flags.arguments(settings, flag_tables.load(release))
    except (AnsibleError, ValueError) as error:
        raise AnsibleFilterError(f"sglang_arguments: {error}") from error


def _text(value: object) -> str:
    """Text and numbers only: a boolean or null would reach the program in Python's spelling."""
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return str(value)
    raise ValueError(f"Give text or a number, not {type(value).__name__}; quote it in YAML if the text is meant")


class FilterModule:
    """The filters of this file by name."""

    def filters(self) -> dict[str, Callable[..., object]]:
        return {
            "key_file": key_file,
            "sglang_arguments": sglang_arguments,
            "systemd_environment": systemd_environment,
            "systemd_exec": systemd_exec,
        }
