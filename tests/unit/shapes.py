# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Configurations of models for the tests: those that role sglang_server ships, and a few more beside the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOLDERS = (HERE.parents[1] / "roles" / "sglang_server" / "files" / "shapes", HERE / "fixtures" / "models")
_PATHS = {path.stem: path for folder in FOLDERS for path in folder.glob("*.json")}
NAMES = sorted(_PATHS)


def path(name: str) -> Path:
    """The file of a model's name."""
    return _PATHS[name]


def config(name: str) -> dict[str, Any]:
    """The parsed file of a model's name."""
    loaded: dict[str, Any] = json.loads(path(name).read_text(encoding="utf-8"))
    return loaded
