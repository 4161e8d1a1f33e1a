# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Fat binaries made here, with what nvcc leaves around the machine code."""

from __future__ import annotations

import itertools
import random
import struct

import pytest
from ansible_collections.inference.sglang.plugins.module_utils.cubins import architectures

PTX, ELF = 1, 2
MAGIC = struct.pack("<I", 0xBA55ED50)


def entry(kind: int, architecture: int, code: bytes = b"\x7fELF machine code", header: int = 64) -> bytes:
    """One entry: its header, of which the reader knows the first fields, and its code."""
    known = struct.pack("<HHIQIIHHI", kind, 0x101, header, len(code), 0, 0, 8, 2, architecture)
    return known.ljust(header, b"\0") + code


def fat_binary(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return MAGIC + struct.pack("<HHQ", 1, 16, len(body)) + body


def test_every_entry_of_every_fat_binary_is_read():
    both = fat_binary(entry(PTX, 75), entry(ELF, 120, header=80), entry(ELF, 90))
    binary = b"\x7fELF" + bytes(37) + both + b"text" * 9 + fat_binary(entry(ELF, 100)) + b"end"
    assert architectures(binary) == {90, 100, 120}


def test_ptx_is_no_machine_code():
    assert architectures(fat_binary(entry(PTX, 120))) == set()


@pytest.mark.parametrize("binary", [b"", b"no fat binary at all", MAGIC, fat_binary(), MAGIC[:3]])
def test_a_binary_without_machine_code(binary):
    assert architectures(binary) == set()


def test_every_truncation_is_survived():
    binary = fat_binary(entry(ELF, 120), entry(ELF, 90))
    read = [architectures(binary[:length]) for length in range(len(binary) + 1)]
    assert all(earlier <= later for earlier, later in itertools.pairwise(read))
    assert read[-1] == {90, 120}


def test_the_magic_number_inside_of_code_hides_nothing():
    assert architectures(fat_binary(entry(ELF, 120, code=b"\1" + MAGIC + b"\0" * 40), entry(ELF, 90))) == {90, 120}


def test_sizes_that_lie_end_nowhere():
    endless = MAGIC + struct.pack("<HHQ", 1, 16, 2**64 - 1)
    assert architectures(endless + struct.pack("<HHIQIIHHI", ELF, 0, 0, 0, 0, 0, 0, 0, 120)) == set()
    assert architectures(endless + entry(ELF, 120) + struct.pack("<HHIQ", ELF, 0, 64, 2**64 - 1) * 9) >= {120}


@pytest.mark.parametrize("seed", range(3))
def test_noise_full_of_magic_numbers_does_not_crash(seed):
    noise = random.Random(seed)  # noqa: S311
    architectures(b"".join(noise.choice((MAGIC, noise.randbytes(noise.randrange(60)))) for _piece in range(2000)))
