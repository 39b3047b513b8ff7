"""Test `tfdbg-arrow view` and `tfdbg-arrow report`: what they print, serve and write."""

from __future__ import annotations

import html
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfdbg_arrow.errors import install_command

from ..query.builder import NAN, RunBuilder
from .commands import run_cli
from .running import client, viewing

COMMAND = [sys.executable, "-m", "tfdbg_arrow"]


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    run = RunBuilder("run-a")
    run.tensor(run.graph("f").op("x", "Log"), "x", NAN)
    return run.write(tmp_path / "logdir")


@pytest.mark.slow
def test_view_prints_the_address_of_the_page_and_ends_on_ctrl_c(logdir: Path) -> None:
    with viewing(str(logdir), "--run", "run-a") as (printed, opener):
        assert printed["url"].startswith(f"http://127.0.0.1:{printed['port']}/?token=")
        assert (printed["logdir"], printed["host"]) == (str(logdir), "127.0.0.1")
        with opener.open(printed["url"], timeout=60) as answer:
            assert answer.url == f"http://127.0.0.1:{printed['port']}/?run=run-a"
            assert "NaN came up in x:0, in the function f." in answer.read().decode()


@pytest.mark.slow
def test_no_command_line_contains_the_token(logdir: Path, tmp_path: Path) -> None:
    browser = tmp_path / "browser.py"
    seen = tmp_path / "seen.json"
    browser.write_text(
        f"#!{sys.executable}\nimport json, os, pathlib, sys, urllib.parse\n"
        "path = pathlib.Path(urllib.parse.urlsplit(sys.argv[1]).path)\n"
        "modes = [oct(os.stat(each).st_mode & 0o777) for each in (path.parent, path)]\n"
        "seen = {'argv': sys.argv, 'path': str(path), 'modes': modes, 'html': path.read_text()}\n"
        f"pathlib.Path({str(seen)!r}).with_suffix('.part').write_text(json.dumps(seen))\n"
        f"pathlib.Path({str(seen)!r}).with_suffix('.part').rename({str(seen)!r})\n"
    )
    browser.chmod(0o700)
    command = [*COMMAND, "view", str(logdir), "--run", "run-a"]
    environment = {**os.environ, "BROWSER": f"{browser} %s"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            url = next(line.strip() for line in process.stdout if "token=" in line)
            while not seen.exists():
                assert process.poll() is None
                time.sleep(0.05)
            opened = json.loads(seen.read_text())
            token = url.partition("token=")[2].partition("&")[0]
            assert token not in " ".join(opened["argv"])
            assert opened["modes"] == ["0o700", "0o600"]
            assert html.escape(url) in opened["html"]
            assert client().open(url, timeout=60).status == 200
            assert not Path(opened["path"]).parent.exists()
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
    assert process.returncode == 0


def test_view_reports_a_missing_logdir_or_run_immediately(logdir: Path, tmp_path: Path) -> None:
    missing = run_cli("view", tmp_path / "nothing", "--no-open")
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert "nothing" in missing.stderr
    unknown = run_cli("view", logdir, "--no-open", "--run", "evil")
    assert unknown.exit_code == 2
    assert unknown.stderr == f"tfdbg-arrow: run 'evil' is not in {logdir}; it holds run-a.\n"


@pytest.mark.slow
def test_report_writes_one_file_and_lists_what_it_left_out(logdir: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.html"
    result = run_cli("report", logdir, "-o", file)
    assert (result.exit_code, result.stdout) == (0, f"{file}: {file.stat().st_size:,} bytes\n")
    printed = json.loads(run_cli("report", logdir, "-o", file, "--json").stdout)
    assert printed.pop("about")["run_ids"] == ["run-a"]
    assert printed == {"logdir": str(logdir), "report": str(file), "bytes": file.stat().st_size, "left_out": []}


@pytest.mark.parametrize(("command", "package"), [("view", "starlette"), ("report", "jinja2")])
def test_the_error_for_a_missing_extra_says_what_to_install(command: str, package: str, logdir: Path) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; sys.argv = ['tfdbg-arrow', {command!r}, {str(logdir)!r}]; "
    code += "from tfdbg_arrow.cli import main; main()"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr == (
        f"tfdbg-arrow: tfdbg-arrow {command} needs the package {package}; run: {install_command('viewer')}\n"
    )
