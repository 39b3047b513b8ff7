"""Prints sentences of the repository's prose, drawn at random: docstrings, comments and Markdown.

`python tools/sample_sentences.py --seed 1 --count 100` draws the same sentences each time if no file has changed.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
_MIN_WORDS = 5
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")
_NO_PROSE = re.compile(r"^\s*(\||```|#|>>>|- \[|!\[|<)")


def main() -> None:
    """Prints the sentences that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    options = parser.parse_args()
    found = sorted(set(sentences()))
    for path, sentence in random.Random(options.seed).sample(found, options.count):
        sys.stdout.write(f"{path}: {sentence}\n")


def sentences() -> Iterator[tuple[str, str]]:
    """Yields the path and the text of each sentence of at least five words."""
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        path = REPOSITORY / name
        if path.suffix == ".py" and "_pb2" not in name:
            paragraphs = python_paragraphs(path.read_text("utf-8"))
        elif path.suffix == ".md":
            paragraphs = markdown_paragraphs(path.read_text("utf-8"))
        else:
            continue
        for paragraph in paragraphs:
            for sentence in _SENTENCE_END.split(" ".join(paragraph.split())):
                if len(sentence.split()) >= _MIN_WORDS:
                    yield name, sentence


def python_paragraphs(text: str) -> Iterator[str]:
    """Yields the paragraphs of a module's docstrings, and its comments."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from re.split(r"\n\s*\n|\n\s+(?=\w+: )", node.value.value)
    comment: list[str] = []
    last_line = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last_line + 1 and comment:
                yield " ".join(comment)
                comment = []
            comment.append(token.string.lstrip("# "))
            last_line = token.start[0]
    yield " ".join(comment)


def markdown_paragraphs(text: str) -> Iterator[str]:
    """Yields the paragraphs of a Markdown page, without code, tables, headings and pictures."""
    for paragraph in re.split(r"\n\s*\n|\n(?=- |\d+\. )", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if not _NO_PROSE.match(paragraph):
            yield paragraph


if __name__ == "__main__":
    main()
