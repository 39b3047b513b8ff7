"""Adds pages from outside docs/ to the documentation site, and adapts the links of all pages.

In the repository, a link is relative to its file. In the site, the content of docs/ is at the top, beside README.md,
spec/ and the other files of SITE_FILES.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# Paths in the repository, which are also the paths in the site: pages, and files that pages link to.
SITE_FILES = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "examples/demo.py",
    "spec/README.md",
    "spec/compatibility.md",
    "spec/schema.json",
    "spec/tables.md",
    "tests/parity/differences.py",
)
_LINK = re.compile(r'(?P<before>\]\(|\b(?:src|srcset)=")(?P<path>[^)"#:\s]+)')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds SITE_FILES to the files of the site."""
    for path in SITE_FILES:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Returns the text of a page with its relative links as they are in the site."""
    place = page.file.src_uri
    directory = posixpath.dirname(place if place in SITE_FILES else f"docs/{place}")

    def in_site(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(directory, link["path"])).removeprefix("docs/")
        return link["before"] + posixpath.relpath(target, posixpath.dirname(place) or ".")

    return _LINK.sub(in_site, markdown)
