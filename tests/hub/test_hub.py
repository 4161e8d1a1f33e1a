# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The real ``huggingface_hub`` of the locks against the stand-in for a hub: both must agree on what a hub says.

``HUB_PYTHON`` names an interpreter that has it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "unit"))

import hub as stand_in  # noqa: E402
from ansible_collections.inference.sglang.plugins.module_utils import tiny_llama, weights  # noqa: E402
from ansible_collections.inference.sglang.plugins.module_utils.transfers import Folder, Source, Transfer  # noqa: E402

PYTHON = os.environ["HUB_PYTHON"]
SCRIPT = (ROOT / "roles/model_weights/files/list_repository.py").read_text(encoding="utf-8")
FILES = {**tiny_llama.files(), "README.md": b"A model.\n", "original/consolidated.00.pth": b"the same again"}


@pytest.fixture
def hub() -> Iterator[stand_in.Hub]:
    hub = stand_in.Hub(FILES)
    yield hub
    hub.close()


def ask(hub: stand_in.Hub, revision: str, token: str = "", repository: str = stand_in.REPOSITORY) -> dict[str, Any]:
    """What the role's program prints."""
    environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": token, "HF_TOKEN_PATH": "/nonexistent", "HOME": "/nonexistent"}
    command = [PYTHON, "-I", "-", repository, revision]
    done = subprocess.run(command, input=SCRIPT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert not token or token not in done.stdout + done.stderr
    return answer


def test_a_branch_is_resolved(hub: stand_in.Hub) -> None:
    assert ask(hub, "main") == {"commit": stand_in.COMMIT}


def test_what_is_listed_is_fetched(hub: stand_in.Hub, tmp_path: Path) -> None:
    listed = ask(hub, stand_in.COMMIT)
    assert listed["commit"] == stand_in.COMMIT
    wanted = weights.from_listing(listed["files"], weights.INCLUDED, weights.EXCLUDED)
    assert {file.name: file.size for file in wanted} == {
        name: len(content) for name, content in tiny_llama.files().items()
    }
    folder = Folder(tmp_path / "model", {})
    folder.own.mkdir(parents=True)
    Transfer(folder, wanted, Source()).run()
    for name, content in tiny_llama.files().items():
        assert (folder.path / name).read_bytes() == content


def test_the_client_itself_fetches_from_the_stand_in(hub: stand_in.Hub, tmp_path: Path) -> None:
    """Else the stand-in would not be like a hub."""
    program = (
        "import sys; from huggingface_hub import snapshot_download; "
        "snapshot_download(sys.argv[1], revision=sys.argv[2], local_dir=sys.argv[3])"
    )
    environment = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HOME": str(tmp_path)}
    command = [PYTHON, "-I", "-c", program, stand_in.REPOSITORY, stand_in.COMMIT, str(tmp_path / "model")]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    for name, content in FILES.items():
        assert (tmp_path / "model" / name).read_bytes() == content


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"revision": "none"}, "revision"),
        ({"revision": "f" * 40}, "revision"),
        ({"revision": "main", "repository": "stand-in/none"}, "repository"),
        ({"revision": "main", "repository": "not a name"}, "repository"),
    ],
)
def test_what_is_not_there(hub: stand_in.Hub, asked: dict[str, str], error: str) -> None:
    answer = ask(hub, **asked)
    assert answer["error"] == error
    assert answer["text"]


@pytest.mark.parametrize(("token", "error"), [("", "repository"), ("hf_wrong", "gated"), (stand_in.TOKEN, None)])
def test_what_is_gated(hub: stand_in.Hub, token: str, error: str | None) -> None:
    hub.gated = True
    assert ask(hub, stand_in.COMMIT, token).get("error") == error


def test_a_hub_that_cannot_be_reached(hub: stand_in.Hub) -> None:
    hub.close()
    assert ask(hub, stand_in.COMMIT)["error"] == "unreachable"
