"""Makes the package description for a package index from the README, without the relative links of the README.

scikit-build-core calls `dynamic_metadata` when it builds the package. A build on GitHub knows the address of the
repository, and makes the links absolute. Other builds do not know the address. They make plain text of links, and leave
out pictures.
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


def dynamic_metadata(field: str, settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, str]:
    """Returns the content of the field `readme`."""
    server, repository = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
    address = f"{server}/{repository}" if server and repository else None
    return {"content-type": "text/markdown", "text": index_page(_README.read_text(encoding="utf-8"), address)}


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
