# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Stands in for the get-pip.py that ansible-test would download from a site of its own.

script/test puts it where ansible-test keeps the downloaded one. ansible-test runs it in a fresh virtual environment,
with the packages that pip shall install as arguments; the first pip comes from Python itself.
"""

from __future__ import annotations

import subprocess
import sys

# Options of get-pip.py that pip does not know.
FOREIGN = ("--no-setuptools", "--no-wheel")


def main() -> None:
    """Install the requested version of pip."""
    arguments = [argument for argument in sys.argv[1:] if argument not in FOREIGN]
    subprocess.run([sys.executable, "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "install", *arguments], check=True)


if __name__ == "__main__":
    main()
