# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A model's files: what is missing, damaged or foreign, what is to be fetched, and how far that is."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import asdict
from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import tiny_llama, weights
from ansible_collections.inference.sglang.plugins.module_utils.weights import Progress, Stock, Wanted, WeightsError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = '{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}'
SHARDS = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]


def shard(size: int = 16) -> bytes:
    """A whole safetensors file with one tensor."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size)


def index(names=SHARDS) -> bytes:
    weight_map = {f"tensor{number}": name for number, name in enumerate(names)}
    return json.dumps({"metadata": {"total_size": 48}, "weight_map": weight_map}).encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A complete model of three shards."""
    for name in SHARDS:
        (tmp_path / name).write_bytes(shard())
    (tmp_path / weights.INDEX).write_bytes(index())
    (tmp_path / "config.json").write_text(CONFIG)
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def ids(folder: Path) -> list[tuple[str, str]]:
    return [(finding.id, finding.severity) for finding in weights.judge(weights.take(folder))]


def test_a_complete_model_has_no_finding(folder):
    assert ids(folder) == []
    assert weights.take(folder).bytes == sum(path.stat().st_size for path in folder.iterdir())


def test_the_tiny_model_is_complete(tmp_path):
    tiny_llama.write(tmp_path)
    assert ids(tmp_path) == []


def test_field_case_half_downloaded_weights(tmp_path):
    """C23: shard 1 ok, 2 truncated to 9 bytes with a header that claims 4096, 3 missing, a leftover beside it."""
    (tmp_path / SHARDS[0]).write_bytes(struct.pack("<Q", 2) + b"{}")
    (tmp_path / SHARDS[1]).write_bytes(struct.pack("<Q", 4096) + b"{")
    (tmp_path / f"{SHARDS[2]}.incomplete").write_bytes(b"")
    (tmp_path / weights.INDEX).write_bytes(
        b'{"metadata": {"total_size": 30}, "weight_map": {"a": "model-00001-of-00003.safetensors",'
        b' "b": "model-00002-of-00003.safetensors", "c": "model-00003-of-00003.safetensors"}}'
    )
    (tmp_path / "config.json").write_text(CONFIG)
    (tmp_path / "tokenizer.json").write_text("{}")
    found = {finding.id: finding for finding in weights.judge(weights.take(tmp_path, "/srv/model"))}
    assert list(found) == ["weights.missing", "weights.broken", "weights.partial"]
    assert {finding.severity for finding in found.values()} == {"error"}
    assert "1 of the 3 shards" in found["weights.missing"].seen
    assert SHARDS[2] in found["weights.missing"].seen
    assert (
        found["weights.broken"].seen == f"/srv/model/{SHARDS[1]} is truncated: 9 bytes, and its header alone has 4104"
    )
    assert f"{SHARDS[2]}.incomplete" in found["weights.partial"].seen
    # Mended, it passes.
    (tmp_path / SHARDS[1]).write_bytes(shard())
    os.rename(tmp_path / f"{SHARDS[2]}.incomplete", tmp_path / SHARDS[2])
    (tmp_path / SHARDS[2]).write_bytes(shard())
    assert ids(tmp_path) == []


def test_field_case_a_disk_that_is_too_small():
    """C23: 400 GB free of 594 GB, and a twentieth more."""
    (found,) = weights.room(594 * 10**9, 400 * 10**9, "/srv/model")
    assert (found.id, found.severity) == ("weights.disk", "error")
    assert "400.0 GB are free for /srv/model; needed are 623.7 GB" in found.seen
    assert "Free 223.7 GB" in found.remedy
    assert weights.room(400 * 10**9, 400 * 10**9, "/srv/model")
    assert not weights.room(380 * 10**9, 400 * 10**9, "/srv/model")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is truncated: 0 bytes"),
        (b"1234567", "is truncated: 7 bytes"),
        (struct.pack("<Q", 1 << 40), "is no safetensors file: its header would have"),
        (struct.pack("<Q", 2) + b"[]", "has a damaged header"),
        (struct.pack("<Q", 2) + b"{]", "has a damaged header"),
        (struct.pack("<Q", 8) + b'{"a": 1}', "has a damaged header"),
        (struct.pack("<Q", 23) + b'{"a":{"data_offsets":[]}}'[:23], "has a damaged header"),
        (shard()[:-1], "is truncated: "),
        (shard() + b"x", "is too long: "),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 10\n", "is a pointer of Git LFS"),
        (struct.pack("<Q", 2) + b"{}", ""),
        (shard(), ""),
    ],
)
def test_a_shard_ends_where_its_header_says(tmp_path, content, why):
    (tmp_path / "a.safetensors").write_bytes(content)
    found = weights.measure(tmp_path / "a.safetensors")
    assert found.startswith(why)
    assert bool(found) == bool(why)


