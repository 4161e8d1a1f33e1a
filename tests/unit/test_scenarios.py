# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""molecule runs the playbooks that lie in a scenario's folder, and not others in their place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT / ".config" / "molecule" / "config.yml"
SCENARIOS = sorted(path.parent for path in (ROOT / "molecule").glob("*/molecule.yml"))
ACTIONS = ("converge", "prepare", "side_effect", "verify")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.name)
def test_the_playbooks_of_a_scenario_are_run(scenario: Path) -> None:
    """A playbook that the shared configuration names wins over a file of the action's name, without a word."""
    playbooks: dict[str, str] = {}
    sequence: list[str] = []
    for file in (SHARED, scenario / "molecule.yml"):
        content = yaml.safe_load(file.read_text())
        playbooks |= content.get("ansible", {}).get("playbooks", {})
        sequence = content.get("scenario", {}).get("test_sequence", sequence)
    there = [action for action in ACTIONS if (scenario / f"{action}.yml").exists()]
    assert [action for action in there if playbooks.get(action, f"{action}.yml") != f"{action}.yml"] == []
    assert [action for action in there if action not in sequence] == []
