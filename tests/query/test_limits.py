"""Test the memory and time limits of queries, and the errors at these limits."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest

from tfdbg_arrow.errors import MemoryLimitError, QueryError, TimeLimitError
from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.query.logdir.open_logdir import SubLogdir
from tfdbg_arrow.query.logdir.statements import DEFAULT_MEMORY_LIMIT, MEMORY_LIMIT_VARIABLE, memory_limit_bytes

from .builder import CLEAN, NAN, RunBuilder

_SPILLS_TOO_MUCH = (
    "SELECT count(*) FROM (SELECT DISTINCT a.range * 1_000_003 + b.range FROM range(20_000) a, range(5_000) b)"
)
_NEVER_ENDS = "SELECT count(*) FROM range(10_000_000) a, range(10_000_000) b WHERE a.range * b.range = 7"


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Log")
    run.tensor(graph, "x", NAN)
    return run.write(tmp_path / "logdir")


class TestMemoryLimit:
    @pytest.mark.parametrize(
        ("given", "size"),
        [
            (10**9, 10**9),
            ("500MB", 500 * 10**6),
            ("2GiB", 2 << 30),
            ("1.5 gb", 1_500_000_000),
            (None, DEFAULT_MEMORY_LIMIT),
        ],
    )
    def test_sizes(self, given: int | str | None, size: int) -> None:
        assert memory_limit_bytes(given) == size

    @pytest.mark.parametrize("given", ["", "much", "-1GB", "2 PB", 1000, "1MB"])
    def test_the_error_for_an_invalid_size(self, given: int | str) -> None:
        with pytest.raises(QueryError, match="expected a size of at least"):
            memory_limit_bytes(given)

    def test_the_environment_variable_sets_the_default(self, logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(MEMORY_LIMIT_VARIABLE, "300MB")
        with open_logdir(logdir) as opened, open_logdir(logdir, memory_limit="400MB") as other:
            assert (opened.memory_limit, other.memory_limit) == (300_000_000, 400_000_000)
        monkeypatch.setenv(MEMORY_LIMIT_VARIABLE, "lots")
        with pytest.raises(QueryError, match="TFDBG_ARROW_MEMORY_LIMIT is 'lots'"):
            open_logdir(logdir)

    def test_a_query_that_exceeds_the_limit_raises_and_the_next_one_runs(self, logdir: Path) -> None:
        with open_logdir(logdir, memory_limit="64MB") as opened:
            opened.sql("SET max_temp_directory_size = '1MB'")
            with pytest.raises(MemoryLimitError, match=r"the limit of 61 MiB.*--memory-limit"):
                opened.rows(_SPILLS_TOO_MUCH)
            with pytest.raises(MemoryLimitError, match=r"the limit of 61 MiB.*--memory-limit"):
                opened.sql(_SPILLS_TOO_MUCH).fetchall()
            assert opened.rows("SELECT count(*) FROM tensor_health") == [(1,)]

    def test_a_query_that_needs_more_than_the_usual_memory_gets_it(self, logdir: Path) -> None:
        needs_much = "SELECT len(list(hash(range))) FROM range(8_000_000)"
        limit = "SELECT current_setting('memory_limit')"
        with open_logdir(logdir, memory_limit="400MB") as opened:
            one_run = opened.of_run("run-a")
            opened.save_memory(40_000_000)
            for asked in (opened, one_run):
                assert asked.rows(needs_much) == [(8_000_000,)]
                assert asked.sql(needs_much).fetchall() == [(8_000_000,)]
                assert asked.rows(limit) == [("38.1 MiB",)]
                assert asked.rows("SELECT count(*) FROM tensor_health") == [(1,)]
            with pytest.raises(MemoryLimitError, match="the limit of 381 MiB"):
                opened.rows(needs_much.replace("8_000_000", "100_000_000"))
            assert opened.rows(limit) == [("38.1 MiB",)]

    @pytest.mark.parametrize(("free", "limit"), [(10**12, "610.3 MiB"), (10**9, "476.8 MiB")])
    def test_temporary_files_take_ten_times_the_limit_or_half_of_the_free_disk(
        self, logdir: Path, monkeypatch: pytest.MonkeyPatch, free: int, limit: str
    ) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
        with open_logdir(logdir, memory_limit="64MB") as opened:
            assert opened.rows("SELECT current_setting('max_temp_directory_size')") == [(limit,)]

    def test_an_alert_rule_that_exceeds_the_limit_is_reported_and_the_others_run(
        self, logdir: Path, tmp_path: Path
    ) -> None:
        rules = tmp_path / "rules"
        rules.mkdir()
        (rules / "greedy.sql").write_text(
            "-- severity: info\n-- message: never\n-- One row is nothing.\n"
            "SELECT run_id, graph_id, op_name, op_type, output_slot, event_index AS first_event_index, "
            "event_index AS last_event_index, 1 AS num_events, CAST(1 AS DOUBLE) AS value FROM tensor_health "
            f"WHERE event_index = ({_SPILLS_TOO_MUCH})"
        )
        with open_logdir(logdir, memory_limit="64MB") as opened:
            opened.sql("SET max_temp_directory_size = '1MB'")
            found = opened.alerts(kinds=["greedy", "nonfinite"], rules_directory=rules)
        assert list(found.not_run) == ["greedy"]
        assert found.num_found == {"nonfinite": 1}


class TestTimeLimit:
    def test_a_query_that_exceeds_the_limit_is_stopped_and_the_next_one_runs(self, logdir: Path) -> None:
        with open_logdir(logdir) as opened:
            threads = threading.active_count()
            with pytest.raises(TimeLimitError, match=r"longer than 0\.1 seconds"), opened.within(0.1):
                opened.rows(_NEVER_ENDS)
            assert opened.rows("SELECT count(*) FROM tensor_health") == [(1,)]
            assert threading.active_count() == threads

    def test_the_limit_applies_to_queries_of_one_run_and_to_python_loops(self, logdir: Path) -> None:
        with open_logdir(logdir) as opened:
            one_run = opened.of_run("run-a")
            with opened.within(0.0):
                with pytest.raises(TimeLimitError):
                    one_run.rows("SELECT 1")
                with pytest.raises(TimeLimitError):
                    one_run.check_time()
            one_run.check_time()

    def test_an_interruption_does_not_keep_the_views_of_a_run(self, logdir: Path) -> None:
        class Interrupted:
            """A connection whose statements are interrupted once each."""

            def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
                self.connection = connection
                self.statements: set[str] = set()

            def execute(self, statement: str) -> None:
                if statement not in self.statements:
                    self.statements.add(statement)
                    raise duckdb.InterruptException
                self.connection.execute(statement)

            def close(self) -> None:
                self.connection.close()

        schemas = "SELECT count(*) FROM duckdb_schemas() WHERE schema_name LIKE 'runs_%'"
        with open_logdir(logdir) as opened:
            one_run = SubLogdir(opened, ["run-a"])
            assert opened.rows(schemas) == [(1,)]
            one_run._connection = Interrupted(one_run._connection)  # type: ignore[assignment]
            one_run.close()
            assert opened.rows(schemas) == [(0,)]

    def test_an_inner_limit_cannot_extend_an_outer_one(self, logdir: Path) -> None:
        with open_logdir(logdir) as opened, opened.within(0.0):
            with opened.within(60.0), pytest.raises(TimeLimitError, match="longer than 0 seconds"):
                opened.check_time()
            with pytest.raises(TimeLimitError):
                opened.check_time()


class TestManyBadTensors:
    """The logdir has a training that is bad for many steps. Each step is one call whose ops form a chain."""

    @pytest.mark.slow
    @pytest.mark.parametrize("parts", [1, 2])
    def test_all_alert_rules_run_in_little_memory(self, tmp_path: Path, parts: int) -> None:
        run = RunBuilder("run-a", tensor_debug_mode="FULL_NUMERICS")
        graph = run.graph("step").op("op0", "Log")
        names = [f"op{number}" for number in range(300)]
        for number, name in enumerate(names[1:], start=1):
            graph.op(name, "Mul", [names[number - 1], names[max(0, number - 7)]])
        for step in range(120):
            for name in names:
                run.tensor(graph, name, NAN if step >= 20 else CLEAN, step=step)
        path = run.write(tmp_path / "logdir", parts=parts)
        with open_logdir(path, memory_limit="100MB") as opened:
            found = opened.alerts()
        assert found.not_run == {}
        assert (found.num_found["nonfinite"], found.num_found["nonfinite_origin"]) == (300, 1)
        (origin,) = [alert for alert in found.alerts if alert.kind == "nonfinite_origin"]
        assert (origin.op_name, origin.num_events, origin.first_event_index) == ("op0", 100, 20 * 300)
        assert [finding.num_alerts for finding in found.findings if finding.kind == "nonfinite"] == [300]