def test_a_shard_that_cannot_be_read(tmp_path, monkeypatch):
    assert weights.measure(tmp_path / "none.safetensors") == "cannot be read: No such file or directory"
    (tmp_path / SHARDS[0]).write_bytes(b"")

    def denied(_path):
        raise PermissionError

    monkeypatch.setattr(weights, "measure", denied)  # another check tells who may read it
    assert weights.take(tmp_path).broken == {}


def test_a_leftover_beside_a_complete_model_is_a_warning(folder):
    (folder / ".cache/huggingface/download").mkdir(parents=True)
    (folder / ".cache/huggingface/download/x.abc.incomplete").write_bytes(b"")
    (folder / f".{SHARDS[0]}.aB3dE6").write_bytes(b"")
    assert ids(folder) == [("weights.partial", "warning")]
    (found,) = weights.judge(weights.take(folder))
    assert "Remove them" in found.remedy
    assert "x.abc.incomplete" in found.seen
    assert SHARDS[0] in found.seen


def test_files_under_way_of_our_own_are_no_leftover(folder):
    (folder / weights.OWN).mkdir()
    (folder / weights.OWN / "0123.incomplete").write_bytes(b"")
    assert ids(folder) == []


@pytest.mark.parametrize("name", ["model-00004-of-00004.safetensors", "other.safetensors.index.json"])
def test_weights_of_another_model_are_named(folder, name):
    (folder / name).write_bytes(shard())
    (found,) = weights.judge(weights.take(folder))
    assert (found.id, found.severity) == ("weights.foreign", "warning")
    assert name in found.seen


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"weight_map": {}}',
        b'{"weight_map": {"a": "../b"}}',
        b'{"weight_map": 1}',
        b'{"weight_map": {"a": 1}}',
    ],
)
def test_a_damaged_index(folder, content):
    (folder / weights.INDEX).write_bytes(content)
    assert ids(folder) == [("weights.index", "error")]


def test_an_index_that_cannot_be_read(tmp_path, monkeypatch):
    assert weights._index(tmp_path) == ("cannot be read: Is a directory", ())

    def denied(_path):
        raise PermissionError

    monkeypatch.setattr(Path, "read_bytes", denied)
    assert weights._index(tmp_path) == ("", ())


def test_without_an_index_the_numbers_in_the_names_tell_what_is_missing(folder):
    (folder / weights.INDEX).unlink()
    assert ids(folder) == []
    (folder / SHARDS[1]).unlink()
    (found,) = weights.judge(weights.take(folder))
    assert found.id == "weights.missing"
    assert "the numbers in the other files' names imply" in found.seen
    assert SHARDS[1] in found.seen


def test_a_folder_without_weights(folder):
    for path in folder.glob("model*"):
        path.unlink()
    assert ids(folder) == [("weights.none", "error")]
    (folder / "model.gguf").write_bytes(b"")
    assert ids(folder) == []


def test_what_sglang_loads_in_the_place_of_the_shards_is_enough(folder):
    """It takes *.bin where there is no safetensors file, and then reads no index of them."""
    for name in SHARDS:
        (folder / name).unlink()
    (folder / "training_args.bin").write_bytes(b"")
    assert ids(folder) == [("weights.missing", "error")]
    (folder / "pytorch_model-00001-of-00001.bin").write_bytes(b"")
    assert ids(folder) == []


def test_what_is_published_beside_the_shards_is_no_stranger(folder):
    for name in ("consolidated.safetensors", "mtp.safetensors"):
        (folder / name).write_bytes(shard())
    (folder / "consolidated.safetensors.index.json").write_text("{}")
    assert ids(folder) == []
    (folder / "mtp.safetensors").write_bytes(shard()[:-1])
    assert ids(folder) == [("weights.broken", "error")]


