# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The interface of every role: defaults/main.yml and meta/argument_specs.yml say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir())

each_role = pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)


def read(file: Path) -> dict[str, Any]:
    """A mapping from a YAML file; empty where there is none, which test_hygiene.py reports."""
    return (yaml.safe_load(file.read_text()) if file.is_file() else None) or {}


def defaults(role: Path) -> dict[str, Any]:
    return read(role / "defaults" / "main.yml")


def options(role: Path) -> dict[str, dict[str, Any]]:
    """The options of all entry points."""
    specs = read(role / "meta" / "argument_specs.yml").get("argument_specs", {})
    return {name: option for entry in specs.values() for name, option in (entry.get("options") or {}).items()}


@each_role
def test_the_defaults_are_the_optional_arguments(role: Path) -> None:
    optional = {name for name, option in options(role).items() if not option.get("required")}
    assert optional == defaults(role).keys()


@each_role
def test_the_documented_defaults_are_the_defaults(role: Path) -> None:
    """A default that is computed from others may be told in the description instead."""
    documented = {name: option["default"] for name, option in options(role).items() if "default" in option}
    plain = {name: value for name, value in defaults(role).items() if value is not None and "{{" not in str(value)}
    assert documented == plain | {name: defaults(role).get(name) for name in documented}


@each_role
def test_every_argument_carries_the_role_as_its_prefix(role: Path) -> None:
    assert [name for name in options(role) if not name.startswith(f"{role.name}_")] == []


@each_role
def test_every_argument_is_described(role: Path) -> None:
    assert [name for name, option in options(role).items() if not option.get("description")] == []
