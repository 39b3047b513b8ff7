"""Test first_nonfinite on real programs."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from types import CodeType

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.query.explanation import Reasons, read_reasons
from tfdbg_arrow.query.logdir.statements import Statements
from tfdbg_arrow.query.present.tensors import verdict
from tfdbg_arrow.query.wording import effect_text


def line_of(text: str) -> int:
    """Returns the number of the first line of this file that contains the text, counted from 1."""
    lines = Path(__file__).read_text("utf-8").splitlines()
    return next(number for number, line in enumerate(lines, start=1) if text in line)


def profiled_search(logdir: Path) -> tuple[tfdbg_arrow.NonFinite, Counter[CodeType]]:
    """Returns the first bad tensor that did harm, and how often each function was entered or left to find it."""
    calls: Counter[CodeType] = Counter()
    with tfdbg_arrow.open_logdir(logdir) as opened:
        sys.setprofile(lambda frame, event, argument: calls.update([frame.f_code]))
        try:
            first = opened.first_nonfinite()
        finally:
            sys.setprofile(None)
    assert first is not None
    return first, calls


def test_the_log_of_a_softmax_is_traced_to_the_previously_called_function(tmp_path: Path) -> None:
    @tf.function
    def model(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(x * 200.0)

    @tf.function
    def loss(probs: tf.Tensor) -> tf.Tensor:
        return -tf.reduce_mean(tf.math.log(probs))  # the bug

    with tfdbg_arrow.capture(tmp_path):
        loss(model(tf.constant([[1.0, 2.0, 3.0]])))

    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    assert (first.op_type, first.graph_name, first.is_origin) == ("Log", "loss", True)
    assert (first.num_neg_inf, first.size) == (2, 3)
    (probs,) = first.inputs
    assert probs.health is not None
    assert probs.health.num_zero == first.num_neg_inf
    assert probs.producer is not None
    assert (probs.producer.op_name, probs.producer.graph_name) == ("Softmax", "model")
    assert first.source is not None
    assert (first.source.file_path, first.source.lineno) == (__file__, line_of("# the bug"))


def test_a_captured_tensor_of_an_eager_op_is_not_an_origin(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path):
        bad = tf.math.log(tf.constant([0.0, 1.0]))

        @tf.function
        def f(x: tf.Tensor) -> tf.Tensor:
            return x * bad

        f(tf.constant([1.0, 2.0]))

    origins = [found.op_type for found in tfdbg_arrow.nonfinite(tmp_path) if found.is_origin]
    assert origins == ["Log"]


def test_a_function_of_tensorflow_is_no_call_of_the_user(tmp_path: Path) -> None:
    """An eager jacobian is computed in a function of TensorFlow, which is named f."""
    x = tf.Variable([0.0, 1.0])
    with tfdbg_arrow.capture(tmp_path):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                y = tf.reduce_sum(tf.pow(x, 1.5))
            slope = inner.gradient(y, x)
        outer.jacobian(slope, x)  # the jacobian
    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    assert (first.graph_name, first.call, first.op_type) == ("f", None, "Pow")
    assert first.source is not None
    assert first.source.lineno == line_of("# the jacobian")


def test_a_function_that_calls_itself(tmp_path: Path) -> None:
    @tf.function
    def repeated(x: tf.Tensor, times: int) -> tf.Tensor:
        if times == 0:
            return x
        return repeated(tf.math.log(x), times - 1) + 1.0  # the recursion

    with tfdbg_arrow.capture(tmp_path, graphs="traced"):
        repeated(tf.constant(2.0), 3)

    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    assert first.op_type == "Log"
    assert first.source is not None
    assert (first.source.file_path, first.source.lineno) == (__file__, line_of("# the recursion"))


def test_the_first_bad_iteration_of_a_loop(tmp_path: Path) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(6):
            x = x * x
        return x

    with tfdbg_arrow.capture(tmp_path):
        f(tf.constant(1e10))  # squared to 1e20, then to more than float32 can represent

    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    assert (first.op_type, first.iteration, first.num_pos_inf, first.is_origin) == ("Mul", 1, 1, True)
    assert first.ran_as == "Square in place of Mul"


def test_a_call_that_stopped_with_an_error_returned_no_result(tmp_path: Path) -> None:
    @tf.function
    def checked(x: tf.Tensor) -> tf.Tensor:
        logs = tf.math.log(x)
        tf.debugging.check_numerics(logs, "the logarithms")
        return logs

    with pytest.raises(tf.errors.InvalidArgumentError), tfdbg_arrow.capture(tmp_path):
        checked(tf.constant([0.0, 1.0]))

    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    assert (first.op_type, first.effect, first.ended_in_error, first.is_expected) == ("Log", "result", True, False)
    assert effect_text(first) == "the call stopped with an error"


def test_the_iterations_of_nested_loops(tmp_path: Path) -> None:
    @tf.function
    def total(x: tf.Tensor) -> tf.Tensor:
        for outer in tf.range(3):
            # The quotients do not depend on x, so TensorFlow computes those of several iterations at a time.
            for inner in tf.range(2):
                x += 1.0 / tf.cast(2 * outer + inner - 5, tf.float32)
        return x

    with tfdbg_arrow.capture(tmp_path):
        total(tf.constant(0.0))

    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    assert " in call 1 of total, iteration 1 of the inner loop in iteration 2 of the outer loop" in first.headline


def test_the_iteration_of_an_outer_loop_that_did_not_always_enter_the_inner_loop(tmp_path: Path) -> None:
    @tf.function
    def total(x: tf.Tensor) -> tf.Tensor:
        for outer in tf.range(6):
            for inner in tf.range(outer % 3):
                x += 1.0 / tf.cast(10 * outer + inner - 51, tf.float32)
        return x

    with tfdbg_arrow.capture(tmp_path):
        total(tf.constant(0.0))

    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    assert " in call 1 of total, iteration 1 of the inner loop in iteration 5 of the outer loop" in first.headline


def test_the_lines_of_other_bugs_in_the_same_call_are_named(tmp_path: Path) -> None:
    weight = tf.Variable([0.0, 1.0])

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        first = tf.math.log(x * weight)  # the first bug
        second = tf.math.exp(100.0 * (x + 1.0))  # the second bug
        handled = tf.math.log(x - x)  # does no harm
        total = first + second + tf.where(handled < 0.0, x, x)
        weight.assign(total - 1.0)  # passes the infinities on
        return total

    with tfdbg_arrow.capture(tmp_path):
        step(tf.constant([1.0, 1.0]))
        step(tf.constant([1.0, 1.0]))

    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    assert first.source is not None
    assert first.source.lineno == line_of("# the first bug")
    assert [line.lineno for line in first.also_bad] == [line_of("# the second bug")]


@pytest.mark.parametrize("is_used", [True, False])
def test_an_infinity_that_a_nan_of_the_first_bug_hides_is_named(tmp_path: Path, *, is_used: bool) -> None:
    weight = tf.Variable([0.0, 1.0])

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        first = tf.math.exp(x * weight + 200.0)  # the bug of the NaN
        second = tf.math.exp(x + 300.0)  # the hidden bug
        total = first - first + (second if is_used else tf.where(second > 1e9, x, second))
        weight.assign(total)
        return total

    with tfdbg_arrow.capture(tmp_path):
        step(tf.constant([1.0, 1.0]))

    found = tfdbg_arrow.first_nonfinite(tmp_path)
    assert found is not None
    assert found.source is not None
    assert found.source.lineno == line_of("# the bug of the NaN")
    assert [line.lineno for line in found.also_bad] == ([line_of("# the hidden bug")] if is_used else [])


def test_the_verdict_names_the_line_that_created_the_part_of_keras(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(epsilon=0.0), "mse")  # creates the optimizer
        model.fit(np.zeros((4, 2)), np.zeros((4, 1)), verbose=0)

    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    texts = ["".join(map(str, line.spans)) for line in verdict(first, Reasons(explanation=None, growth=None))]
    created = f"Created at test_first_nonfinite.py:{line_of('# creates the optimizer')}: "
    assert any(text.startswith(created) for text in texts)


@pytest.mark.parametrize("mode", ["FULL_HEALTH", "FULL_TENSOR"])
def test_the_layer_whose_variable_a_checkpoint_makes_bad_is_named(tmp_path: Path, mode: str) -> None:
    def model() -> tf.Module:
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="head")])

    bad = model()
    bad.layers[0].bias.assign([np.nan])
    path = tf.train.Checkpoint(model=bad).save(str(tmp_path / "checkpoint"))
    with tfdbg_arrow.capture(tmp_path / "log", mode):
        restored = model()
        tf.train.Checkpoint(model=restored).restore(path).expect_partial()
        restored(tf.ones([1, 2]))
    found = tfdbg_arrow.first_nonfinite(tmp_path / "log")
    assert found is not None
    explanation = read_reasons(tmp_path / "log", found).explanation
    assert explanation is not None
    assert explanation.sentence.startswith("Restore: the checkpoint holds 1 NaN for a variable of the layer ")
    assert explanation.sentence.endswith("/head.")
    assert " read NaN" in found.headline


def test_an_overflow_inside_the_expression_of_another_one_is_not_named_again(tmp_path: Path) -> None:
    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor, z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        first, second = y, y
        for _ in tf.range(2):
            first, second = first + (1.0 - x * x) * y, second + (1.0 - 1.0 / z) * y
            x, z = 1e10 * x, z - 1e-30
        return first, second

    with tfdbg_arrow.capture(tmp_path):
        step(tf.constant([1e15]), tf.constant([1e10]), tf.constant([1e-30]))

    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    assert first.headline.startswith("`(1.0 - x * x) * y`")
    assert [line.code for line in first.also_bad] == ["(1.0 - 1.0 / z) * y", "1.0 / z"]


@pytest.mark.parametrize("is_other_bug", [False, True])
def test_overflows_of_several_layers_have_one_fix(is_other_bug: bool, tmp_path: Path) -> None:
    weight, scale = tf.Variable([[1e20]]), tf.Variable([[1e20]])

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        price = x @ weight
        demand = tf.exp(x * scale) if is_other_bug else x @ scale
        return price + 2.0 * demand

    with tfdbg_arrow.capture(tmp_path):
        step(tf.constant([[1e20]]))

    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    assert first.headline.startswith("`x @ weight`")
    assert [line.code for line in first.also_bad] == (["x * scale"] if is_other_bug else [])


def test_another_bug_on_the_same_line_is_named_by_its_part(tmp_path: Path) -> None:
    weight = tf.Variable([0.0, 0.0])

    @tf.function
    def step(p: tf.Tensor) -> None:
        weight.assign(tf.math.log(p) + tf.math.log(1.0 - p) - weight)

    with tfdbg_arrow.capture(tmp_path):
        step(tf.constant([0.0, 1.0]))

    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    assert first.headline.startswith("`tf.math.log(p)`")
    assert [line.code for line in first.also_bad] == ["tf.math.log(1.0 - p)"]
    *_, last = verdict(first, Reasons(explanation=None, growth=None))
    place = f"test_first_nonfinite.py:{first.source.lineno if first.source else None}"
    assert last.spans == (
        f"Also bad in the same call, and may need a fix of its own: `tf.math.log(1.0 - p)` at {place}.",
    )


@pytest.mark.slow
def test_bad_results_after_the_first_bad_variable_are_not_looked_at(tmp_path: Path) -> None:
    logarithm = tf.function(lambda x: (tf.math.log(x), tf.square(tf.math.log(x))))

    def num_steps_of_search(num_bad_steps: int) -> int:
        logdir = tmp_path / str(num_bad_steps)
        with tfdbg_arrow.capture(logdir):
            weight = tf.Variable(0.0)
            for _ in range(num_bad_steps):
                loss, _ = logarithm(weight - 1.0)
                weight.assign_sub(loss)
        first, calls = profiled_search(logdir)
        assert first.effect == "variable"
        return sum(number for code, number in calls.items() if f"{os.sep}flow{os.sep}" in code.co_filename)

    # The search reads the bad tensors of some hundred steps at once, and all uses of the variable.
    assert num_steps_of_search(1200) <= 1.2 * num_steps_of_search(600)


def test_a_negative_logarithm_that_runs_as_one_op_spoils_the_variable(tmp_path: Path) -> None:
    scale = tf.Variable([1.0])

    @tf.function
    def step(distances: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(-tf.math.log(tf.exp(-tf.square(distances) * scale)))
        scale.assign_sub(0.1 * tape.gradient(loss, scale))
        return loss

    with tfdbg_arrow.capture(tmp_path):
        step(tf.constant([0.1, 0.5, 60.0, 0.2]))

    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    assert (first.op_type, first.ran_as) == ("Log", "_UnaryOpsComposition in place of Log and Neg")
    assert (first.effect, first.first_bad_place) == ("variable", (2,))


@pytest.mark.slow
def test_bad_values_from_which_a_pipeline_makes_integers_are_looked_at_together(tmp_path: Path) -> None:
    def num_queries(num_elements: int) -> int:
        logdir = tmp_path / str(num_elements)
        with tfdbg_arrow.capture(logdir):
            numbers = tf.data.Dataset.from_tensor_slices(tf.zeros([num_elements]))
            for _ in numbers.map(lambda number: tf.cast(tf.math.log(number), tf.int32)):
                pass
        first, calls = profiled_search(logdir)
        assert first.is_expected
        return calls[Statements.table.__code__]

    assert num_queries(600) <= num_queries(300) + 20


def test_a_nan_made_from_infinities_is_the_first_nan(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path):
        infinite = tf.math.exp(tf.constant(1000.0))
        _ = infinite - infinite

    first, first_nan = tfdbg_arrow.first_nonfinite(tmp_path), tfdbg_arrow.first_nan(tmp_path)
    assert first is not None
    assert first_nan is not None
    assert (first.op_type, first_nan.op_type, first_nan.is_origin) == ("Exp", "Sub", True)


def test_a_healthy_program_has_no_bad_tensor(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path):
        tf.reduce_sum(tf.ones(3) / 3.0)

    assert tfdbg_arrow.first_nonfinite(tmp_path) is None
    assert tfdbg_arrow.nonfinite(tmp_path) == []


def test_alerts_blame_the_op_that_turns_a_mask_into_nan_and_not_the_mask(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path):
        attention = tf.Variable(tf.ones([2, 3]))
        mask = tf.where([[True] * 3, [False] * 3], 0.0, float("-inf"))
        attention.assign(tf.nn.softmax(attention + mask))

    with tfdbg_arrow.open_logdir(tmp_path) as logdir:
        alerts = logdir.alerts(kinds=["nonfinite_origin"]).alerts
        assert [alert.op_type for alert in alerts if not alert.is_expected] == ["Softmax"]
        (nan,) = logdir.rows("SELECT max(event_index) FROM tensor_health WHERE num_nan > 0")
        origin = logdir.provenance(nan[0]).origin
    assert origin is not None
    assert origin.op_type == "Softmax"


def test_the_run_of_a_session_is_named(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path), tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [2])
        other, log = tf.square(x), tf.math.log(x)
        session.run(other, {x: [1.0, 1.0]})
        for value in (1.0, 2.0, 0.0):
            session.run(log, {x: [1.0, value]})
    found = tfdbg_arrow.first_nonfinite(tmp_path)
    assert found is not None
    assert found.headline.endswith(
        "made -Inf in call 3 of Session.run([Log]): from element 1 of the feed of `Placeholder`."
    )


def test_another_bug_that_only_the_loss_shows_is_named_by_its_part(tmp_path: Path) -> None:
    weight = tf.Variable([0.0, 1.0])

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            first = tf.math.lgamma(weight)  # its slope is NaN
            loss = tf.reduce_sum(first - 2.0 * tf.math.log(weight))  # the slope is +Inf, and NaN in the sum
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    with tfdbg_arrow.capture(tmp_path):
        step()

    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    assert first.headline.startswith("`tf.math.lgamma(weight)`")
    assert [line.code for line in first.also_bad] == ["tf.math.log(weight)"]


def test_the_iteration_of_a_gradient_is_that_of_its_loop_which_runs_backwards(tmp_path: Path) -> None:
    @tf.function
    def roots(x: tf.Tensor) -> tf.Tensor:
        total = tf.constant(0.0)
        for step in tf.range(4):
            total += tf.sqrt(x - tf.cast(step, tf.float32))
        return total

    x = tf.Variable(3.0)
    with tfdbg_arrow.capture(tmp_path):
        with tf.GradientTape() as tape:
            loss = roots(x)
        x.assign_sub(tape.gradient(loss, x))

    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    assert first.call is not None
    assert (first.call.function, first.call.number, first.iteration) == ("the gradient of roots", 1, 0)
    assert (
        "in call 1 of the gradient of roots, iteration 0 of the gradient's loop, which runs backwards" in first.headline
    )


def test_an_op_that_took_bad_values_of_another_line_is_not_also_bad(tmp_path: Path) -> None:
    weight = tf.Variable([1.0, 2.0])

    @tf.function
    def update(gradient: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        mean = gradient / (1.0 - tf.pow(0.9, step))
        square = tf.square(gradient) / (1.0 - tf.pow(0.99, step))
        return 0.1 * mean / (tf.sqrt(square) + 1e-7)

    with tfdbg_arrow.capture(tmp_path):
        weight.assign_sub(update(tf.constant([0.5, -0.5]), tf.constant(0.0)))

    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    lines = [line.lineno for line in (first.source, *first.also_bad) if line is not None]
    assert lines == [line_of("mean = gradient /"), line_of("square = tf.square(gradient) /")]


@pytest.mark.parametrize("has_bad_targets", [True, False])
def test_bad_features_and_bad_targets_are_both_named(has_bad_targets: bool, tmp_path: Path) -> None:
    x, y = np.ones((16, 3), np.float32), np.ones((16, 1), np.float32)
    x[5, 1] = np.nan
    y[7:9] = np.nan if has_bad_targets else 1.0
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with tfdbg_arrow.capture(tmp_path):
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)

    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    explanation = read_reasons(tmp_path, first).explanation
    assert explanation is not None
    assert first.headline.startswith("NaN came into the program in x of the data")
    assert explanation.sentence.endswith("Also bad: y of the data, with 2 NaN.") == has_bad_targets


@pytest.mark.parametrize("is_taken_by_function", [True, False])
def test_the_call_that_took_the_batch_with_a_bad_record(is_taken_by_function: bool, tmp_path: Path) -> None:
    weight = tf.Variable(1.0)

    def step(x: tf.Tensor) -> None:
        weight.assign_sub(tf.reduce_mean(weight * x))

    def scale(x: tf.Tensor) -> tf.Tensor:
        return x / tf.reduce_max(x)

    data = np.ones((12, 2), np.float32)
    data[9] = 0
    take = tf.function(step) if is_taken_by_function else step
    with tfdbg_arrow.capture(tmp_path):
        for batch in tf.data.Dataset.from_tensor_slices(data).map(scale).batch(4):
            take(batch)

    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    when = " for call 3 of step" if is_taken_by_function else ""
    assert first.headline.endswith(f" made NaN{when}: sample 1 of the batch.")


def test_a_division_by_0_beside_an_infinite_divisor_is_also_bad(tmp_path: Path) -> None:
    """The softplus is infinite for one element and 0 for another one. The logarithm only takes what they made."""
    weight = tf.Variable([120.0, -120.0, 1.0])

    @tf.function
    def step(mu: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            alpha = tf.math.log(1.0 + tf.exp(weight))
            r = 1.0 / alpha
            loss = tf.reduce_sum(tf.math.lgamma(r)) + tf.reduce_sum(tf.math.log(mu / (r + mu)))
        weight.assign_sub(tape.gradient(loss, weight))

    with tfdbg_arrow.capture(tmp_path):
        step(tf.constant([1.0, 2.0, 3.0]))

    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    lines = [line.lineno for line in (first.source, *first.also_bad) if line is not None]
    assert lines == [line_of("alpha = tf.math.log(1.0 + tf.exp"), line_of("r = 1.0 / alpha")]


def test_the_iteration_and_the_call_of_a_loop_over_a_data_set(tmp_path: Path) -> None:
    total = tf.Variable(0.0)

    @tf.function
    def train(batches: tf.data.Dataset) -> None:
        for batch in batches:
            total.assign_add(tf.reduce_sum(tf.math.log(batch)))

    counts = np.ones(24, np.float32)
    counts[18] = 0.0
    with tfdbg_arrow.capture(tmp_path):
        for last in (8, 24):
            train(tf.data.Dataset.from_tensor_slices(counts[:last]).batch(4))

    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    assert first.call is not None
    assert (first.call.function, first.call.number, first.iteration) == ("train", 2, 4)


def test_a_bad_value_that_is_only_printed_is_not_the_cause_of_a_bad_gradient(tmp_path: Path) -> None:
    x = tf.Variable([0.0, 4.0])
    with tfdbg_arrow.capture(tmp_path):
        with tf.GradientTape() as tape:
            root = tf.sqrt(x)
            loss = tf.reduce_sum(root)
        print(tf.math.log(root))
        x.assign_sub(tape.gradient(loss, x))

    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    assert (first.op_type, first.effect) == ("SqrtGrad", "variable")


@tf.function
def joined_by_concat(a: tf.Tensor, b: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
    first = tf.math.log(a)  # concat, part 0
    second = tf.math.log(b)  # concat, part 1
    third = tf.math.log(c)  # concat, part 2
    return tf.reduce_sum(tf.concat([first, second, third], 1))


@tf.function
def chains_joined_by_concat(a: tf.Tensor, b: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
    first = tf.tanh(tf.math.log(a))  # chain, part 0
    second = tf.tanh(tf.math.log(b))  # chain, part 1
    third = tf.tanh(tf.math.log(c))  # chain, part 2
    return tf.reduce_sum(tf.concat([first, second, third], 0))


@tf.function
def parts_of_split(a: tf.Tensor, b: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
    first, second, third = tf.split(2.0 * tf.concat([a, b, c], 0), 3)
    one = tf.reduce_sum(tf.math.log(first))  # split, part 0
    two = tf.reduce_sum(tf.math.log(second))  # split, part 1
    three = tf.reduce_sum(tf.math.log(third))  # split, part 2
    return one + 2.0 * two + 3.0 * three


@tf.function
def one_logarithm_of_a_concat(a: tf.Tensor, b: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.math.log(tf.concat([a, b, c], 0)))  # whole, part 0 1 2


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize(
    ("function", "marker"),
    [
        (joined_by_concat, "concat"),
        (chains_joined_by_concat, "chain"),
        (parts_of_split, "split"),
        (one_logarithm_of_a_concat, "whole"),
    ],
)
def test_the_op_on_the_bad_part_is_named_if_one_op_ran_on_all_parts(
    tmp_path: Path, function: tf.types.experimental.PolymorphicFunction, marker: str, part: int
) -> None:
    """TensorFlow's optimizer runs log(concat([a, b])) for concat([log(a), log(b)]), under the name of log(a)."""
    arguments = np.full([3, 2, 2], 3, np.float32)
    arguments[part, 1, 0] = -1
    with tfdbg_arrow.capture(tmp_path):
        function(*map(tf.constant, arguments))
    found = tfdbg_arrow.first_nonfinite(tmp_path)
    assert found is not None
    assert found.source is not None
    lines = Path(__file__).read_text("utf-8").splitlines()
    name, _, numbers = lines[found.source.lineno - 1].partition("# ")[2].partition(", part ")
    assert (name, str(part) in numbers.split(), found.is_origin) == (marker, True, True)
    assert not any(input_.health is not None and input_.health.has_inf_or_nan for input_ in found.inputs)


