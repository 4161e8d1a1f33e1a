# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ask a model hub what a repository holds, with the ``huggingface_hub`` of the release that this runs by.

usage: python - ORGANISATION/NAME REVISION   (address and token in HF_ENDPOINT and HF_TOKEN)

Prints one JSON object: the ``commit`` of the revision, and its ``files`` where the revision is that commit; or an
``error``.
"""

import json
import re
import sys

import httpx
from huggingface_hub import HfApi, errors, hf_hub_url
from huggingface_hub.hf_api import RepoFile

# The most special first: each of these is one of those after it.
KINDS = (
    (errors.GatedRepoError, "gated"),
    (errors.RevisionNotFoundError, "revision"),
    (errors.RepositoryNotFoundError, "repository"),
    (errors.HFValidationError, "repository"),
    (errors.OfflineModeIsEnabled, "unreachable"),
    (errors.HfHubHTTPError, "refused"),
    (httpx.HTTPError, "unreachable"),
    (OSError, "unreachable"),
)


def listing(repository, revision):
    """Commit and files of a repository; no files where the revision is not a commit."""
    api = HfApi()
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        return {"commit": api.model_info(repository, revision=revision).sha}
    files = [
        {
            "name": entry.path,
            "size": entry.lfs.size if entry.lfs else entry.size,
            "sha256": entry.lfs.sha256 if entry.lfs else "",
            "blob": entry.blob_id,
            "url": hf_hub_url(repository, entry.path, revision=revision),
        }
        for entry in api.list_repo_tree(repository, recursive=True, revision=revision)
        if isinstance(entry, RepoFile)
    ]
    return {"commit": revision, "files": files}


def main():
    try:
        found = listing(*sys.argv[1:])
    except (errors.HfHubHTTPError, errors.HFValidationError, httpx.HTTPError, OSError) as error:
        name = next(name for kind, name in KINDS if isinstance(error, kind))
        found = {"error": name, "text": " ".join(str(error).split())[:600]}
    print(json.dumps(found))


main()
