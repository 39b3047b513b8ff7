"""Counts the modules of the product, and the files that its three main code paths (walks) use.

Usage: `python tools/walks.py` prints the counts. `--files` lists the files of each walk. `--small` lists the modules
that have fewer than 100 lines and that only one other module imports.

The walks are measured, not declared. `tensor to row` has the files that run from the second call of a recorded function
until the rows of the call are in a sealed part. `question to answer` has the files that `first_nonfinite` imports in a
new process. `page to HTML` has the files, without the query layer, that run while a server answers its second request
for the overview.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PRODUCT = Path(__file__).resolve().parents[1] / "tfdbg_arrow"

_FILES_THAT_RUN = """
import sys, threading
files, is_counting = set(), False
def note(frame, event, _):
    if is_counting and event == "call":
        files.add(frame.f_code.co_filename)
def product_files():
    return sorted(name for name in files if "/tfdbg_arrow/" in name)
"""

_TENSOR_TO_ROW = (
    _FILES_THAT_RUN
    + """
threading.setprofile(note); sys.setprofile(note)
import json, time, tensorflow as tf, tfdbg_arrow
tfdbg_arrow.enable(sys.argv[1])
step = tf.function(lambda x: tf.math.log(x * 2) + tf.reduce_sum(x))
x = tf.constant([1.0, 0.0])
step(x)
time.sleep(3)
is_counting = True
step(x)
time.sleep(3)
is_counting = False
tfdbg_arrow.disable()
sys.setprofile(None); threading.setprofile(None)
print(json.dumps(product_files()))
"""
)

_QUESTION_TO_ANSWER = """
import json, sys
from tfdbg_arrow import first_nonfinite
assert first_nonfinite(sys.argv[1]) is not None
modules = {name: module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "tfdbg_arrow"}
print(json.dumps(sorted(modules.values())))
"""

_PAGE_TO_HTML = (
    _FILES_THAT_RUN
    + """
import json
from http.cookiejar import CookieJar
from urllib.request import HTTPCookieProcessor, build_opener
from tfdbg_arrow.viewer.reading import Reader
from tfdbg_arrow.viewer.server import listen
threading.setprofile(note); sys.setprofile(note)
reader = Reader(sys.argv[1])
run_id = reader.read("runs", lambda logdir: logdir.runs())[0].run_id
server = listen(reader, token="token")
threading.Thread(target=server.run, daemon=True).start()
browser = build_opener(HTTPCookieProcessor(CookieJar()))
browser.open(server.url)
is_counting = True
# Not the same address again: the reader keeps its answer.
assert browser.open(f"{server.url.partition('?')[0]}?run={run_id}").status == 200
sys.setprofile(None); threading.setprofile(None)
server.stop()
print(json.dumps([name for name in product_files() if "/query/" not in name]))
"""
)


def main() -> None:
    """Prints the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", action="store_true", help="list the files of each walk")
    parser.add_argument("--small", action="store_true", help="list small modules with one importer, and stop")
    arguments = parser.parse_args()
    modules = sorted(PRODUCT.rglob("*.py"))
    if arguments.small:
        for module, lines, importer in small_modules(modules):
            print(f"{lines:4} {module.relative_to(PRODUCT)}  <- {importer}")
        return
    num_lines = sum(_num_lines(module) for module in modules)
    names = collections.Counter(module.name for module in modules if not module.name.startswith("__"))
    num_repeated = sum(1 for count in names.values() if count > 1)
    print(f"{len(modules)} modules, {num_lines} lines of Python, {num_repeated} repeated names")
    with tempfile.TemporaryDirectory() as logdir:
        for name, script in (
            ("tensor to row", _TENSOR_TO_ROW),
            ("question to answer", _QUESTION_TO_ANSWER),
            ("page to HTML", _PAGE_TO_HTML),
        ):
            files = [os.path.relpath(file, PRODUCT) for file in _run(script, logdir)]
            print(f"{name}: {len(files)} files in {len({os.path.dirname(file) for file in files})} folders")
            if arguments.files:
                print("".join(f"  {file}\n" for file in files), end="")


def small_modules(modules: list[Path]) -> list[tuple[Path, int, str]]:
    """Returns modules of fewer than 100 lines with only one importer, as (path, number of lines, importer)."""
    names = {_module_name(path): path for path in modules}
    importers: dict[str, set[str]] = collections.defaultdict(set)
    for importer, path in names.items():
        for imported in _imports(path, set(names)):
            importers[imported].add(importer)
    return [
        (path, _num_lines(path), next(iter(importers[name])))
        for name, path in names.items()
        if path.name != "__init__.py" and _num_lines(path) < 100 and len(importers[name]) == 1
    ]


def _imports(path: Path, known: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found & known


def _module_name(path: Path) -> str:
    return ".".join(path.relative_to(PRODUCT.parent).with_suffix("").parts).removesuffix(".__init__")


def _num_lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def _run(script: str, logdir: str) -> list[str]:
    result = subprocess.run([sys.executable, "-c", script, logdir], capture_output=True, text=True)
    if result.returncode:
        sys.exit(result.stderr)
    return list(json.loads(result.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
