# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files on their way: from a stand-in for a hub, a web server, a folder and another node, disturbed in every way."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import struct
import threading
import time
import urllib.request
from pathlib import Path

import hub as stand_in
import pytest
from ansible_collections.inference.sglang.plugins.module_utils import tiny_llama, transfers, weights, wheels
from ansible_collections.inference.sglang.plugins.module_utils.transfers import Folder, Server, Source, Transfer
from ansible_collections.inference.sglang.plugins.module_utils.weights import Wanted, WeightsError

WHAT = {"source": "url", "url": "here"}
WEIGHTS = "model.safetensors"


def large(size: int = 3 << 20) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + os.urandom(1 << 10) * (size >> 10)


FILES = {**tiny_llama.files(), "sub/empty.json": b"", WEIGHTS: large()}


@pytest.fixture
def hub():
    hub = stand_in.Hub(FILES)
    yield hub
    hub.close()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "model", WHAT)


def wanted(hub: stand_in.Hub, **changes: object) -> list[Wanted]:
    """The hub's files, as a listing gives them."""
    listing = [
        {
            "name": entry["path"],
            "size": entry["size"],
            "sha256": entry.get("lfs", {}).get("oid", ""),
            "blob": entry["oid"],
            "url": f"{hub.url}/{stand_in.REPOSITORY}/resolve/{stand_in.COMMIT}/{entry['path']}",
        }
        for entry in stand_in.tree(hub.files)
        if entry["type"] == "file"
    ]
    return weights.from_listing(listing, weights.INCLUDED, weights.EXCLUDED)


def transfer(folder: Folder, files: list[Wanted], token: str = "", **given: object) -> Transfer:
    folder.own.mkdir(parents=True, exist_ok=True)
    made = Transfer(folder, files, Source({"Authorization": f"Bearer {token}"} if token else {}), **given)
    made.wait = lambda _seconds: None
    return made


def faults(made: Transfer) -> list[str]:
    with pytest.raises(WeightsError) as error:
        made.run()
    return [finding.id for finding in error.value.findings]


def held(folder: Folder) -> dict[str, bytes]:
    return {
        path.relative_to(folder.path).as_posix(): path.read_bytes()
        for path in folder.path.rglob("*")
        if path.is_file() and folder.own not in path.parents
    }


def test_all_files_arrive_and_the_manifest_comes_last(hub, folder):
    seen = []
    transfer(folder, wanted(hub)).run(lambda progress: seen.append((progress, weights.complete(folder.path, WHAT))))
    assert held(folder) == FILES
    assert weights.complete(folder.path, WHAT)
    assert not any(complete for _progress, complete in seen)
    manifest = weights.manifest(folder.path)
    assert manifest["files"][WEIGHTS]["sha256"] == hashlib.sha256(FILES[WEIGHTS]).hexdigest()
    assert {path.name for path in folder.own.iterdir()} == {"manifest.json"}
    last = seen[-1][0]
    assert (last.done, last.files_done, last.begun) == (sum(map(len, FILES.values())), len(FILES), 0)
    assert {oct(path.stat().st_mode & 0o777) for path in folder.path.glob("*.*") if path.is_file()} == {"0o644"}


def test_config_json_comes_after_all_others(hub, folder):
    hub.files.pop(WEIGHTS)
    files = [Wanted(WEIGHTS, 5, "", "", f"{hub.url}/plain/{WEIGHTS}"), *wanted(hub)]
    assert faults(transfer(folder, files)) == ["weights.not_there"]
    assert not (folder.path / "config.json").exists()


def test_a_token_goes_to_the_hub_and_not_to_its_storage(hub, folder):
    hub.gated = True
    transfer(folder, wanted(hub), stand_in.TOKEN).run()
    assert ("GET", f"/storage/{WEIGHTS}") in hub.asked
    assert hub.leaked == []


@pytest.mark.parametrize("token", ["", "wrong"])
def test_without_the_right_token_nothing_arrives(hub, folder, token):
    hub.gated = True
    assert set(faults(transfer(folder, wanted(hub), token))) == {"weights.refused"}
    assert held(folder).keys() <= {"sub/empty.json"}  # for which nobody has to be asked


