"""Measures the viewer's pages for a large logdir: the first screen, jumps, and the server's memory.

The script generates a large logdir (generate_logdir.py) unless it exists, and starts `tfdbg-arrow view` in a separate
process. The script requests pages over HTTP like a browser, one after the other. With `--tensorboard`, it also requests
the same run, exported as a dump, from TensorBoard's Debugger V2 plugin.

    python benchmarks/viewer_scale.py [--directory DIR] [--rows 10000000] [--runs 2] [--bad-share 0] [--tensorboard]
        [--output FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import http.cookiejar
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

sys.path.insert(0, str(Path(__file__).parent))

from generate_logdir import Expected, read_expected
from query_scale import circumstances, made_logdir, write_found

from tfdbg_arrow.query import open_logdir

FRESH_PROCESSES = 3
PLACES = 5
"""Number of targets for each kind of jump. Each target is requested once, because the server caches pages."""
GOALS_MS = {"first screen": 1000, "jump": 500}
GOAL_BYTES = 512_000_000


class Viewer:
    """A running server, with requests like those of one browser.

    Args:
        process: The server's process.
        url: The server's address, with the token.
    """

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process = process
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        )
        parts = urlsplit(url)
        self.url = url
        self._origin = f"{parts.scheme}://{parts.netloc}"

    def ask(self, target: str, *, holds: str) -> dict[str, float]:
        """Requests a page and checks that it contains a text.

        Returns:
            The seconds until the page arrived, as `wall_s`, and the server's processor time in seconds, as `cpu_s`.
        """
        wall, cpu = time.perf_counter(), self._cpu_s()
        url = target if target.startswith("http") else self._origin + target
        with self._opener.open(url, timeout=120) as response:
            text = response.read().decode()
        took = {"wall_s": time.perf_counter() - wall, "cpu_s": self._cpu_s() - cpu}
        assert holds in text, f"{target} does not contain {holds!r}"
        return took

    def peak_bytes(self) -> int:
        """Returns the server's peak memory so far."""
        return peak_bytes(self._process.pid)

    def sign_in(self) -> None:
        """Signs in with the token, without requesting a page about a logdir."""
        self.ask(self.url.replace("/?", "/state.json?"), holds="state")

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_bytes(pid: int) -> int:
    """Returns the peak memory of a process so far."""
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kilobytes) * 1024