@pytest.mark.slow
@pytest.mark.parametrize("xla", ["inside", "observe"])
def test_an_answer_about_a_loop_that_xla_compiles_says_that_iterations_are_missing(tmp_path: Path, xla: str) -> None:
    """The loop begins with an intended -Inf, so the iteration that makes the NaN is not the first bad one."""

    @tf.function(jit_compile=True)
    def step(x: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
        best = tf.fill([5], -np.inf)
        for i in tf.range(10):
            best = tf.maximum(best, x)
            x = x * tf.math.log(factors[i])  # the logarithm in a loop
        return tf.reduce_mean(x) + tf.reduce_mean(best)

    factors = np.full(10, 0.4, np.float32)
    factors[6] = -1
    with tfdbg_arrow.capture(tmp_path, xla=xla):
        step(tf.ones([5]), tf.constant(factors))
    found = tfdbg_arrow.first_nan(tmp_path)
    assert found is not None
    assert found.headline is not None
    explanation = read_reasons(tmp_path, found).explanation
    assert explanation is not None
    if xla == "observe":
        assert found.source is not None
        assert (found.source.lineno, found.iteration) == (line_of("# the logarithm in a loop"), 6)
    else:
        assert found.headline.startswith("NaN came from an earlier iteration that was not recorded, of the loop at ")
        assert "--xla observe" in explanation.sentence