def test_a_damaged_shard_that_no_index_names_is_not_loaded(folder):
    (folder / "consolidated.safetensors").write_bytes(shard()[:-1])
    (folder / "x.incomplete").write_bytes(b"")
    assert ids(folder) == [("weights.broken", "warning"), ("weights.partial", "warning")]
    (folder / weights.INDEX).unlink()
    assert ("weights.broken", "error") in ids(folder)


def test_shards_may_be_numbered_from_nought(folder):
    (folder / weights.INDEX).unlink()
    for number, name in enumerate(SHARDS):
        (folder / name).rename(folder / f"model-{number:05}-of-00003.safetensors")
    assert ids(folder) == []
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert ids(folder) == [("weights.missing", "error")]


@pytest.mark.parametrize("name", ["tokenizer.tok.json", "rwkv_vocab_v20230424.txt", "spm.model", "tokenizer.model.v3"])
def test_tokenizers_of_other_names(folder, name):
    (folder / "tokenizer.json").rename(folder / name)
    assert ids(folder) == []


def test_a_folder_without_a_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    assert ids(folder) == [("weights.tokenizer", "error")]
    (folder / "tiktoken.model").write_bytes(b"")
    assert ids(folder) == []


def test_what_cannot_be_looked_into_is_left_out(folder):
    (folder / "loop").symlink_to("loop")
    (folder / ".git").mkdir()
    (folder / ".git/x.incomplete").write_text("")
    assert ids(folder) == []


# --- what is to be fetched


@pytest.mark.parametrize(
    "name", ["../a", "/a", "a/../b", "./a", "a//b", "", "a\nb", "a\\b", ".", ".model_weights/manifest.json"]
)
def test_names_that_lead_out_of_the_folder_are_refused(name):
    with pytest.raises(WeightsError) as error:
        weights.checked_names(["fine/too.json", name])
    assert error.value.findings[0].id == "weights.name"


def test_a_list_of_checksums():
    one, two = "a" * 64, "B" * 64
    text = f"# of the model\n{one}  config.json\n\n{two} *./sub/model.safetensors\r\n"
    assert weights.checksums(text) == {"config.json": one, "sub/model.safetensors": "b" * 64}
    files = weights.from_checksums(f"{one}  a b.json", "http://mirror.example/m/")
    assert files == [Wanted("a b.json", -1, one, "", "http://mirror.example/m/a%20b.json")]


@pytest.mark.parametrize(
    "text", ["", "# nothing", "abc  config.json", f"{'a' * 64}config.json", f"\\{'a' * 64}  a\\nb"]
)
def test_what_is_no_list_of_checksums(text):
    with pytest.raises(WeightsError) as error:
        weights.checksums(text)
    assert error.value.findings[0].id == "weights.checksums"


def test_of_a_repository_what_is_served_is_fetched():
    names = [
        "config.json",
        "model.safetensors",
        "original/consolidated.00.pth",
        "metal/model.bin",
        "README.md",
        "pytorch_model.bin",
        "consolidated.safetensors",
        "sub/model.safetensors",
        ".gitattributes",
        "tokenizer.json",
        "sub/code.py",
    ]
    chosen = weights.chosen(names, weights.INCLUDED, weights.EXCLUDED)
    assert chosen == ["config.json", "model.safetensors", "tokenizer.json", "sub/code.py"]
    listing = [
        {"name": "model.safetensors", "size": 5, "sha256": "c" * 64, "blob": "d" * 40, "url": "http://hub.example/1"},
        {"name": "config.json", "size": 2, "sha256": "", "blob": "e" * 40, "url": "http://hub.example/2"},
        {"name": "README.md", "size": 2, "sha256": "", "blob": "e" * 40, "url": "http://hub.example/3"},
    ]
    assert weights.from_listing(listing, weights.INCLUDED, weights.EXCLUDED) == [
        Wanted("config.json", 2, "", "e" * 40, "http://hub.example/2"),
        Wanted("model.safetensors", 5, "c" * 64, "", "http://hub.example/1"),
    ]


def test_what_a_source_lacks_is_told_before_anything_is_fetched():
    whole = [Wanted(name) for name in ("config.json", "tokenizer.json", *SHARDS)]
    assert weights.announced("org/name", whole) == []

    def lacking(*names):
        return [found.id for found in weights.announced("org/name", [file for file in whole if file.name not in names])]

    assert lacking("config.json") == ["weights.config"]
    assert lacking("tokenizer.json") == ["weights.tokenizer"]
    assert lacking(SHARDS[0]) == ["weights.missing"]
    assert lacking(*SHARDS) == ["weights.none"]


