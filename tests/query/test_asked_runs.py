"""Test which runs a question is about: the newest run and the runs of the other processes of its program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tfdbg_arrow.cli import app
from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import AboutRuns, Logdir, Provenance, first_nonfinite, open_logdir, read_reasons
from tfdbg_arrow.query.asked_runs import about_runs, asked_runs
from tfdbg_arrow.storage.layout import part_path

from .builder import CLEAN, INF, NAN, START_NS, RunBuilder

SECOND = 1_000_000_000
SPAWNED = '["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()", "--multiprocessing-fork"]'
FORK_SERVER = '["python", "-c", "from multiprocessing.forkserver import main; main(3)"]'


def run_of(
    run_id: str, health: dict[str, Any] = CLEAN, *, start_s: int, end_s: int | None, **columns: Any
) -> RunBuilder:
    """Returns a run with one tensor, recorded from `start_s` to `end_s`.

    If `end_s` is None, the run did not end cleanly.
    """
    run = RunBuilder(
        run_id,
        wall_time_ns=START_NS + start_s * SECOND,
        end_wall_time_ns=None if end_s is None else START_NS + end_s * SECOND,
        is_clean_end=end_s is not None,
        **columns,
    )
    run.tensor(run.graph("step").op("x", "Log"), "x", health)
    return run


@pytest.fixture
def fixed(tmp_path: Path) -> Path:
    """Returns a logdir with a bad run, and a later run of the program in which the bug was fixed."""
    run_of("z-old", NAN, start_s=0, end_s=10).write(tmp_path)
    return run_of("a-new", start_s=20, end_s=30).write(tmp_path)


@pytest.fixture
def opened(fixed: Path) -> Iterator[Logdir]:
    with open_logdir(fixed) as logdir:
        yield logdir


class TestNewest:
    def test_every_answer_is_about_the_newest_run(self, opened: Logdir) -> None:
        assert opened.first_nonfinite() is None
        assert opened.nonfinite() == []
        assert opened.alerts(kinds=["nonfinite_origin"]).findings == ()
        assert {row.run_id for row in opened.history("x")} == {"a-new"}
        health, curves = opened.layer_health(), opened.training_curves()
        assert health.run_id == curves.run_id == "a-new"
        with pytest.raises(QueryError, match="event 0 of run a-new holds no infinity and no NaN"):
            opened.provenance(0)

    def test_a_run_can_be_named(self, opened: Logdir) -> None:
        assert opened.first_nonfinite(run_id="z-old").run_id == "z-old"
        assert {row.run_id for row in opened.history("x", run_id="z-old")} == {"z-old"}
        assert [finding.run_id for finding in opened.alerts(kinds=["nonfinite_origin"], run_id="z-old").findings] == [
            "z-old"
        ]

    def test_all_runs_can_be_asked_for(self, opened: Logdir) -> None:
        assert opened.first_nonfinite(run_id="all").run_id == "z-old"
        assert {row.run_id for row in opened.history("x", run_id="all")} == {"a-new", "z-old"}
        assert len(opened.alerts(kinds=["nonfinite_origin"], run_id="all").findings) == 1

    def test_coverage_is_about_the_newest_run_and_info_about_all(self, tmp_path: Path) -> None:
        for run_id, start_s in (("old", 0), ("new", 20)):
            run = run_of(run_id, start_s=start_s, end_s=start_s + 10)
            run.graph("g").op("hidden", "Log", not_recorded="filtered")
            run.add("capture_stat", stat="dropped", subject="s", reason="r", num_events=1)
            run.write(tmp_path)
        with open_logdir(tmp_path) as opened:
            found = opened.coverage()
            assert {group.run_id for group in found.unobserved} == {stat.run_id for stat in found.stats} == {"new"}
            of_all = opened.coverage(run_id="all")
            assert {group.run_id for group in of_all.unobserved} == {stat.run_id for stat in of_all.stats}
            assert len({group.run_id for group in of_all.unobserved}) == 2
            assert "2 op outputs" in (opened.info().unobserved or "")

    def test_sql_is_about_all_runs(self, opened: Logdir) -> None:
        assert opened.rows("SELECT DISTINCT run_id FROM tensor_health ORDER BY 1") == [("a-new",), ("z-old",)]

    def test_the_newest_run_follows_the_logdir(self, opened: Logdir, fixed: Path) -> None:
        assert opened.first_nonfinite() is None
        run_of("b-newer", INF, start_s=40, end_s=50).write(fixed)
        opened.refresh()
        assert opened.first_nonfinite().run_id == "b-newer"

    def test_an_unknown_run_is_an_error(self, opened: Logdir) -> None:
        for ask in (opened.first_nonfinite, opened.nonfinite, opened.coverage, opened.alerts, opened.layer_health):
            with pytest.raises(QueryError, match=r"run 'x' is not in .*; it holds z-old, a-new"):
                ask(run_id="x")

    def test_the_error_for_an_unknown_run_lists_the_newest_runs(self, tmp_path: Path) -> None:
        for number in range(21):
            run_of(f"run-{number}", CLEAN, start_s=number, end_s=number + 1).write(tmp_path)
        with open_logdir(tmp_path) as opened, pytest.raises(QueryError, match=r"it holds run-1, .*, run-20, …\."):
            opened.first_nonfinite(run_id="x")

    def test_a_logdir_without_runs_has_no_answer(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a")
        run.rows["run"].clear()
        with open_logdir(run.write(tmp_path)) as opened:
            assert opened.first_nonfinite() is None
            assert opened.about_runs() == AboutRuns(run_ids=(), is_newest=True, num_others=0, num_bad_others=None)
            with pytest.raises(QueryError, match="holds 0 runs"):
                opened.provenance(0)


class TestOneProgram:
    @pytest.mark.parametrize(
        ("first", "second", "is_one"),
        [
            pytest.param({}, {}, True, id="forked"),
            pytest.param({}, {"command_line": SPAWNED}, True, id="spawned"),
            pytest.param({"command_line": FORK_SERVER}, {"command_line": SPAWNED}, True, id="siblings"),
            pytest.param({}, {"command_line": '["python", "other.py"]'}, False, id="another program"),
            pytest.param({}, {"working_directory": "/elsewhere"}, False, id="another directory"),
            pytest.param({}, {"host_name": "other"}, False, id="another host"),
            pytest.param(
                {"host_name": None, "command_line": None},
                {"host_name": None, "command_line": None},
                False,
                id="unknown",
            ),
            pytest.param(
                {"worker": "worker:0", "host_name": "a"}, {"worker": "worker:1", "host_name": "b"}, True, id="cluster"
            ),
            pytest.param(
                {"worker": "worker:0", "host_name": "a"}, {"worker": "worker:0", "host_name": "b"}, False, id="clusters"
            ),
        ],
    )
    def test_processes_at_the_same_time(
        self, tmp_path: Path, first: dict[str, Any], second: dict[str, Any], is_one: bool
    ) -> None:
        run_of("first", NAN, start_s=0, end_s=30, **first).write(tmp_path)
        run_of("second", start_s=20, end_s=25, **second).write(tmp_path)
        with open_logdir(tmp_path) as opened:
            assert asked_runs(opened).run_ids == (("first", "second") if is_one else ("second",))
            assert (opened.first_nonfinite() is not None) == is_one

    def test_a_cluster_that_ran_before_is_another_run(self, tmp_path: Path) -> None:
        for index in range(2):
            run_of(f"old-{index}", NAN, start_s=index, end_s=10 - index, worker=f"worker:{index}").write(tmp_path)
            run_of(f"new-{index}", start_s=20 + index, end_s=30, worker=f"worker:{index}").write(tmp_path)
        with open_logdir(tmp_path) as opened:
            assert asked_runs(opened).run_ids == ("new-0", "new-1")
            assert opened.first_nonfinite() is None
            assert len(opened.history("x")) == 2
            assert opened.about_runs().sentence == (
                "About the newest 2 runs of one program: new-0, new-1. 2 of the 2 other runs recorded bad values."
            )
            with pytest.raises(
                QueryError, match="holds 2 runs of the newest program; set run_id to one of new-0, new-1"
            ):
                opened.provenance(0)

    def test_children_one_after_the_other_belong_to_their_parent(self, tmp_path: Path) -> None:
        run_of("before", start_s=0, end_s=9).write(tmp_path)
        run_of("parent", start_s=10, end_s=50).write(tmp_path)
        run_of("child-1", start_s=20, end_s=25, command_line=SPAWNED).write(tmp_path)
        run_of("child-2", start_s=30, end_s=40, command_line=SPAWNED).write(tmp_path)
        with open_logdir(tmp_path) as opened:
            assert asked_runs(opened).run_ids == ("parent", "child-1", "child-2")

    def test_a_killed_run_ends_with_its_last_event(self, tmp_path: Path) -> None:
        run_of("killed", NAN, start_s=0, end_s=None).write(tmp_path)
        run_of("again", start_s=20, end_s=30).write(tmp_path)
        with open_logdir(tmp_path) as opened:
            assert asked_runs(opened).run_ids == ("again",)
        live = run_of("live", start_s=40, end_s=None)
        live.rows["tensor_health"][0]["wall_time_ns"] = START_NS + 60 * SECOND
        live.write(tmp_path)
        with open_logdir(run_of("child", start_s=50, end_s=55).write(tmp_path)) as opened:
            assert asked_runs(opened).run_ids == ("live", "child")


class TestAboutRuns:
    @pytest.mark.parametrize(
        ("run_id", "others", "sentence"),
        [
            (None, [], None),
            (None, [CLEAN], "About run new, the newest of 2. The other run recorded no bad value."),
            (None, [NAN], "About run new, the newest of 2. The other run recorded bad values."),
            (None, [CLEAN] * 2, "About run new, the newest of 3. None of the 2 other runs recorded bad values."),
            (None, [CLEAN, NAN, CLEAN], "About run new, the newest of 4. 1 of the 3 other runs recorded bad values."),
            ("old-0", [CLEAN], "About run old-0. The other run recorded bad values."),
            ("all", [CLEAN], None),
        ],
    )
    def test_the_sentence(
        self, tmp_path: Path, run_id: str | None, others: list[dict[str, Any]], sentence: str | None
    ) -> None:
        for index, health in enumerate(others):
            run_of(f"old-{index}", health, start_s=index * 10, end_s=index * 10 + 5).write(tmp_path)
        with open_logdir(run_of("new", NAN, start_s=100, end_s=110).write(tmp_path)) as opened:
            assert opened.about_runs(run_id=run_id).sentence == sentence

    def test_given_runs_are_the_newest_only_if_they_are(self, opened: Logdir) -> None:
        of_old = about_runs(opened, run_ids=["z-old"], reads_others=False)
        assert of_old.sentence == "About run z-old. The other run was not read."
        of_new = about_runs(opened, run_ids=["a-new"])
        assert of_new.sentence == "About run a-new, the newest of 2. The other run recorded bad values."

    def test_a_broken_part_of_an_old_run_does_not_prevent_an_answer(self, fixed: Path) -> None:
        (fixed / part_path("tensor_health", run_id="z-old", number=0)).write_bytes(b"broken")
        with open_logdir(fixed) as opened:
            assert opened.first_nonfinite() is None
            assert opened.about_runs().sentence == "About run a-new, the newest of 2. The other run was not read."


class TestTensors:
    def test_questions_about_a_tensor_take_what_first_nonfinite_returned(self, fixed: Path) -> None:
        found = first_nonfinite(fixed, run_id="z-old")
        assert found is not None
        with open_logdir(fixed) as opened:
            of_row = opened.provenance(found.event_index, run_id="z-old")
            assert opened.provenance(found) == opened.provenance(found, run_id="z-old") == of_row
            assert opened.spread(found) == opened.spread(found.event_index, run_id="z-old")
            assert read_reasons(opened, found) == read_reasons(opened, found.event_index, run_id="z-old")
            with pytest.raises(QueryError, match="run_id is 'a-new', but the tensor is of the run z-old"):
                opened.provenance(found, run_id="a-new")

    def test_a_row_is_one_of_the_newest_run(self, fixed: Path) -> None:
        with open_logdir(run_of("b-newer", NAN, start_s=40, end_s=50).write(fixed)) as opened:
            found = opened.provenance(0)
            assert isinstance(found, Provenance)
            assert found.run_id == "b-newer"
            assert opened.spread(0).run_id == "b-newer"


ABOUT = "About run a-new, the newest of 2. The other run recorded bad values. --run RUN selects one."


class TestCommands:
    @pytest.mark.parametrize(
        ("command", "second_line"),
        [
            (("first-nonfinite",), "Nothing is bad: no recorded tensor contains nan or inf."),
            (("why",), "Nothing is bad."),
            (("why", "x"), "Nothing is bad in x."),
            (("alerts",), "No rule found anything."),
            (("check",), "Nothing found by nonfinite_origin."),
            (("coverage",), "Every tensor that could be bad was looked at."),
            (("show", "x"), "       0  x:0 in step  float32 [2]: 2 positive of 2 elements"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
    )
    def test_after_the_bug_was_fixed_the_newest_run_is_clean(
        self, fixed: Path, command: tuple[str, ...], second_line: str
    ) -> None:
        name, *arguments = command
        result = CliRunner().invoke(app, [name, str(fixed), *arguments])
        assert (result.exit_code, result.stdout.splitlines()) == (0, [ABOUT, second_line])
        facts = json.loads(CliRunner().invoke(app, [name, str(fixed), *arguments, "--json"]).stdout)
        assert facts["about"] == {
            "run_ids": ["a-new"],
            "is_newest": True,
            "num_others": 1,
            "num_bad_others": 1,
        }

    @pytest.mark.parametrize(
        ("name", "run"), [("first-nonfinite", "z-old"), ("why", "all"), ("alerts", "z-old"), ("check", "all")]
    )
    def test_an_older_run_is_read_only_on_request(self, fixed: Path, name: str, run: str) -> None:
        result = CliRunner().invoke(app, [name, str(fixed), "--run", run])
        assert result.exit_code == 1
        is_told = result.stdout.startswith("About run z-old. The other run recorded no bad value.")
        assert is_told == (run == "z-old")

    def test_a_script_for_a_clean_run_is_refused_with_the_reason(self, fixed: Path, tmp_path: Path) -> None:
        result = CliRunner().invoke(app, ["repro", str(fixed), "-o", str(tmp_path / "repro.py")])
        assert "holds an infinity or a NaN. About run a-new, the newest of 2." in result.stderr

    def test_commands_about_one_run_name_the_option_alike(self) -> None:
        for name in (
            "first-nonfinite",
            "why",
            "alerts",
            "check",
            "coverage",
            "show",
            "repro",
            "zoom",
            "view",
            "report",
        ):
            assert "--run " in CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).stdout


class TestNames:
    """A run can be selected by the name that its user chose."""

    @pytest.fixture
    def named(self, tmp_path: Path) -> Path:
        for run_id, name, start_s in (("r1", "twice", 0), ("r2", "once", 10), ("r3", "twice", 20), ("r4", "r1", 30)):
            run_of(run_id, NAN, start_s=start_s, end_s=start_s + 5, run_name=name).write(tmp_path / "log")
        return tmp_path / "log"

    def test_every_answer_is_about_the_named_run(self, named: Path) -> None:
        with open_logdir(named) as opened:
            assert asked_runs(opened, "once").run_ids == ("r2",)
            assert asked_runs(opened, "r1").run_ids == ("r1",)  # an ID takes precedence over a name
            assert opened.first_nonfinite(run_id="once").run_id == "r2"
            assert {row.run_id for row in opened.history("x", run_id="once")} == {"r2"}
            assert opened.about_runs(run_id="once").run_ids == ("r2",)
            health = opened.layer_health(run_id="once")
            assert health.run_id == "r2"
            compared = opened.diff(opened, run_a="once", run_b="r3")
            assert (compared.run_a, compared.run_b) == ("r2", "r3")

    def test_an_ambiguous_name_lists_the_runs(self, named: Path) -> None:
        with (
            open_logdir(named) as opened,
            pytest.raises(QueryError, match=r"2 runs of .* have the name 'twice'; choose one by its ID: r1, r3\."),
        ):
            asked_runs(opened, "twice")

    @pytest.mark.slow
    def test_commands_take_the_name(self, named: Path, tmp_path: Path) -> None:
        found = CliRunner().invoke(app, ["first-nonfinite", str(named), "--run", "once", "--json"])
        assert json.loads(found.stdout)["nonfinite"]["run_id"] == "r2"
        target = tmp_path / "exported"
        exported = CliRunner().invoke(app, ["export", str(named), str(target), "--csv", "--run", "once"])
        assert exported.exit_code == 0, exported.output
        assert {line.split(",")[0] for line in (target / "run.csv").read_text().splitlines()[1:]} == {'"r2"'}
        for command in ("why", "coverage", "show"):
            words = [command, str(named), *(["x"] if command == "show" else []), "--run", "twice"]
            refused = CliRunner().invoke(app, words)
            assert refused.exit_code == 2
            assert "choose one by its ID: r1, r3" in refused.stderr
