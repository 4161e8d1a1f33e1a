# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A tiny Llama of random weights in Hugging Face's file layout: a real model to serve where none can be fetched.

It says nothing sensible. It exists so that every part from the loader to the answer runs for real.
"""

from __future__ import annotations

import json
import math
import random
import struct
from array import array
from pathlib import Path

from ansible_collections.inference.sglang.plugins.module_utils.wheels import write_atomically

VOCABULARY = ("<s>", "</s>", "<pad>")

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 128, 256, 4, 4, 2, 32


def _byte_alphabet() -> dict[int, str]:
    """Byte -> printable character, the table of byte-level BPE (GPT-2)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}


def _tokenizer() -> dict[str, object]:
    """One token a byte, no merges, so that any text can be encoded and decoded."""
    tokens = [*VOCABULARY, *_byte_alphabet().values()]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": token, **special} for index, token in enumerate(VOCABULARY)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [],
        },
    }


def _shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape, as LlamaForCausalLM stores them."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (HIDDEN,),
            f"{prefix}.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"{prefix}.post_attention_layernorm.weight": (HIDDEN,),
            f"{prefix}.mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        }
    return shapes | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (vocabulary, HIDDEN)}


def _bfloat16(values: list[float]) -> bytes:
    """The upper half of each float32, little-endian."""
    words = array("H", struct.pack(f"<{len(values)}f", *values))
    return array("H", words[1::2]).tobytes()


def _safetensors(seed: int, vocabulary: int) -> bytes:
    """The weights: norms are one, everything else is drawn from N(0, 0.08) with ``seed``."""
    generator = random.Random(seed)  # noqa: S311 # repeatable weights, not a secret
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for name, shape in _shapes(vocabulary).items():
        count = math.prod(shape)
        data = _bfloat16([1.0] * count if len(shape) == 1 else [generator.gauss(0, 0.08) for _number in range(count)])
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(body)


def files(seed: int = 0) -> dict[str, bytes]:
    """File name -> content of the whole model folder; the same for the same ``seed``."""
    tokenizer = _tokenizer()
    vocabulary = len(VOCABULARY) + 256
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "use_cache": True,
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": (
            "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
        ),
    }
    return {
        "config.json": _json(config),
        "generation_config.json": _json({"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}),
        "tokenizer.json": _json(tokenizer),
        "tokenizer_config.json": _json(tokenizer_config),
        "model.safetensors": _safetensors(seed, vocabulary),
    }


def write(folder: Path, seed: int = 0) -> None:
    """Write the model into ``folder``, readable by all; ``config.json``, without which it is no model, comes last."""
    content = files(seed)
    for name in sorted(content, key=lambda name: name == "config.json"):
        write_atomically(folder / name, content[name])


def is_complete(folder: Path, seed: int = 0) -> bool:
    """Whether ``folder`` holds exactly the files of this model."""
    content = files(seed)
    return all((folder / name).is_file() and (folder / name).read_bytes() == data for name, data in content.items())


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()