def test_an_interrupted_file_goes_on_at_its_byte(hub, folder):
    hub.cut[WEIGHTS] = 1 << 20
    transfer(folder, wanted(hub)).run()
    assert held(folder) == FILES
    assert hub.sent[WEIGHTS] == len(FILES[WEIGHTS])  # no byte twice


def test_what_an_ended_run_left_is_gone_on_with(hub, folder):
    hub.cut[WEIGHTS] = 1 << 20
    # One at a time, the weights after the others.
    files = sorted(wanted(hub), key=lambda file: file.name == WEIGHTS)
    first = transfer(folder, files, connections=1)
    original = first.source.open
    calls = []

    def dies_at_the_second(file, start):
        if file.name == WEIGHTS and start:
            calls.append(start)
            raise OSError("the line is dead")
        return original(file, start)

    first.source.open = dies_at_the_second
    assert faults(first) == ["weights.unreachable"]
    assert calls == [1 << 20] * transfers.TRIES
    assert weights.manifest(folder.path) is None
    (part,) = folder.own.glob("*.incomplete")
    assert part.stat().st_size == 1 << 20
    assert folder.missing(files) == len(FILES[WEIGHTS]) - (1 << 20) + len(FILES["config.json"])
    hub.cut.clear()
    before = hub.sent.copy()
    second = transfer(folder, files)
    second.run()
    assert held(folder) == FILES
    assert hub.sent[WEIGHTS] == len(FILES[WEIGHTS])
    assert hub.sent["tokenizer.json"] == before["tokenizer.json"]  # not again what was there
    assert second.progress().done == sum(map(len, FILES.values()))


def test_a_second_run_asks_for_nothing_and_hashes_nothing(hub, folder, monkeypatch):
    transfer(folder, wanted(hub)).run()
    hub.asked.clear()
    monkeypatch.setattr(Transfer, "_read", None)
    transfer(folder, wanted(hub)).run()
    assert hub.asked == []


def test_a_server_that_stumbles_is_asked_again(hub, folder):
    hub.broken["tokenizer.json"] = transfers.TRIES - 1
    transfer(folder, wanted(hub)).run()
    assert held(folder) == FILES


def test_a_server_that_stays_down_is_told(hub, folder):
    hub.broken["tokenizer.json"] = transfers.TRIES
    with pytest.raises(WeightsError) as error:
        transfer(folder, wanted(hub)).run()
    assert "answers 503" in error.value.findings[0].seen
    assert "Run this again" in error.value.findings[0].remedy


def test_a_server_without_ranges_begins_again(hub, folder):
    hub.ranges = False
    hub.cut[WEIGHTS] = 1 << 20
    made = transfer(folder, wanted(hub))
    waited = []

    def mend(seconds):
        waited.append(seconds)
        hub.cut.clear()

    original = made.source.open
    made.source.open = lambda file, start: (mend(0) if start else None, original(file, start))[1]
    made.run()
    assert held(folder) == FILES
    assert made.progress().done == made.progress().total


def test_another_content_than_announced_is_refused_and_not_kept(hub, folder):
    hub.fake[WEIGHTS] = FILES[WEIGHTS][:-1] + b"!"
    with pytest.raises(WeightsError) as error:
        transfer(folder, wanted(hub)).run()
    assert error.value.findings[0].id == "weights.hash"
    assert "SHA-256" in error.value.findings[0].seen
    assert "secret" not in str(error.value)
    assert WEIGHTS not in held(folder)
    assert list(folder.own.glob("*.incomplete")) == []
    assert hub.sent[WEIGHTS] == 2 * len(FILES[WEIGHTS])


def test_a_small_file_is_judged_by_gits_hash(hub, folder):
    hub.fake["tokenizer.json"] = FILES["tokenizer.json"][:-1] + b"!"
    with pytest.raises(WeightsError) as error:
        transfer(folder, wanted(hub)).run()
    assert "git's hash" in error.value.findings[0].seen


