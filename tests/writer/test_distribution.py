"""Programs with distribution strategies: no number changes, nothing fails, and rows name their replica or worker.

The programs in distributed.py check that no number changes.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.programs.running import run_to_end, start_python
from tfdbg_arrow.query import Logdir, open_logdir

from .distributed import REMOTE, free_ports

pytestmark = pytest.mark.slow

EACH_BACKEND = ("native", pytest.param("tensorflow", marks=pytest.mark.exhaustive))

LOCALHOST = "/job:localhost/replica:0/task:0/device:CPU:"


def run(program: str, *arguments: object, **environment: str) -> None:
    script = Path(__file__).with_name("distributed.py")
    done = run_to_end(script, program, *arguments, environment={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logdir = tmp_path_factory.mktemp("mirrored")
    run("mirrored", logdir)
    return logdir


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logdir = tmp_path_factory.mktemp("workers")
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    tasks = [json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}) for index in range(2)]
    with ThreadPoolExecutor(len(tasks)) as pool:
        list(pool.map(lambda task: run("multi_worker", logdir, TF_CONFIG=task), tasks))
    return logdir


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logdir = tmp_path_factory.mktemp("coordinator")
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    cluster = json.dumps({"worker": addresses[:2], "ps": addresses[2:]})
    script = Path(__file__).with_name("distributed.py")
    servers = [start_python(script, "server", task, cluster) for task in ("worker:0", "worker:1", "ps:0")]
    try:
        run("coordinator", logdir, cluster)
    finally:
        for server in servers:
            server.kill()
            server.wait()
    return logdir


def devices(opened: Logdir, where: str = "true") -> set[Any]:
    return set(
        opened.rows(
            "SELECT DISTINCT scope, device_name FROM tensor_health LEFT JOIN device USING (run_id, device_id) "
            f"WHERE {where}"
        )
    )


def lines_of(opened: Logdir, op_type: str) -> set[Any]:
    """Returns the innermost user lines of the ops of a type, with their devices."""
    return set(
        opened.rows(
            "SELECT o.device_name, s.func, s.code FROM graph_op AS o JOIN stack AS s USING (run_id, stack_trace_id) "
            "WHERE o.op_type = ? AND s.owner = 'user' "
            "QUALIFY row_number() OVER (PARTITION BY o.run_id, o.graph_id, o.op_name ORDER BY s.depth) = 1",
            [op_type],
        )
    )


LINE = "loss = tf.reduce_sum(tf.math.log(x) * weight)  # the line of the infinity"


@pytest.mark.parametrize("backend", EACH_BACKEND)
def test_the_device_distinguishes_the_replicas_of_a_mirrored_strategy(backend: str, mirrored: Path) -> None:
    with open_logdir(mirrored / f"loop-{backend}") as opened:
        scopes = ("graph", "execution", "external")
        assert devices(opened) == {(scope, f"{LOCALHOST}{index}") for scope in scopes for index in (0, 1)}
        logs = opened.rows(
            "SELECT h.scope, d.device_name, h.num_neg_inf FROM tensor_health AS h JOIN device AS d "
            "USING (run_id, device_id) WHERE h.op_type = 'Log' ORDER BY ALL"
        )
        assert logs == [
            ("execution", f"{LOCALHOST}0", 0),
            ("execution", f"{LOCALHOST}1", 1),
            *[("graph", f"{LOCALHOST}0", 0)] * 2,
            *[("graph", f"{LOCALHOST}1", 1)] * 2,
        ]
        assert opened.rows("SELECT * FROM capture_stat") == []


@pytest.mark.parametrize("backend", EACH_BACKEND)
def test_the_origin_has_its_replica_and_line(backend: str, mirrored: Path) -> None:
    with open_logdir(mirrored / f"loop-{backend}") as opened:
        assert lines_of(opened, "Log") == {(f"{LOCALHOST}{index}", "replica_step", LINE) for index in (0, 1)}
        found = opened.first_nonfinite()
    assert found is not None
    assert (found.op_name, found.device_name, found.is_origin) == ("replica_1/Log", f"{LOCALHOST}1", True)
    assert found.source is not None
    assert found.source.code == LINE


@pytest.mark.parametrize("backend", EACH_BACKEND)
def test_keras_fit_is_fully_recorded_in_both_replicas(backend: str, mirrored: Path) -> None:
    with open_logdir(mirrored / f"fit-{backend}") as opened:
        assert devices(opened, "op_type = 'MatMul'") == {("graph", f"{LOCALHOST}{index}") for index in (0, 1)}
        counts = opened.rows(
            "SELECT device_name, count(*) FROM tensor_health JOIN device USING (run_id, device_id) "
            "WHERE op_type = 'MatMul' GROUP BY ALL"
        )
        assert counts[0][1] == counts[1][1] > 0
        without_frames = opened.rows(
            "SELECT count(*) FROM graph_op AS o WHERE NOT EXISTS (SELECT 1 FROM stack AS s WHERE s.run_id = o.run_id "
            "AND s.stack_trace_id = o.stack_trace_id) AND o.stack_trace_id IS NOT NULL"
        )
        assert without_frames == [(0,)]
        never_recorded = opened.rows(
            "SELECT r.op_name FROM recorded_op AS r JOIN graph_op_output AS t USING (run_id, graph_id, op_name) "
            "JOIN graph AS g USING (run_id, graph_id) LEFT JOIN op_fate AS f USING (run_id, graph_id, op_name) "
            "WHERE t.is_recorded AND g.graph_name = 'one_step_on_data' AND coalesce(f.fate, 'ran') = 'ran' "
            "AND NOT EXISTS (SELECT 1 FROM tensor_health AS h "
            "WHERE (h.run_id, h.graph_id, h.op_name) = (r.run_id, r.graph_id, r.op_name))"
        )
        assert never_recorded == []
        assert opened.coverage().is_complete


@pytest.mark.parametrize("backend", EACH_BACKEND)
def test_two_workers_share_a_logdir_and_the_origin_names_the_worker(backend: str, workers: Path) -> None:
    with open_logdir(workers / f"loop-{backend}") as opened:
        runs = {run.worker: run.run_id for run in opened.runs()}
        assert sorted(map(str, runs)) == ["worker:0", "worker:1"]
        for worker, run_id in runs.items():
            task = str(worker).partition(":")[2]
            device = f"/job:worker/replica:0/task:{task}/device:CPU:0"
            assert {name for _, name in devices(opened, f"run_id = '{run_id}'")} == {device}
        found = opened.first_nonfinite()
        assert found is not None
        assert (found.worker, found.op_type, found.is_origin) == ("worker:1", "Log", True)
        assert found.source is not None
        assert found.source.code == LINE
        received = opened.first_nonfinite(run_id=runs["worker:0"])
        assert received is not None
        assert received.worker == "worker:0"
        assert (str(received.op_type).startswith("Collective"), received.is_origin) == (True, False)
        assert opened.rows("SELECT * FROM capture_stat") == []


@pytest.mark.parametrize("backend", EACH_BACKEND)
def test_other_processes_run_no_record_ops_and_their_ops_are_listed(backend: str, coordinator: Path) -> None:
    with open_logdir(coordinator / f"loop-{backend}") as opened:
        assert [run.worker for run in opened.runs()] == ["chief:0"]
        assert {name for _, name in devices(opened)} == {"/job:chief/replica:0/task:0/device:CPU:0"}
        reasons = opened.rows(
            "SELECT DISTINCT g.graph_name, o.op_type, t.not_recorded_reason FROM graph_op_output AS t "
            "JOIN graph_op AS o USING (run_id, graph_id, op_name) JOIN graph AS g USING (run_id, graph_id) "
            "WHERE o.op_type IN ('Log', 'Sin', 'Cos') ORDER BY ALL"
        )
        assert reasons == [
            ("model", "Log", "remote"),
            ("on_both_sides", "Cos", None),
            ("on_both_sides", "Sin", "remote"),
        ]
        assert {op_type for (op_type,) in opened.rows("SELECT op_type FROM tensor_health WHERE scope = 'graph'")} > {
            "Cos",
            "Sqrt",
        }
        coverage = opened.coverage()
        assert "(remote)" in str(coverage.summary)
        subjects = {stat.subject.strip("_").rpartition("_")[0] for stat in coverage.stats}
        assert {"inference_model", "inference_step", "inference_Dataset_map_lambda"} <= subjects
        there = [stat for stat in coverage.stats if REMOTE in stat.reason]
        assert len(there) >= 1
        assert {stat.stat for stat in coverage.stats} == {"unobservable"}
        found = opened.first_nonfinite()
    # The square root of a negative sine, in the other process.
    assert found is not None
    assert (found.op_type, found.graph_name, found.num_nan, found.is_origin) == ("AddV2", "on_both_sides", 1, False)