@contextlib.contextmanager
def viewing(logdir: Path) -> Iterator[Viewer]:
    """Yields a server in a new process."""
    command = [sys.executable, "-m", "tfdbg_arrow", "view", str(logdir), "--no-open", "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = next(filter(None, (re.search(r"http://\S+", line) for line in process.stdout)))
            yield Viewer(process, found.group())
        finally:
            process.terminate()


def jumps(logdir: Path, expected: Expected) -> dict[str, list[tuple[str, str]]]:
    """Returns the targets of each kind of jump: a page of a run with a query, and a text that the page contains."""
    bad_run = expected.bad_runs[0]
    with open_logdir(logdir) as opened:
        bad = [event for (event,) in opened.rows(_BAD, [bad_run])]
        firsts = dict(opened.rows(_FIRSTS, [bad_run]))
        reads = dict(opened.rows(_READS, [bad_run]))
    # All runs have the same tensors before a run becomes bad.
    run_ids = [next((run_id for run_id in expected.runs if run_id not in expected.bad_runs), bad_run), bad_run]
    # The way back from a tensor of a later bad step has thousands of tensors. The server stops such a page after 20 s.
    first_bad = [event for event in bad if event <= expected.last_event_index]
    healthy_steps = [step for step, event in firsts.items() if event < expected.event_index]
    found: dict[str, list[tuple[str, str]]] = {}
    for number in range(PLACES):
        share = (number + 0.5) / PLACES
        step = int(share * max(firsts))
        some_read = reads[healthy_steps[int(share * len(healthy_steps))]]
        some_bad, some_first_bad = bad[int(share * len(bad))], first_bad[int(share * len(first_bad))]
        for kind, page, query, holds in (
            ("tensors at an event", "tensors", {"at": firsts[step] + 7}, "data-item"),
            ("tensors before an event", "tensors", {"before": firsts[step]}, "data-item"),
            ("tensors at a step", "tensors", {"step": step}, f"event={firsts[step]}"),
            ("tensors, only the bad", "tensors", {"bad": 1, "at": some_bad}, f"event={some_bad}"),
            ("tensors of an op type", "tensors", {"op_type": expected.op_type, "step": step}, "data-item"),
            ("tensors by a name", "tensors", {"name": "softmax", "step": step}, "data-item"),
            ("tensor", "tensor", {"event": firsts[step]}, f"at={firsts[step]}"),
            ("tensor, read from a variable", "tensor", {"event": some_read}, f"at={some_read}"),
            ("bad tensor", "tensor", {"event": some_first_bad}, f"at={some_first_bad}"),
            ("provenance", "provenance", {"event": some_first_bad}, expected.op_name),
        ):
            is_of_bad = not {some_bad, some_first_bad}.isdisjoint(query.values())
            run_id = bad_run if is_of_bad else run_ids[number % 2]
            target = f"/{page}?{urlencode({'run': run_id, **query})}"
            found.setdefault(kind, []).append((target, holds))
    return found


_BAD = "SELECT event_index FROM tensor_health WHERE run_id = ? AND has_inf_or_nan ORDER BY event_index"
_FIRSTS = (
    "SELECT step, min(event_index) FROM tensor_health WHERE run_id = ? AND step IS NOT NULL GROUP BY step ORDER BY step"
)
_READS = _FIRSTS.replace("GROUP BY", "AND op_type = 'ReadVariableOp' GROUP BY")


def every_page(logdir: Path, expected: Expected) -> dict[str, tuple[str, str]]:
    """Returns the address of each page for a bad run, and a text that the complete page contains."""
    run_id, event = expected.bad_runs[0], expected.event_index
    other = next((each for each in expected.runs if each != run_id), run_id)
    with open_logdir(logdir) as opened:
        ((graph_id, slot),) = opened.rows(_PLACE, [run_id, event])
        ((file_path, lineno),) = opened.rows(_SOURCE, [run_id, graph_id, expected.op_name])
    found = {
        "overview": ("", {}, f"event={event}"),
        "model": ("model", {}, "began here"),
        "alerts": ("alerts", {}, "nonfinite"),
        "executions": ("executions", {}, "data-item"),
        "tensors": ("tensors", {}, "data-item"),
        "tensor": ("tensor", {"event": event}, expected.op_name),
        "provenance": ("provenance", {"event": expected.last_event_index}, expected.op_name),
        "history": ("history", {"graph": graph_id, "op": expected.op_name, "slot": slot}, expected.op_name),
        "graph": ("graph", {"graph": graph_id, "op": expected.op_name}, expected.op_name),
        "source": ("source", {"file": file_path, "line": lineno}, expected.code.split("(")[0]),
        "runs": ("runs", {}, run_id),
        "comparison": ("diff", {"other": other}, "parted first"),
    }
    if other == run_id:
        del found["comparison"]
    return {
        name: (f"/{page}?{urlencode({'run': run_id, **query})}", holds) for name, (page, query, holds) in found.items()
    }


_PLACE = "SELECT graph_id, output_slot FROM tensor_health WHERE run_id = ? AND event_index = ?"
_SOURCE = """
SELECT frame.file_path, frame.lineno FROM graph_op
JOIN stack_trace AS trace USING (run_id, stack_trace_id) JOIN stack_frame AS frame USING (run_id, stack_frame_id)
WHERE run_id = ? AND graph_id = ? AND op_name = ? AND frame.owner = 'user' ORDER BY depth LIMIT 1
"""


def measure_pages(logdir: Path) -> dict[str, dict[str, float]]:
    """Requests each page from servers that have answered no request yet.

    Returns:
        The times of each page in seconds. `first_s` is the time until the page appears. Slow parts may still be
        missing. `again_s` is the time of a second request for the page. `complete_s` is the time until another new
        server answers with the complete page.
    """
    found: dict[str, dict[str, float]] = {}
    for name, (target, holds) in every_page(logdir, read_expected(logdir)).items():
        with viewing(logdir) as viewer:
            viewer.sign_in()
            first = viewer.ask(target, holds="</html>")["wall_s"]
            again = viewer.ask(target, holds="</html>")["wall_s"]
        with viewing(logdir) as viewer:
            viewer.sign_in()
            complete = viewer.ask(f"{target}&wait=1", holds=holds)["wall_s"]
        found[name] = {"first_s": first, "again_s": again, "complete_s": complete}
    return found


def measure_tensorboard(logdir: Path, dump: Path) -> dict[str, float]:
    """Asks TensorBoard for the bad run of a logdir, exported as a Debugger V2 dump.

    Returns:
        Times in seconds, and sizes. `first_s` is the time from the first request, which makes TensorBoard read the
        dump, until TensorBoard can show an execution. `complete_s` is the time until TensorBoard has read the whole
        dump. `alerts_s` is the time of a later request for the alerts. `num_events` is the number of executions and
        graph tensors that TensorBoard shows, and `peak_bytes` is its peak memory.
    """
    run_id = read_expected(logdir).bad_runs[0]
    export = [
        sys.executable,
        "-m",
        "tfdbg_arrow",
        "export",
        str(logdir),
        str(dump),
        "--debugger-v2",
        "--run",
        run_id,
    ]
    subprocess.run(export, check=True, stdout=subprocess.DEVNULL)
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(dump), "--host", "127.0.0.1", "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            root = next(filter(None, (re.search(r"http://\S+?:\d+", line) for line in process.stderr))).group()
            threading.Thread(target=process.stderr.read, daemon=True).start()

            def ask(route: str, **query: object) -> dict[str, Any]:
                url = f"{root}/data/plugin/debugger-v2/{route}?{urlencode({'run': _TENSORBOARD_RUN, **query})}"
                with urllib.request.urlopen(url, timeout=600) as response:
                    answer: dict[str, Any] = json.load(response)
                return answer

            begin = time.perf_counter()
            while not ask("runs"):
                time.sleep(0.05)
            found: dict[str, float] = {}
            last, last_change = -1, begin
            # TensorBoard does not say when it has read the whole dump. Three rounds of reading without new events mean
            # the end.
            while (now := time.perf_counter()) - last_change < _TENSORBOARD_QUIET_S or last == 0:
                counts = [
                    ask(f"{kind}/digests", begin=0, end=0)["num_digests"] for kind in ("execution", "graph_execution")
                ]
                if sum(counts) != last:
                    last, last_change = sum(counts), time.perf_counter()
                    if last > 0:
                        found.setdefault("first_s", last_change - begin)
                if now - begin > _TENSORBOARD_LIMIT_S:
                    break
                time.sleep(0.2)
            asked = time.perf_counter()
            ask("alerts", begin=0, end=0)
            return {
                **found,
                "complete_s": last_change - begin,
                "alerts_s": time.perf_counter() - asked,
                "num_events": last,
                "peak_bytes": peak_bytes(process.pid),
            }
        finally:
            process.terminate()


_TENSORBOARD_RUN = "__default_debugger_run__"
_TENSORBOARD_QUIET_S = 20.0
_TENSORBOARD_LIMIT_S = 480.0


def measure(logdir: Path) -> dict[str, Any]:
    """Requests the pages of a generated logdir from servers.

    Returns:
        The wall-clock and processor seconds of each page, by kind of page, and `peak_bytes` of a server that answered
        all of these requests and then made every page complete.
    """
    expected = read_expected(logdir)
    measured: dict[str, Any] = {}

    def note(kind: str, took: dict[str, float]) -> None:
        times = measured.setdefault(kind, {"wall_s": [], "cpu_s": []})
        for name, seconds in took.items():
            times[name].append(seconds)

    holds = f"event={expected.event_index}"  # a link to the tensor that the page names
    _forget_files(logdir)
    with viewing(logdir) as viewer:
        note("first screen, files not in the cache", viewer.ask(viewer.url, holds=holds))
    for number in range(FRESH_PROCESSES):
        with viewing(logdir) as viewer:
            note("first screen", viewer.ask(viewer.url, holds=holds))
            if number == FRESH_PROCESSES - 1:
                note("first screen, again", viewer.ask(viewer.url, holds=holds))
                for kind, targets in jumps(logdir, expected).items():
                    for target, text in targets:
                        note(kind, viewer.ask(target, holds=text))
                for target, text in every_page(logdir, expected).values():
                    viewer.ask(f"{target}&wait=1", holds=text)
                measured["peak_bytes"] = viewer.peak_bytes()
    measured["rows"], measured["runs"] = expected.rows, len(expected.runs)
    return measured


def _forget_files(logdir: Path) -> None:
    """Makes the system drop the files of a logdir from its cache."""
    for path in logdir.rglob("*.parquet"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def show(found: dict[str, Any]) -> str:
    """Returns the report."""
    of_logdir = found["viewer"]
    lines = [
        f"{of_logdir['rows']:,} rows in {of_logdir['runs']:,} runs",
        f"{'':40}{'pages':>6}{'median ms':>11}{'most ms':>9}{'cpu':>6}{'goal':>7}",
    ]
    for name, times in of_logdir.items():
        if isinstance(times, dict):
            walls = [seconds * 1e3 for seconds in times["wall_s"]]
            cpu = statistics.median(times["cpu_s"]) * 1e3
            goal = GOALS_MS["first screen" if name.startswith("first screen") else "jump"]
            lines.append(
                f"{name:40}{len(walls):>6}{statistics.median(walls):>11.0f}{max(walls):>9.0f}{cpu:>6.0f}{goal:>7}"
            )
    lines.append(f"peak memory of the server {of_logdir['peak_bytes'] / 1e6:,.0f} MB, goal {GOAL_BYTES / 1e6:,.0f} MB")
    lines += [f"{'':40}{'first ms':>11}{'complete ms':>13}{'again ms':>10}"]
    lines += [
        f"{name:40}{times['first_s'] * 1e3:>11.0f}{times['complete_s'] * 1e3:>13.0f}{times['again_s'] * 1e3:>10.0f}"
        for name, times in found["pages"].items()
    ]
    if peer := found.get("tensorboard"):
        lines.append(
            f"TensorBoard, {peer['num_events']:,} events: first {peer.get('first_s', float('nan')):.1f} s, complete "
            f"{peer['complete_s']:.1f} s, alerts {peer['alerts_s']:.1f} s, {peer['peak_bytes'] / 1e6:,.0f} MB"
        )
    lines.append(f"load of the machine at the start {found['load'][0]:.1f}; cpu is the server's processor time")
    return "\n".join(lines)


def main() -> None:
    """Runs the benchmark and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, help="keep the logdir here, and reuse it if it exists")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--bad-share", type=float, default=0.0, help="share of the steps of a bad run that are bad")
    parser.add_argument("--tensorboard", action="store_true", help="also ask TensorBoard's Debugger V2 plugin")
    parser.add_argument("--output", type=Path, help="write all measurements to this file, as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = arguments.directory or Path(scratch)
        logdir = made_logdir(directory, rows=arguments.rows, runs=arguments.runs, bad_share=arguments.bad_share)
        found = {**circumstances(), "viewer": measure(logdir), "pages": measure_pages(logdir)}
        if arguments.tensorboard:
            found["tensorboard"] = measure_tensorboard(logdir, Path(scratch) / "dump")
    write_found(found, arguments.output)
    print(show(found))


if __name__ == "__main__":
    main()