def test_a_file_of_another_length_is_refused(hub, folder):
    hub.fake[WEIGHTS] = FILES[WEIGHTS][:-1]
    assert faults(transfer(folder, wanted(hub))) == ["weights.size"]
    assert WEIGHTS not in held(folder)


def test_a_damaged_shard_without_a_hash_is_found_by_its_header(hub, folder):
    hub.files[WEIGHTS] = b"<html>please log in</html>"
    files = [Wanted(name, -1, "", "", f"{hub.url}/plain/{name}") for name in hub.files]
    assert faults(transfer(folder, files)) == ["weights.source"]
    assert WEIGHTS not in held(folder)


def test_a_part_that_was_damaged_on_disk_is_fetched_anew(hub, folder):
    files = wanted(hub)
    folder.own.mkdir(parents=True)
    (file,) = [file for file in files if file.name == WEIGHTS]
    folder.part(file).write_bytes(b"\0" * 1000)
    stranger = folder.own / "0123.incomplete"
    stranger.write_bytes(b"of another revision")
    made = transfer(folder, files)
    made.run()
    assert held(folder) == FILES
    assert not stranger.exists()
    assert made.progress().done == made.progress().total


def test_a_part_that_is_too_long_is_begun_again(hub, folder):
    files = wanted(hub)
    folder.own.mkdir(parents=True)
    (file,) = [file for file in files if file.name == "tokenizer.json"]
    folder.part(file).write_bytes(b"\0" * (file.size + 5))
    transfer(folder, files).run()
    assert held(folder) == FILES


def test_what_is_there_and_right_is_taken_over(hub, folder):
    folder.path.mkdir()
    (folder.path / WEIGHTS).write_bytes(FILES[WEIGHTS])
    made = transfer(folder, wanted(hub))
    made.run()
    assert hub.sent[WEIGHTS] == 0
    assert weights.manifest(folder.path)["files"][WEIGHTS]["ours"] is False
    assert made.progress().done == made.progress().total


def test_what_somebody_else_put_there_is_not_overwritten(hub, folder):
    folder.path.mkdir()
    theirs = b"x" * len(FILES[WEIGHTS])
    (folder.path / WEIGHTS).write_bytes(theirs)
    assert faults(transfer(folder, wanted(hub))) == ["weights.conflict"]
    assert (folder.path / WEIGHTS).read_bytes() == theirs
    assert not weights.complete(folder.path, WHAT)


@pytest.mark.parametrize("damaged", [b"", b"y" * len(FILES[WEIGHTS])])
def test_a_file_of_ours_that_was_damaged_is_put_right(hub, folder, damaged):
    transfer(folder, wanted(hub)).run()
    (folder.path / WEIGHTS).write_bytes(damaged)
    assert not weights.complete(folder.path, WHAT)
    made = transfer(folder, wanted(hub))
    made.run()
    assert held(folder) == FILES
    assert weights.complete(folder.path, WHAT)
    assert made.progress().done == made.progress().total


def test_while_a_folder_is_mended_it_has_no_manifest(hub, folder):
    transfer(folder, wanted(hub)).run()
    (folder.path / WEIGHTS).unlink()
    hub.files.pop(WEIGHTS)
    files = [Wanted(WEIGHTS, 5, "", "", f"{hub.url}/plain/{WEIGHTS}")]
    assert faults(transfer(folder, files)) == ["weights.not_there"]
    assert weights.manifest(folder.path) is None


def test_a_folder_with_a_stranger_in_it_is_declared_complete_only_if_its_own_files_are(hub, folder):
    """A second set of numbered shards, of which one is missing, does not belong to an index that is not there."""
    folder.path.mkdir()
    (folder.path / "model-00001-of-00002.safetensors").write_bytes(large(1 << 10))
    assert faults(transfer(folder, wanted(hub))) == ["weights.missing"]
    assert weights.manifest(folder.path) is None


