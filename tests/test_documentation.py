"""Test the README and the links of all documentation pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tfdbg_arrow
from tfdbg_arrow import query
from tfdbg_arrow.schema import FORMAT_VERSION

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "spec/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
)
LINK = re.compile(r"\]\(([^)\s]+)\)|\b(?:src|srcset)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6} (.*)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def text(page: str) -> str:
    """Returns a page without its code blocks."""
    return CODE.sub("", (ROOT / page).read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Returns the anchors of the headings of a page, as GitHub and the documentation site make them."""
    headings = HEADING.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_existing_files_and_headings(page: str) -> None:
    broken = []
    for link in ("".join(found) for found in LINK.findall(text(page))):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1_000


def test_the_api_reference_has_every_public_name() -> None:
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md")]
    documented = [name for page in pages for name in re.findall(r"^::: tfdbg_arrow\.([\w.]+)$", page, re.MULTILINE)]
    expected = {f"query.{name}" for name in query.__all__} | set(tfdbg_arrow.__all__) - set(query.__all__)
    assert expected - set(documented) == {"__version__"}
    assert len(documented) == len(set(documented))


def test_the_specification_names_the_format_version() -> None:
    assert f"Format version {FORMAT_VERSION}." in (ROOT / "spec" / "README.md").read_text("utf-8")
