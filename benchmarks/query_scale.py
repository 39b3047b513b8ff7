"""Measures the cost of questions about a large logdir, and how the cost grows with the number of rows.

The script generates a small and a large logdir (generate_logdir.py) unless they exist. The script asks both logdirs the
same questions, each in a separate process. The script compares the answers with the known content, and prints time,
processor time and memory.

    python benchmarks/query_scale.py [--directory DIR] [--rows 100000000] [--runs 1000] [--peer] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent))

from generate_logdir import Expected, expected_path, generate, read_expected

from tfdbg_arrow.query import Alerts, Logdir, open_logdir

SMALL_ROWS = 100_000
REPEATS = 5
PEER_ROWS = 400_000
"""Number of tensors in the dump for TensorFlow's reader, which needs memory and more than 20 µs for each tensor."""


def ask(logdir: Path) -> dict[str, Any]:
    """Asks a generated logdir all questions and checks the answers.

    Returns:
        The seconds of each call, by question. `cold` calls are the first calls of a process.
    """
    expected = read_expected(logdir)
    measured: dict[str, Any] = {}

    def timed(name: str, action: Callable[[], Any], *, repeats: int = 1) -> Any:
        walls, cpus = [], []
        for _ in range(repeats):
            wall, cpu = time.perf_counter(), _cpu_s()
            answer = action()
            walls.append(time.perf_counter() - wall)
            cpus.append(_cpu_s() - cpu)
        measured[name] = {"wall_s": walls, "cpu_s": cpus}
        return answer

    with timed("open", lambda: open_logdir(logdir)) as opened:
        timed("first_nonfinite, cold", lambda: _check_first(opened, expected))
        timed("first_nonfinite", lambda: _check_first(opened, expected), repeats=REPEATS)
        run_id = expected.bad_runs[0]
        last = expected.last_event_index
        found = timed("provenance, cold", lambda: opened.provenance(last, run_id=run_id))
        timed("provenance", lambda: opened.provenance(last, run_id=run_id), repeats=REPEATS)
        origin = found.origin
        assert origin is not None
        assert origin.role == "origin", origin
        assert origin.event_index <= last, origin
        measured["hops"] = len(found.hops)
        _check_alerts(opened, timed("alerts, cold", lambda: opened.alerts(run_id="all")), expected)
        _check_alerts(opened, timed("alerts", lambda: opened.alerts(run_id="all")), expected)
        ((rows,),) = opened.rows("SELECT count(*) FROM tensor_health")
        assert rows == expected.rows, rows
    measured["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    measured["rows"], measured["runs"] = expected.rows, len(expected.runs)
    return measured


def _check_first(logdir: Logdir, expected: Expected) -> None:
    found = logdir.first_nonfinite(run_id="all")
    assert found is not None
    assert (found.run_id, found.event_index) == (expected.bad_runs[0], expected.event_index), found
    assert (found.op_type, found.op_name, found.is_origin) == (expected.op_type, expected.op_name, True), found
    assert found.source is not None
    assert (found.source.code or "").strip() == expected.code, found.source


def _check_alerts(logdir: Logdir, found: Alerts, expected: Expected) -> None:
    origins = {
        (alert.run_id, alert.first_event_index)
        for alert in logdir.alerts(kinds=["nonfinite_origin"], run_id="all", limit=10_000).alerts
        if alert.op_type == expected.op_type
    }
    assert origins == {(run_id, expected.event_index) for run_id in expected.bad_runs}, len(origins)
    outputs = found.num_found["nonfinite"]
    assert outputs > 0
    assert outputs % len(expected.bad_runs) == 0, outputs
    first = next(alert for alert in found.alerts if alert.kind == "nonfinite_origin")
    assert (first.run_id, first.first_event_index) == (expected.bad_runs[0], expected.event_index), first


def ask_peer(dump: Path) -> dict[str, Any]:
    """Reads a Debugger V2 dump with TensorFlow's DebugDataReader and its InfNanMonitor."""
    from tensorflow.python.debug.lib import debug_events_monitors, debug_events_reader

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    wall, cpu = time.perf_counter(), _cpu_s()
    with debug_events_reader.DebugDataReader(str(dump)) as reader:
        monitor = debug_events_monitors.InfNanMonitor(reader)
        reader.update()
        alerts = monitor.alerts()
        num_events = reader.num_executions() + reader.num_graph_execution_traces()
    seconds, cpu = time.perf_counter() - wall, _cpu_s() - cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return {"events": num_events, "alerts": len(alerts), "wall_s": seconds, "cpu_s": cpu, "memory_bytes": memory}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _in_process(what: str, path: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, what, str(path)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    found: dict[str, Any] = json.loads(subprocess.check_output(command, env=environment).splitlines()[-1])
    return found


def circumstances() -> dict[str, Any]:
    """Returns the machine, the versions and the current load."""
    return {
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "duckdb": duckdb.__version__,
        "pyarrow": pa.__version__,
        "load": os.getloadavg(),
    }


def made_logdir(directory: Path, *, rows: int, runs: int, bad_share: float = 0.0) -> Path:
    """Returns a generated logdir; see `generate`. Generates the logdir if it does not exist."""
    logdir = directory / (f"{rows}-{runs}" + (f"-{bad_share}" if bad_share else ""))
    if not expected_path(logdir).exists():
        print(f"generating {logdir} …", file=sys.stderr, flush=True)
        generate(logdir, rows=rows, runs=runs, bad_share=bad_share)
    return logdir


def _measure_peer(directory: Path) -> dict[str, Any]:
    logdir = made_logdir(directory, rows=PEER_ROWS, runs=1)
    dump = directory / "dump"
    if not dump.exists():
        command = [sys.executable, "-m", "tfdbg_arrow", "export", "--debugger-v2", str(logdir), str(dump)]
        subprocess.run([*command, "--tensor-debug-mode", "FULL_HEALTH"], check=True, stdout=subprocess.DEVNULL)
    return {"theirs": _in_process("--ask-peer", dump), "ours": _in_process("--ask", logdir)}


def show(found: dict[str, Any]) -> str:
    """Returns the report."""
    small, large = found["small"], found["large"]
    lines = [
        f"{small['rows']:,} rows in {small['runs']:,} runs, and {large['rows']:,} rows in {large['runs']:,} runs",
        f"{'':24}{'small ms':>10}{'cpu':>8}{'large ms':>12}{'cpu':>8}{'ratio':>8}",
    ]
    for name, of_small in small.items():
        if isinstance(of_small, dict):
            of_large = large[name]
            walls = [statistics.median(each["wall_s"]) * 1e3 for each in (of_small, of_large)]
            cpus = [statistics.median(each["cpu_s"]) * 1e3 for each in (of_small, of_large)]
            ratio = cpus[1] / max(cpus[0], 1e-6)
            lines.append(f"{name:24}{walls[0]:>10.0f}{cpus[0]:>8.0f}{walls[1]:>12.0f}{cpus[1]:>8.0f}{ratio:>8.1f}")
    lines.append(f"peak memory {small['peak_bytes'] / 1e6:,.0f} MB, {large['peak_bytes'] / 1e6:,.0f} MB")
    lines.append(f"load of the machine at the start {found['load'][0]:.1f}; the ratio compares processor time")
    if "peer" in found:
        theirs, ours = found["peer"]["theirs"], found["peer"]["ours"]
        events = theirs["events"]
        lines.append(
            f"Debugger V2's reader and monitor, {events:,} events: {theirs['wall_s']:.1f} s ({theirs['cpu_s']:.1f} of "
            f"processor time), {theirs['cpu_s'] / events * 1e6:.1f} µs and "
            f"{theirs['memory_bytes'] / events:,.0f} bytes an event"
        )
        first = ours["first_nonfinite, cold"]
        seconds = ours["open"]["cpu_s"][0] + first["cpu_s"][0]
        lines.append(
            f"open and first_nonfinite on the same history: {ours['open']['wall_s'][0] + first['wall_s'][0]:.1f} s "
            f"({seconds:.1f}), {seconds / ours['rows'] * 1e6:.2f} µs a tensor; "
            f"peak memory {ours['peak_bytes'] / 1e6:,.0f} MB"
        )
    return "\n".join(lines)


def main() -> None:
    """Runs the benchmark and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, help="keep the logdirs here, and reuse them if they exist")
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--peer", action="store_true", help="also measure TensorFlow's DebugDataReader")
    parser.add_argument("--output", type=Path, help="write all measurements to this file, as JSON")
    parser.add_argument("--ask", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ask-peer", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ask or arguments.ask_peer:
        print(json.dumps(ask(arguments.ask) if arguments.ask else ask_peer(arguments.ask_peer)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        directory = arguments.directory or Path(scratch)
        small = made_logdir(directory, rows=SMALL_ROWS, runs=1)
        large = made_logdir(directory, rows=arguments.rows, runs=arguments.runs)
        found: dict[str, Any] = {
            **circumstances(),
            "small": _in_process("--ask", small),
            "large": _in_process("--ask", large),
        }
        write_found(found, arguments.output)
        if arguments.peer:
            found["peer"] = _measure_peer(directory)
            write_found(found, arguments.output)
    print(show(found))


def write_found(found: dict[str, Any], output: Path | None) -> None:
    """Writes the measurements so far, if an output file was given."""
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