def test_a_full_disk_ends_the_transfer_and_keeps_what_is_there(hub, folder, monkeypatch):
    written = []

    class Full:
        def __init__(self, stream):
            self.stream = stream

        def __enter__(self):
            return self

        def __exit__(self, *_arguments):
            self.stream.close()

        def write(self, chunk):
            written.append(len(chunk))
            raise OSError(errno.ENOSPC, "No space left on device")

        def __getattr__(self, name):
            return getattr(self.stream, name)

    def opened(*given):
        stream = open(*given)  # noqa: SIM115 # the caller closes it
        return Full(stream) if given[1] == "r+b" else stream

    monkeypatch.setattr(transfers, "open", opened, raising=False)
    with pytest.raises(WeightsError) as error:
        transfer(folder, wanted(hub)).run()
    assert {finding.id for finding in error.value.findings} == {"weights.disk"}
    assert "is full" in error.value.findings[0].seen
    assert written


def test_time_that_is_over_ends_the_transfer(hub, folder):
    hub.hold.set()
    threading.Timer(1.5, hub.hold.clear).start()
    made = transfer(folder, wanted(hub), limit=0.5)
    assert "weights.timeout" in faults(made)
    hub.hold.clear()
    transfer(folder, wanted(hub)).run()
    assert held(folder) == FILES


def test_one_process_at_a_time(folder):
    assert not folder.busy()
    lock = folder.claim()
    assert folder.busy()
    assert folder.claim() is None
    os.close(lock)
    assert not folder.busy()


def test_sizes_are_asked_for(hub):
    files = [Wanted(name, -1, "", "", f"{hub.url}/plain/{name}") for name in ("config.json", WEIGHTS)]
    source = Source()
    assert [file.size for file in transfers.sizes(files, source, 2)] == [len(FILES[file.name]) for file in files]
    hub.ranges = False
    assert transfers.sizes([Wanted("x", 7), *files], source, 2)[1].size == len(FILES["config.json"])
    with pytest.raises(WeightsError):
        transfers.sizes([Wanted("x", -1, "", "", f"{hub.url}/plain/none")], source, 2)
    hub.ranges = True
    assert source.size(Wanted("sub/empty.json", -1, "", "", f"{hub.url}/plain/sub/empty.json")) == 0
    with pytest.raises(WeightsError, match="cannot be reached"):
        source.size(Wanted("x", -1, "", "", "http://127.0.0.1:1/x"))


def test_a_small_file_is_read_as_text(hub):
    assert Source().text(f"{hub.url}/plain/config.json") == FILES["config.json"].decode()
    with pytest.raises(WeightsError, match="cannot be read"):
        Source().text(f"{hub.url}/plain/{WEIGHTS}")
    with pytest.raises(WeightsError, match=r"weights\.unreachable"):
        Source().text("http://127.0.0.1:1/x")