def test_a_folder_is_copied_with_the_hashes_that_it_knows(folder):
    (folder / ".hidden").write_text("")
    (folder / "x.part").write_text("")
    (folder / weights.OWN).mkdir()
    manifest = {"what": {}, "files": {"config.json": {"sha256": "f" * 64}}}
    (folder / weights.OWN / "manifest.json").write_text(json.dumps(manifest))
    found = {file.name: file for file in weights.from_folder(folder)}
    assert set(found) == {*SHARDS, weights.INDEX, "config.json", "tokenizer.json"}
    assert found["config.json"] == Wanted("config.json", len(CONFIG), "f" * 64, "", str(folder / "config.json"))
    assert found["tokenizer.json"].sha256 == ""


def test_what_another_node_serves_is_numbered():
    manifest = {"files": {"b": {"size": 2, "sha256": "b"}, "a": {"size": 1, "sha256": "a"}}}
    assert weights.from_manifest(manifest, "http://192.0.2.1:1") == [
        Wanted("a", 1, "a", "", "http://192.0.2.1:1/0"),
        Wanted("b", 2, "b", "", "http://192.0.2.1:1/1"),
    ]


# --- what is there already


def whole(folder: Path, what: dict[str, object]) -> None:
    files = {path.name: weights.record(path, "0" * 64, True) for path in folder.iterdir() if path.is_file()}
    (folder / weights.OWN).mkdir(exist_ok=True)
    (folder / weights.OWN / "manifest.json").write_text(json.dumps({"what": what, "files": files}))


def test_a_manifest_holds_until_a_file_changes(folder):
    what = {"source": "url", "url": "http://mirror.example/"}
    assert not weights.complete(folder, what)
    whole(folder, what)
    assert weights.complete(folder, what)
    assert not weights.complete(folder, {**what, "url": "http://other.example/"})
    os.utime(folder / "config.json", ns=(0, 0))
    assert not weights.complete(folder, what)
    whole(folder, what)
    (folder / SHARDS[0]).unlink()
    assert not weights.complete(folder, what)


def test_a_folder_of_another_revision_is_left_alone(folder):
    what = {"source": "huggingface", "revision": "1" * 40}
    assert weights.another(folder, what) == []
    whole(folder, what)
    assert weights.another(folder, what) == []
    (found,) = weights.another(folder, {**what, "revision": "2" * 40, "include": ["*" * 99]})
    assert found.id == "weights.another"
    assert f"revision {'1' * 40}, wanted is {'2' * 40}" in found.seen
    assert "..." in found.seen


def test_a_file_of_another_size_is_not_overwritten(folder):
    (folder / "sub").mkdir()
    wanted = [
        Wanted("config.json", 3),
        Wanted("tokenizer.json", 2),
        Wanted("none", 5),
        Wanted("sub", 1),
        Wanted(SHARDS[0]),
    ]
    assert [found.id for found in weights.conflicts(folder, wanted, ())] == ["weights.conflict"] * 2
    first, second = weights.conflicts(folder, wanted, ())
    assert "config.json was there before" in first.seen
    assert "2 bytes, not 3" in first.seen
    assert "it is a folder" in second.seen
    assert [found.seen for found in weights.conflicts(folder, wanted, ["config.json"])] == [second.seen]


def test_the_same_files_are_the_same_whatever_they_are_reached_by():
    given = {
        "repository": "a/b",
        "revision": COMMIT,
        "include": ["*"],
        "exclude": [],
        "endpoint": "x",
        "url": "u",
        "folder": "/f",
        "checksums": "abc\n",
    }
    hub = weights.identity({**given, "source": "huggingface"})
    assert hub == {"source": "huggingface", "repository": "a/b", "revision": COMMIT, "include": ["*"], "exclude": []}
    assert weights.identity({**given, "source": "folder"}) == {"source": "folder", "folder": "/f"}
    mirror = weights.identity({**given, "source": "url"})
    assert mirror == weights.identity({**given, "source": "url", "url": "of another mirror", "checksums": "abc"})
    assert mirror != weights.identity({**given, "source": "url", "checksums": "abd"})


