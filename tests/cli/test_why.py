"""Test `tfdbg-arrow why`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tfdbg_arrow.query import open_logdir

from ..query.builder import RunBuilder, counts
from .commands import run_cli


class TestWhy:
    @pytest.fixture
    def chain(self, tmp_path: Path) -> Path:
        """A logdir with Softmax with a zero -> Log -> thirty Negs -> Sum, all in one graph."""
        run = RunBuilder("run-a")
        stack = run.stack(("/home/me/train.py", 3, "loss", "return tf.math.log(probs)", "user"))
        graph = run.graph("loss").op("probs", "Softmax").op("Log", inputs=["probs"], stack=stack)
        run.tensor(graph, "probs", counts(zero=1, pos=2))
        run.tensor(graph, "Log", counts(neg_inf=1, neg=2))
        before = "Log"
        for index in range(30):
            graph.op(f"Neg_{index}", "Neg", inputs=[before])
            before = f"Neg_{index}"
            run.tensor(graph, before, counts(pos_inf=1, pos=2))
        graph.op("Sum", inputs=[before, "probs"])
        run.tensor(graph, "Sum", counts(pos_inf=1))
        return run.write(tmp_path / "chain")

    def test_the_first_bad_tensor_and_its_inputs_are_shown(self, chain: Path) -> None:
        result = run_cli("why", chain)
        assert result.exit_code == 1
        assert result.stdout == (
            "`return tf.math.log(probs)` at train.py:3 made -Inf.\n"
            "Log of 0: 1 of 3 elements is 0, and the logarithm of 0 is -Inf.\n"
            "To fix it: Use tf.nn.log_softmax in place of the softmax and the logarithm.\n\n"
            "Log:0 (Log) in loss  <- it went bad here\n"
            "    float32 [3]: 1 -Inf, 2 negative of 3 elements\n"
            "    /home/me/train.py:3  return tf.math.log(probs)\n"
            "    probs:0 (Softmax) in loss  <- healthy\n"
            "        float32 [3]: 1 zero, 2 positive of 3 elements\n"
        )

    def test_a_long_path_is_folded_with_a_note(self, chain: Path) -> None:
        folded = run_cli("why", chain, "Sum:0").stdout
        assert "... 23 more tensors on the path; --full shows them" in folded
        assert folded.index("Sum:0 (Sum)") < folded.index("Neg_29:0") < folded.index("Log:0") < folded.index("probs:0")
        full = run_cli("why", chain, "Sum", "--full").stdout
        assert sum(f"Neg_{index}:0 (Neg)" in full for index in range(30)) == 30
        assert "more tensors" not in full
        assert run_cli("why", chain, "Sum", "--tree").stdout.count("(Neg)") == 30

    def test_json_holds_every_hop(self, chain: Path) -> None:
        with open_logdir(chain) as opened:
            ((event_index,),) = opened.rows("SELECT max(event_index) FROM tensor_health")
        hops = json.loads(run_cli("why", chain, str(event_index), "--json").stdout)["provenance"]["hops"]
        assert [hop["op_name"] for hop in hops] == ["Sum", *(f"Neg_{i}" for i in reversed(range(30))), "Log", "probs"]
        assert [hop["role"] for hop in hops] == ["propagator"] * 31 + ["origin", "cause"]
        assert all(hop["is_on_path"] for hop in hops)

    def test_a_search_that_ends_early_is_reported(self, chain: Path) -> None:
        result = run_cli("why", chain, "Sum", "--limit", "5")
        assert "The search stopped after 5 tensors; --limit raises the limit." in result.stdout

    def test_forward_shows_what_a_bad_tensor_affected(self, chain: Path) -> None:
        result = run_cli("why", chain, "Neg_28", "--forward")
        assert result.exit_code == 1
        assert result.stdout == (
            "2 tensors were computed from it and are bad.\n\n"
            "Neg_28:0 (Neg) in loss\n"
            "    float32 [3]: 1 +Inf, 2 positive of 3 elements\n"
            "  Neg_29:0 (Neg) in loss\n"
            "      float32 [3]: 1 +Inf, 2 positive of 3 elements\n"
            "    Sum:0 (Sum) in loss\n"
            "        float32 [1]: 1 +Inf of 1 element\n"
        )
        assert "... 12 more tensors; --full shows all" in run_cli("why", chain, "Log", "--forward").stdout
        assert run_cli("why", chain, "Log", "--forward", "--full").stdout.count("(Neg)") == 30
        assert "The search stopped after 5 tensors" in run_cli("why", chain, "Log", "--forward", "--limit", "5").stdout

    def test_csv_holds_every_hop(self, chain: Path) -> None:
        back = list(csv.DictReader(run_cli("why", chain, "Sum", "--csv").stdout.splitlines()))
        assert [row["role"] for row in back] == ["propagator"] * 31 + ["origin", "cause"]
        assert (back[31]["file_path"], back[31]["lineno"], back[31]["shape"]) == ("/home/me/train.py", "3", "[3]")
        forward = list(csv.DictReader(run_cli("why", chain, "Neg_28", "--forward", "--csv").stdout.splitlines()))
        assert [row["op_name"] for row in forward] == ["Neg_28", "Neg_29", "Sum"]
        result = run_cli("why", chain, "Sum", "--csv", "--json")
        assert (result.exit_code, result.stderr) == (
            2,
            "tfdbg-arrow: --csv and --json were both given; give only one of them.\n",
        )

    def test_a_healthy_logdir_gives_exit_code_0(self, healthy: Path, chain: Path) -> None:
        assert run_cli("why", healthy).exit_code == 0
        result = run_cli("why", chain, "probs")
        assert (result.exit_code, result.stdout) == (0, "Nothing is bad in probs.\n")

    def test_an_unknown_tensor_gives_exit_code_2(self, chain: Path) -> None:
        result = run_cli("why", chain, "Nosuch")
        assert result.exit_code == 2
        assert "has no recorded tensor named Nosuch." in result.stderr

    def test_a_tensor_from_outside(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a")
        run.external(7, counts(zero=1), execution=0)
        log = run.execution("Log", inputs=[7], outputs={8: "float32"})
        run.eager(log, counts(neg_inf=1), tensor_id=8)
        assert run_cli("why", run.write(tmp_path / "outside")).stdout.partition("\n\n")[2] == (
            "Log:0, run eagerly  <- it went bad here\n"
            "    float32 [1]: 1 -Inf of 1 element\n"
            "    a tensor from outside  <- healthy\n"
            "        float32 [1]: 1 zero of 1 element\n"
        )

    @pytest.mark.slow
    def test_values_that_did_no_harm_give_exit_code_0(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a")
        graph = run.graph("loss").op("x", "Placeholder").op("log", "Log", inputs=["x"])
        graph.op("safe", "SelectV2", inputs=["log"])
        execution = run.execution("__loss", inputs=[1], graph=graph)
        run.tensor(graph, "x", counts(zero=1), execution=execution)
        run.tensor(graph, "log", counts(neg_inf=1), execution=execution)
        run.tensor(graph, "safe", counts(pos=1), execution=execution)
        logdir = run.write(tmp_path / "harmless")
        result = run_cli("why", logdir)
        assert result.stdout == (
            "The bad values did no harm: -Inf came up in log:0, in the function loss.\n"
            "Log of 0: the only element is 0, and the logarithm of 0 is -Inf.\n"
            "Effect: no harm: everything that was computed from it is finite.\n\n"
            "log:0 (Log) in loss  <- it began here\n"
            "    float32 [1]: 1 -Inf of 1 element\n"
            "    x:0 (Placeholder) in loss, passed as an argument  <- healthy\n"
            "        float32 [1]: 1 zero of 1 element\n"
        )
        codes = {command: run_cli(command, logdir).exit_code for command in ("first-nonfinite", "check", "alerts")}
        assert (result.exit_code, codes) == (0, {"first-nonfinite": 0, "check": 0, "alerts": 0})
        of_tensor = run_cli("why", logdir, "log")
        assert (of_tensor.exit_code, of_tensor.stdout) == (0, result.stdout.split("\n", 1)[1])
        forward = run_cli("why", logdir, "log", "--forward")
        assert forward.exit_code == 0
        assert forward.stdout.startswith(
            "0 tensors were computed from it and are bad.\n"
            "Effect: no harm: everything that was computed from it is finite.\n\n"
        )
