# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What most modules say of check mode, diff mode and running twice; a module overrides what differs."""

from __future__ import annotations


class ModuleDocFragment:
    """Found by Ansible as inference.sglang.attributes."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in check_mode and return changed status prediction without modifying the target.
    support: full
  diff_mode:
    description: Returns details on what has changed.
    support: none
  idempotent:
    description: When run twice in a row outside check mode, with the same arguments, the second run changes nothing.
    support: full
"""

    # For modules that only read.
    INFO = r"""
options: {}
attributes:
  check_mode:
    description: Changes nothing, in check mode or without.
    support: full
  diff_mode:
    description: Has nothing to show.
    support: none
  idempotent:
    description: Changes nothing.
    support: full
"""