# --- settings


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"source": "path"}, []),
        ({}, []),
        ({"source": "huggingface", "repository": "org/name", "revision": COMMIT}, []),
        ({"source": "huggingface", "repository": "org/name", "revision": "main"}, ["'main' is no commit hash"]),
        ({"source": "huggingface", "repository": "org/name", "revision": COMMIT[:-1]}, ["is no commit hash"]),
        ({"source": "huggingface", "repository": "org/name"}, ["model_weights_revision is not set"]),
        ({"source": "huggingface", "repository": "name", "revision": COMMIT}, ["'name', not organisation/name"]),
        ({"source": "huggingface", "repository": "https://x/a/b", "revision": COMMIT}, ["not organisation/name"]),
        ({"source": "url"}, ["model_weights_url is not set", "model_weights_checksums is not set"]),
        (
            {"source": "url", "url": "mirror.example/m", "checksums": "https://m.example/s"},
            ["model_weights_url is no plain address"],
        ),
        (
            {"source": "url", "url": "https://u:p@mirror.example", "checksums": "https://m.example/s"},
            ["no plain address"],
        ),
        (
            {"source": "url", "url": "https://mirror.example/m?x=1", "checksums": "https://m.example/s"},
            ["no plain address"],
        ),
        (
            {"source": "url", "url": "http://mirror.example", "checksums": "https://m.example/s", "token": "t"},
            ["would go in clear"],
        ),
        ({"source": "url", "url": "http://mirror.example", "checksums": "https://m.example/s"}, []),
        ({"source": "url", "url": "https://mirror.example", "checksums": "https://m.example/s", "token": "t"}, []),
        ({"source": "folder"}, ["model_weights_folder is not set"]),
        ({"source": "folder", "folder": "/srv/a/", "path": "/srv/a"}, ["there is nothing to copy"]),
        ({"source": "folder", "folder": "/mnt/a", "path": "/srv/a"}, []),
    ],
)
def test_settings(values, expected):
    found = weights.judge_settings({f"model_weights_{name}": value for name, value in values.items()})
    assert len(found) == len(expected)
    for finding, text in zip(found, expected, strict=True):
        assert text in finding.seen
        assert "u:p" not in str(finding)


def test_a_list_of_checksums_is_read_on_the_controller(tmp_path):
    (tmp_path / "sums").write_text(f"{'a' * 64}  ./config.json\n")
    (tmp_path / "bad").write_text("MD5 (a) = 1\n")

    def judged(listed: str, *folders: str | None) -> list[str]:
        values = {"source": "url", "url": "https://mirror.example", "checksums": listed}
        named = {f"model_weights_{name}": value for name, value in values.items()}
        return [finding.seen for finding in weights.judge_settings(named, folders)]

    assert judged("sums", None, str(tmp_path / "none"), str(tmp_path)) == []
    assert judged(str(tmp_path / "sums")) == []
    assert judged("https://mirror.example/sums", str(tmp_path)) == []
    (missing,) = judged("sum", str(tmp_path), "/nonexistent")
    assert f"there is no file {tmp_path}/sum or /nonexistent/sum" in missing
    (wrong,) = judged("bad", str(tmp_path))
    assert "line 1 of model_weights_checksums" in wrong
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (wrong,) = judged("binary", str(tmp_path))
    assert "cannot be read" in wrong


def test_the_seed_is_a_host_of_the_inventory():
    values = {"model_weights_source": "url", "model_weights_url": "https://m.example", "model_weights_seed": "gpu9"}
    values["model_weights_checksums"] = "https://m.example/sums"
    (found,) = weights.judge_settings(values, hosts=["gpu1", "gpu2"])
    assert "'gpu9', which is no host" in found.seen
    for seed in ("gpu1", ""):
        assert weights.judge_settings({**values, "model_weights_seed": seed}, hosts=["gpu1", "gpu2"]) == []


def test_what_is_missing_is_told_with_what_it_is():
    (found,) = weights.judge_settings({"model_weights_source": "huggingface", "model_weights_repository": "a/b"})
    assert "40 hex digits" in found.remedy
    assert "git ls-remote" in found.remedy


