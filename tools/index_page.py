"""Makes the parts of the package's metadata that need the address of the repository.

These parts are the links of the project, and the description, which is the README without its relative links.
scikit-build-core calls `dynamic_metadata` when it builds the package. A build on GitHub knows the address, and makes
the links absolute. Other builds do not know the address. They make plain text of links, leave out pictures, and write
no links of the project.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_README = Path(__file__).resolve().parents[1] / "README.md"
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<path>(?!https?:|#)[^)\s]+)\)")
_PICTURE = re.compile(r"<picture>.*?</picture>\n*", re.DOTALL)
_IMAGE = re.compile(r'(?P<name>src|srcset)="(?P<path>(?!https?:)[^"]+)"')


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields `readme` and `urls`."""
    server, repository = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
    address = f"{server}/{repository}" if server and repository else None
    readme = {"content-type": "text/markdown", "text": index_page(_README.read_text(encoding="utf-8"), address)}
    return {"readme": readme, "urls": project_urls(address)}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    """Says that these fields of a wheel can differ from those of the sdist, because two machines can build them."""
    return {"readme": True, "urls": True}


def project_urls(address: str | None) -> dict[str, str]:
    """Returns the links of the project, by their labels.

    Args:
        address: The address of the repository, or None if it is not known.
    """
    if address is None:
        return {}
    return {
        "Documentation": f"{address}/blob/HEAD/docs/guide.md",
        "Source": address,
        "Issues": f"{address}/issues",
        "Changelog": f"{address}/blob/HEAD/CHANGELOG.md",
    }


def index_page(readme: str, address: str | None) -> str:
    """Returns the README with links that work on any page.

    Args:
        readme: The README.
        address: The address of the repository, or None if it is not known.
    """
    if address is None:
        return _LINK.sub(r"\g<text>", _PICTURE.sub("", readme))
    with_images = _IMAGE.sub(rf'\g<name>="{address}/raw/HEAD/\g<path>"', readme)
    return _LINK.sub(rf"[\g<text>]({address}/blob/HEAD/\g<path>)", with_images)