def test_a_proxy_of_the_environment_is_used_but_not_between_nodes(hub, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert Source(direct=True).text(f"{hub.url}/plain/config.json")
    with pytest.raises(WeightsError):
        Source().text(f"{hub.url}/plain/config.json")


@pytest.mark.parametrize(
    ("status", "finding"),
    [(400, "weights.refused"), (401, "weights.refused"), (403, "weights.refused"), (404, "weights.not_there")],
)
def test_what_answers_mean(status, finding):
    error = urllib.request.HTTPError("http://x", status, "No", {}, None)
    told = transfers._refused(Wanted("a", origin="http://user:secret@x/a?b=secret"), error)
    assert told.findings[0].id == finding
    assert "secret" not in str(told)
    assert f"http://x/a answers {status}" in str(told)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_what_is_asked_again(status):
    error = urllib.request.HTTPError("http://x", status, "No", {}, None)
    assert isinstance(transfers._refused(Wanted("a", origin="http://x/a"), error), transfers.BrokenError)


def test_an_answer_with_another_part_is_not_written(hub, folder, monkeypatch):
    (file,) = [file for file in wanted(hub) if file.name == "config.json"]

    class Wrong(stand_in._Handler):
        def send_header(self, keyword, value):
            super().send_header(keyword, value.replace("bytes 0-", "bytes 1-") if keyword == "Content-Range" else value)

    hub.RequestHandlerClass = Wrong
    with pytest.raises(transfers.BrokenError, match="another part"), Source().open(file, 0):
        pass


def test_a_server_that_does_not_tell_the_size(hub):
    class Silent(stand_in._Handler):
        def send_header(self, keyword, value):
            super().send_header(keyword, re.sub(r"/\d+$", "/*", value) if keyword == "Content-Range" else value)

    hub.RequestHandlerClass = Silent
    with pytest.raises(WeightsError, match="does not tell its size"):
        Source().size(Wanted("config.json", -1, "", "", f"{hub.url}/plain/config.json"))


def test_a_folder_is_copied_and_gone_on_with(tmp_path, folder):
    here = tmp_path / "source"
    tiny_llama.write(here)
    files = weights.from_folder(here)
    folder.own.mkdir(parents=True)
    (big,) = [file for file in files if file.name == WEIGHTS]
    folder.part(big).write_bytes((here / WEIGHTS).read_bytes()[:1000])
    transfer(folder, files).run()
    assert held(folder) == tiny_llama.files()


# in a process of its own


def test_a_detached_process_fetches_and_the_lock_goes_with_it(hub, folder):
    hub.hold.set()
    lock = folder.claim()
    made = Transfer(folder, wanted(hub), Source())
    transfers.detach(lambda: transfers.fetch(made), "model_weights")
    os.close(lock)
    until(lambda: folder.told().get("running"))
    assert folder.busy()
    assert "of" in folder.told()["text"]
    pid = folder.told()["pid"]
    assert pid != os.getpid()
    assert Path(f"/proc/{pid}/comm").read_text() == "model_weights\n"
    hub.hold.clear()
    until(lambda: not folder.busy())
    assert weights.complete(folder.path, WHAT)
    assert held(folder) == FILES
    assert folder.told() == {}


def test_of_a_slow_line_little_is_lost_when_the_process_is_killed(hub, folder, monkeypatch):
    """At 40 kB/s all that has come is on the disk before the next read, and a read takes less than a second."""
    made = transfer(folder, wanted(hub))
    content = os.urandom(400_000)
    file = Wanted("slow.bin", len(content), hashlib.sha256(content).hexdigest(), "", "http://slow")
    now, done, asked = [0.0], [0], []

    class Slow(io.BytesIO):
        def read(self, count: int | None = -1) -> bytes:
            assert folder.part(file).stat().st_size == done[0]
            chunk = super().read(count)
            now[0] += len(chunk) / 40_000
            done[0] += len(chunk)
            asked.append(count)
            return chunk

    @contextlib.contextmanager
    def opened(_file, start):
        yield Slow(content[start:]), start, len(content)

    made.source.open = opened
    folder.own.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(transfers.time, "monotonic", lambda: now[0])
    assert made._fill(file, folder.part(file)) == file.sha256
    assert max(asked) < 40_000


def test_what_a_detached_process_failed_at_is_told(hub, folder):
    hub.gated = True
    transfers.fetch(transfer(folder, wanted(hub)))
    told = folder.told()
    assert told["running"] is False
    assert {finding["id"] for finding in told["findings"]} == {"weights.refused"}
    (folder.own / "state.json").write_text("[]")
    assert folder.told() == {}


def test_a_folder_that_cannot_be_written_is_told(hub, folder, monkeypatch):
    made = transfer(folder, wanted(hub))

    def broken(_tell):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(made, "run", broken)
    transfers.fetch(made)
    (finding,) = folder.told()["findings"]
    assert "Read-only file system" in finding["seen"]


def test_a_disk_that_is_full_to_the_last_byte_is_told_all_the_same(hub, folder, monkeypatch):
    """What was told before says that it runs: without another word, its end is taken for a crash."""
    part = folder.own / "0123456789abcdef.incomplete"
    full = 2 << 20
    write = wheels.write_atomically

    def written(path, content):
        if path.parent == folder.own and part.exists() and part.stat().st_size >= full:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    made = transfer(folder, wanted(hub))
    folder.tell({"running": True, "text": "begins", "findings": []})
    monkeypatch.setattr(made, "_forget_others", lambda: part.write_bytes(bytes(full)))
    monkeypatch.setattr(wheels, "write_atomically", written)
    transfers.fetch(made)
    told = folder.told()
    assert told["running"] is False
    assert [finding["id"] for finding in told["findings"]] == ["weights.disk"]


def test_an_error_of_the_disk_in_a_thread_is_not_lost(hub, folder):
    files = wanted(hub)
    made = transfer(folder, files)
    for file in files:
        folder.part(file).mkdir()
    with pytest.raises(OSError, match="directory"):
        made.run()


def until(condition, seconds=10):
    over = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < over, "nothing came of it"
        time.sleep(0.02)


# from node to node


@pytest.fixture
def served(tmp_path):
    """A complete model and a server of it, with what a receiver is told."""
    seed = Folder(tmp_path / "seed", WHAT)
    tiny_llama.write(seed.path)
    seed.own.mkdir()
    names = sorted(tiny_llama.files())
    entries = {
        name: weights.record(seed.path / name, hashlib.sha256((seed.path / name).read_bytes()).hexdigest(), True)
        for name in names
    }
    seed.finish(entries)
    server = Server(("127.0.0.1", 0), [seed.path / name for name in names], "token")
    thread = threading.Thread(target=server.live, args=(20, 10), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.port}"
    yield seed, url, thread
    transfers.end_server(url, "token")
    thread.join(5)


def test_a_node_copies_from_another(served, folder):
    seed, url, thread = served
    transfer(folder, weights.from_manifest(weights.manifest(seed.path), url), "token").run()
    assert held(folder) == held(seed)
    assert not transfers.end_server(url, "wrong")
    assert thread.is_alive()
    assert transfers.end_server(url, "token")
    thread.join(5)
    assert not thread.is_alive()
    assert not transfers.end_server(url, "token")


def test_without_the_token_a_node_gives_nothing(served, folder):
    seed, url, _thread = served
    files = weights.from_manifest(weights.manifest(seed.path), url)
    assert set(faults(transfer(folder, files, "tokem"))) == {"weights.refused"}


@pytest.mark.parametrize("path", ["/", "/../config.json", "/config.json", "/99", "/etc/passwd"])
def test_a_node_gives_nothing_but_numbered_files(served, path):
    _seed, url, _thread = served
    with pytest.raises(WeightsError, match="answers 404"):
        Source({"Authorization": "Bearer token"}).text(url + path)


def test_a_file_that_changed_on_the_other_node_is_not_taken(served, folder):
    seed, url, _thread = served
    files = weights.from_manifest(weights.manifest(seed.path), url)
    content = (seed.path / WEIGHTS).read_bytes()
    (seed.path / WEIGHTS).write_bytes(content[:-1] + b"!")
    assert faults(transfer(folder, files, "token")) == ["weights.hash"]


def test_a_range_beyond_the_end(served):
    seed, url, _thread = served
    file = weights.from_manifest(weights.manifest(seed.path), url)[0]
    with Source({"Authorization": "Bearer token"}).open(file, file.size) as (stream, start, total):
        assert (stream.read(), start, total) == (b"", file.size, -1)


@pytest.mark.parametrize(("limit", "idle"), [(0.3, 9), (9, 0.3)])
def test_a_server_ends_by_itself(tmp_path, limit, idle):
    server = Server(("127.0.0.1", 0), [], "token")
    began = time.monotonic()
    server.live(limit, idle)
    assert time.monotonic() - began < 5


def test_the_address_of_a_node_is_not_its_loopback():
    assert transfers.listening_address("127.0.0.1") == "127.0.0.1"  # asked for by itself
    with pytest.raises(WeightsError, match=r"stands for 127.* no other node reaches"):
        transfers.listening_address("localhost")
    with pytest.raises(WeightsError, match="has no address here"):
        transfers.listening_address("no-such-host.invalid")
