# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The tiny model's files, against what safetensors and Hugging Face's layout ask of them."""

from __future__ import annotations

import functools
import json
import math
import os
import stat
import struct
from collections.abc import Iterator

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import tiny_llama


@pytest.fixture(autouse=True, scope="module")
def drawn_once() -> Iterator[None]:
    """Drawing the weights takes half a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_llama, "files", functools.cache(tiny_llama.files))
        yield


@pytest.fixture(scope="module")
def content(drawn_once: None) -> dict[str, bytes]:
    return tiny_llama.files(0)


def tensors(weights: bytes) -> tuple[dict[str, dict[str, object]], bytes]:
    """The header and the body of a safetensors file."""
    (length,) = struct.unpack_from("<Q", weights)
    header = json.loads(weights[8 : 8 + length])
    header.pop("__metadata__")
    return header, weights[8 + length :]


def test_tensors_follow_each_other_without_a_gap(content):
    header, body = tensors(content["model.safetensors"])
    end = 0
    for name, tensor in header.items():
        begin, behind = tensor["data_offsets"]
        assert begin == end, name
        assert behind - begin == 2 * math.prod(tensor["shape"]), name
        assert tensor["dtype"] == "BF16"
        end = behind
    assert end == len(body)


def test_shapes_are_those_of_the_config(content):
    config = json.loads(content["config.json"])
    header, _body = tensors(content["model.safetensors"])
    hidden, head = config["hidden_size"], config["head_dim"]
    assert header["model.embed_tokens.weight"]["shape"] == [config["vocab_size"], hidden]
    last = f"model.layers.{config['num_hidden_layers'] - 1}"
    assert header[f"{last}.self_attn.q_proj.weight"]["shape"] == [config["num_attention_heads"] * head, hidden]
    assert header[f"{last}.self_attn.k_proj.weight"]["shape"] == [config["num_key_value_heads"] * head, hidden]
    assert header[f"{last}.mlp.down_proj.weight"]["shape"] == [hidden, config["intermediate_size"]]
    assert len(header) == 3 + 9 * config["num_hidden_layers"]


def test_weights_are_numbers_around_zero_and_norms_are_one(content):
    header, body = tensors(content["model.safetensors"])

    def values(name: str) -> list[float]:
        begin, end = header[name]["data_offsets"]
        return [struct.unpack("<f", b"\0\0" + body[at : at + 2])[0] for at in range(begin, end, 2)]

    assert set(values("model.norm.weight")) == {1.0}
    weights = values("lm_head.weight")
    assert abs(sum(weights) / len(weights)) < 0.01
    assert 0.07 < math.sqrt(sum(weight**2 for weight in weights) / len(weights)) < 0.09


def test_every_byte_has_a_token(content):
    config, tokenizer = json.loads(content["config.json"]), json.loads(content["tokenizer.json"])
    vocabulary = tokenizer["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(config["vocab_size"]))
    assert {token["content"]: token["id"] for token in tokenizer["added_tokens"]} == {
        "<s>": config["bos_token_id"],
        "</s>": config["eos_token_id"],
        "<pad>": config["pad_token_id"],
    }
    for character in "Aé~ \n":
        for byte in character.encode():
            assert tiny_llama._byte_alphabet()[byte] in vocabulary


def test_a_seed_gives_always_the_same_bytes(content):
    assert tiny_llama.files.__wrapped__(0) == content
    other = tiny_llama.files(1)
    assert other["model.safetensors"] != content["model.safetensors"]
    assert len(other["model.safetensors"]) == len(content["model.safetensors"])


def test_what_was_written_is_complete_and_readable_by_all(tmp_path):
    before = os.umask(0o077)
    try:
        tiny_llama.write(tmp_path)
    finally:
        os.umask(before)
    assert tiny_llama.is_complete(tmp_path)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o644}
    assert not tiny_llama.is_complete(tmp_path, seed=1)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_truncated_changed_or_missing_file_makes_it_incomplete(tmp_path, name):
    tiny_llama.write(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:-1])
    assert not tiny_llama.is_complete(tmp_path)
    (tmp_path / name).write_bytes(whole[:-1] + b"x")
    assert not tiny_llama.is_complete(tmp_path)
    (tmp_path / name).unlink()
    assert not tiny_llama.is_complete(tmp_path)
    tiny_llama.write(tmp_path)
    assert tiny_llama.is_complete(tmp_path)


def test_the_config_comes_last(tmp_path, monkeypatch):
    """A folder without it is no model, so nobody takes a half-written one for whole."""
    written = []
    monkeypatch.setattr(tiny_llama, "write_atomically", lambda path, _content: written.append(path.name))
    tiny_llama.write(tmp_path)
    assert written[-1] == "config.json"
    assert sorted(written) == sorted(tiny_llama.files())