# --- config.json


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "is no JSON"),
        ("version https://git-lfs.github.com/spec/v1", "is no JSON"),
        ("[" * 200_000, "is no JSON"),
        ("[]", "is no JSON object"),
        ("{}", "names no architectures"),
        ('{"architectures": ["X"]}', "names no model_type"),
        ('{"text_config": [], "model_type": "x"}', "names no architectures"),
        ('{"architectures": ["X"], "auto_map": {"AutoConfig": "c.C"}}', ""),
        ('{"text_config": {"architectures": ["X"]}, "model_type": "x"}', ""),
    ],
)
def test_a_config_that_no_engine_reads(folder, content, why):
    (folder / "config.json").write_text(content)
    found = weights.judge(weights.take(folder))
    assert [finding.id for finding in found] == (["weights.config"] if why else [])
    assert not why or found[0].seen == f"{folder}/config.json {why}"
    (folder / "config.json").unlink()
    assert ids(folder) == []  # told by who looks for it


# --- what a role will fetch again


FETCHED_AS = {"source": "huggingface", "repository": "org/name", "revision": COMMIT, "include": ["*"], "exclude": []}


def judged(folder: Path, wanted=FETCHED_AS, size_gb: float = 0) -> list[tuple[str, str, str]]:
    there = weights.Fetched.from_dict(json.loads(json.dumps(asdict(weights.fetched(folder)))))
    found = weights.judge_fetched(there, weights.take(folder), wanted, size_gb)
    return [(finding.id, finding.severity, finding.seen) for finding in found]


def test_what_a_role_fetches_again_is_told_by_file(folder):
    whole(folder, FETCHED_AS)
    assert judged(folder) == []
    (folder / SHARDS[0]).write_bytes(shard()[:-1])
    (folder / SHARDS[1]).unlink()
    os.utime(folder / "tokenizer.json", ns=(1, 1))
    (folder / "config.json").write_text("{")
    ((fault, severity, seen),) = judged(folder)
    assert (fault, severity) == ("weights.again", "warning")
    assert seen.startswith(f"4 files in {folder} are not what was fetched: {SHARDS[1]} (removed), config.json (1 bytes")
    assert f"{SHARDS[0]} ({len(shard()) - 1} bytes, and {len(shard())} were fetched)" in seen
    assert "tokenizer.json (written again since it was fetched)" in seen


