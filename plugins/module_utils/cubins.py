# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which GPU architectures a binary holds machine code for, read from its fat binaries without any CUDA tool.

The format is not documented by NVIDIA; the fields used here agree with what ``cuobjdump --list-elf`` prints
(the verify step of the ``flashinfer`` role compares the two).
"""

from __future__ import annotations

import struct

_FATBIN = struct.Struct("<IHHQ")  # magic, version, header size, size of the entries behind the header
_ENTRY = struct.Struct("<HHIQIIHHI")  # kind, flags, header size, size of the code, …, architecture
_MAGIC = struct.pack("<I", 0xBA55ED50)
_ELF = 2  # kind 1 is PTX, which a driver would have to compile


def architectures(binary: bytes) -> set[int]:
    """Compute capabilities, as CUDA numbers them (120 for sm_120), of the cubins in ``binary``; may be empty."""
    found: set[int] = set()
    start = binary.find(_MAGIC)
    while start != -1:
        if start + _FATBIN.size <= len(binary):
            _magic, _version, header, size = _FATBIN.unpack_from(binary, start)
            position, end = start + header, start + header + size
            while position + _ENTRY.size <= min(end, len(binary)):
                kind, _flags, entry_header, code, *_unused, architecture = _ENTRY.unpack_from(binary, position)
                if entry_header == 0:
                    break
                if kind == _ELF:
                    found.add(architecture)
                position += entry_header + code
        start = binary.find(_MAGIC, start + 1)
    return found
