"""Test that docs/viewer.md documents every page, parameter and key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tfdbg_arrow.query.sql_sandbox import Sandbox
from tfdbg_arrow.viewer import pages
from tfdbg_arrow.viewer.page import PageKind
from tfdbg_arrow.viewer.pages import PAGES
from tfdbg_arrow.viewer.pages.sql import SqlBox, sql_page
from tfdbg_arrow.viewer.saved_queries import SavedQueries

DOCS = Path(__file__).resolve().parents[2] / "docs"
SQL_BOX = SqlBox(sandbox=Sandbox("nowhere"), saved=SavedQueries(Path("nowhere")))
TEXT = (DOCS / "viewer.md").read_text(encoding="utf-8")
ASKED = re.compile(r'parameters\.(?:text|needed|integer|integers|choice|flag)\(\s*"(\w+)"')


@pytest.mark.parametrize("kind", [*PAGES, sql_page(SQL_BOX)], ids=lambda kind: kind.name)
def test_the_table_of_pages_has_keys_and_parameters(kind: PageKind) -> None:
    (row,) = re.findall(rf"^\| .*`/{kind.name}` \|.*$", TEXT, re.MULTILINE)
    assert kind.key is None or f"`g {kind.key}`" in row
    module = (Path(pages.__file__).parent / f"{kind.name}.py").read_text(encoding="utf-8")
    for name in set(ASKED.findall(module)) - {"run"}:
        assert f"`{name}`" in row


def test_the_table_of_keys_has_all_keys_of_the_help() -> None:
    page = (Path(pages.__file__).parent / "help.html").read_text(encoding="utf-8")
    for key in set(re.findall(r"<kbd>([^<{]+)</kbd>", page)) - {"o", "a", "t"}:
        assert re.search(rf"^\| .*`{re.escape(key)}`", TEXT, re.MULTILINE), key


def test_linked_files_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (DOCS / target).exists(), target