def test_what_a_role_does_not_mend_is_an_error(folder):
    """Files that lay there before are not replaced; nor is what has the recorded size and time."""
    whole(folder, FETCHED_AS)
    path = folder / weights.OWN / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"][SHARDS[0]]["ours"] = False
    path.write_text(json.dumps(manifest))
    (folder / SHARDS[0]).write_bytes(b"")
    assert [found[:2] for found in judged(folder)] == [("weights.conflict", "error")]
    (folder / SHARDS[0]).write_bytes(shard())
    times = (folder / "config.json").stat()
    (folder / "config.json").write_text("x" * times.st_size)
    os.utime(folder / "config.json", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert [found[:2] for found in judged(folder)] == [("weights.again", "warning"), ("weights.config", "error")]


def test_a_folder_of_another_model_is_refused_before_anything_is_changed(folder):
    whole(folder, FETCHED_AS)
    ((fault, severity, seen),) = judged(folder, {**FETCHED_AS, "revision": "f" * 40})
    assert (fault, severity) == ("weights.another", "error")
    assert f"revision {COMMIT}, wanted is {'f' * 40}" in seen
    assert judged(folder, {"source": "huggingface"}) == []


def test_a_folder_that_is_half_fetched_is_told_with_how_much_is_there(folder):
    (folder / weights.OWN).mkdir()
    (folder / SHARDS[1]).unlink()
    ledger = {"files": {SHARDS[0]: weights.record(folder / SHARDS[0], "0" * 64, True), "x": 1}}
    (folder / weights.OWN / weights.LEDGER).write_text(json.dumps(ledger))
    (folder / weights.OWN / "0.incomplete").write_bytes(bytes(1_000_000))
    ((_, severity, again), (fault, info, seen)) = judged(folder, size_gb=594)
    assert (severity, fault, info) == ("warning", "weights.begun", "info")
    assert "x (removed)" in again
    assert seen == f"1.0 MB of 594 GB lie in {folder}, in 5 whole files and parts of others"
    # Not the role's: it is in the way.
    (folder / SHARDS[2]).write_bytes(b"")
    assert ("weights.broken", "error") in [found[:2] for found in judged(folder)]


@pytest.mark.parametrize("content", ["[]", "{", '{"files": []}', '{"files": {"config.json": {}}}'])
def test_a_damaged_manifest_ends_in_a_finding(folder, content):
    (folder / weights.OWN).mkdir()
    (folder / weights.OWN / "manifest.json").write_text(content)
    assert {found[1] for found in judged(folder, {})} <= {"warning", "info"}


def test_settings_tell_what_is_to_be_fetched():
    values = {"model_weights_source": "folder", "model_weights_folder": "/mnt/m"}
    assert weights.wanted_by(values) == {"source": "folder", "folder": "/mnt/m"}
    assert weights.wanted_by({"model_weights_source": "path"}) == {}


def test_a_branch_is_refused_with_the_commit_to_write():
    told = weights.unpinned("main", COMMIT)
    assert told.remedy == f"Set model_weights_revision: {COMMIT}"
    assert "40 hex digits" in weights.unpinned("main", "").remedy


# --- how far it is


def test_progress_is_told_in_gigabytes_and_time():
    progress = Progress(300 * 10**9, 600 * 10**9, 31, 62, 100, begun=200 * 10**9)
    assert str(progress) == "31 of 62 files, 300.00 GB of 600.00 GB (50 %), 1.00 GB/s, 5 min 00 s left"
    assert str(Progress(0, 10**6, 0, 1, 60)) == "0 of 1 files, 0 kB of 1.0 MB (0 %), 0 kB/s, unknown left"
    assert Progress(5, 10, 0, 1, 0).left == float("inf")


def test_little_is_told_in_small_units_and_no_rate_of_the_first_seconds_is():
    """At 40 kB/s nobody sees gigabytes move, and what one second brought says nothing of hours."""
    assert str(Progress(720_000, 86 * 10**6, 0, 5, 18)) == (
        "0 of 5 files, 720 kB of 86.0 MB (0 %), 40 kB/s, 35 min 32 s left"
    )
    assert str(Progress(16_000, 594 * 10**9, 0, 5, 1)) == "0 of 5 files, 16 kB of 594.00 GB (0 %)"


@pytest.mark.parametrize(
    ("seconds", "text"), [(59.2, "59 s"), (61, "1 min 01 s"), (7384, "2 h 03 min"), (3599.6, "1 h 00 min")]
)
def test_durations(seconds, text):
    assert weights.duration(seconds) == text


def test_names_are_shortened():
    assert weights.brief(["a", "b"]) == "a, b"
    assert weights.brief(list("abcdefg")) == "a, b, c, d, e and 2 more"


def test_a_rule_stands_alone():
    """Each finds its own fault only."""
    stock = Stock(
        "/m",
        config="is no JSON",
        index="is damaged",
        indexed=True,
        named=("a",),
        shards=("b",),
        broken={"b": "is bad"},
        partial=("c.part",),
        indexes=("d",),
        tokenizer=False,
    )
    found = {rule.__name__: [finding.id for finding in rule(stock)] for rule in weights.RULES}
    assert found == {
        "config_readable": ["weights.config"],
        "index_readable": ["weights.index"],
        "some_weights": [],
        "shards_present": ["weights.missing"],
        "shards_whole": ["weights.broken"],
        "none_partial": ["weights.partial"],
        "none_foreign": ["weights.foreign"],
        "a_tokenizer": ["weights.tokenizer"],
    }


OWN_FILES = [f"weights.{fault}" for fault in ("index", "none", "missing", "broken", "partial", "foreign")]


@pytest.mark.parametrize(
    ("flags", "waived"),
    [
        ({}, []),
        ({"load-format": "dummy"}, OWN_FILES),
        ({"load-format": "sharded_state"}, OWN_FILES),
        ({"load-format": "fastsafetensors"}, []),
        ({"--load_format": "dummy", "tokenizer-path": "/srv/t"}, [*OWN_FILES, "weights.tokenizer"]),
        ({"load-format": "auto", "skip-tokenizer-init": True}, ["weights.tokenizer"]),
        ({"skip-tokenizer-init": False, "tokenizer-path": None}, []),
    ],
)
def test_flags_make_findings_about_files_void(flags: dict[str, object], waived: list[str]) -> None:
    assert weights.waived(flags) == waived
