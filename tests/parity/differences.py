"""Explains each kind of difference between Debugger V2's recording of the corpus and our recording.

The comparison fails if no entry explains a difference, or if an entry explains no difference.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from .compare import OWN_NAMES, Difference

HEALTH_MODES = ("CURT_HEALTH", "CONCISE_HEALTH", "FULL_HEALTH")
MODES = ("NO_TENSOR", *HEALTH_MODES, "SHAPE", "FULL_TENSOR")


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One kind of difference.

    Attributes:
        name: The name of the explanation.
        what: The difference.
        why: The reason.
        kinds: The kinds of difference that the explanation can explain.
        holds: Returns whether the explanation applies to a difference. The function must be so narrow that it explains
            no fact that we lost.
        modes: The modes in which the difference must occur in the corpus.
    """

    name: str
    what: str
    why: str
    kinds: frozenset[str]
    holds: Callable[[Difference], bool]
    modes: tuple[str, ...] = MODES


EXPLANATIONS: list[Explanation] = []


def explain(*kinds: str, what: str, why: str, modes: tuple[str, ...] = MODES) -> Callable[..., Callable[..., bool]]:
    """Declares an explanation. The decorated function tells whether the explanation applies to a difference."""

    def declare(holds: Callable[[Difference], bool]) -> Callable[[Difference], bool]:
        EXPLANATIONS.append(
            Explanation(name=holds.__name__, what=what, why=why, kinds=frozenset(kinds), holds=holds, modes=modes)
        )
        return holds

    return declare


def explanation_of(difference: Difference, mode: str) -> Explanation | None:
    """Returns the first entry that explains a difference in a mode."""
    for entry in EXPLANATIONS:
        if mode in entry.modes and difference.kind in entry.kinds and entry.holds(difference):
            return entry
    return None


# Graphs.


@explain(
    "graph",
    what="A graph without a name and without ops",
    why="Debugger V2 lists the default graph of each thread, and the one that a SavedModel is loaded into, as outer "
    "graphs; no function is made of them and nothing runs in them.",
)
def default_graph(difference: Difference) -> bool:
    return difference.subject == "None" and difference.theirs == ()


@explain(
    "graph",
    what="The nameless graph that a SavedModel is exported from",
    why="It is no function's, and TensorFlow runs nothing of it but the saver, as a function of its own.",
)
def export_graph(difference: Difference) -> bool:
    return difference.subject == "None" and difference.program == "saved_model" and "VarHandleOp" in difference.theirs


@explain(
    "outer_graph",
    what="The graph that a SavedModel is exported from, around the functions of its saver",
    why="See export_graph: we have its id, without its ops, and so this comparison pairs it with none.",
)
def inside_export_graph(difference: Difference) -> bool:
    is_of_saver = difference.subject in ("_traced_save", "_traced_restore")
    return is_of_saver and difference.theirs is None and difference.ours is not None


@explain(
    "graph",
    what="Graphs `tmp` and `scratch_graph`",
    why="Autograph and Keras trace code in them to learn shapes, and throw them away: no function is made of them and "
    "nothing in them ever runs. We describe a graph when a function is made of it.",
)
def scratch_graph(difference: Difference) -> bool:
    return re.fullmatch(r"tmp|scratch_graph(_\d+)?", difference.subject) is not None


@explain(
    "outer_graph",
    what="The outer graph of a function that was first called in a scratch graph",
    why="Debugger V2 says which it was; ours names the same graph, which this comparison pairs with none.",
)
def traced_in_scratch_graph(difference: Difference) -> bool:
    return difference.theirs is None and difference.program == "keras_fit" and difference.subject == "scaled"


# Ops.


@explain(
    "op",
    what="A NoOp at the end of a graph",
    why="TensorFlow adds one that waits for the stateful ops of a graph. Debugger V2's own ops are stateful and "
    "added while the graph is traced; ours are added when it is complete.",
)
def noop_that_waits_for_debug_ops(difference: Difference) -> bool:
    return difference.subject == "NoOp" and any(
        path.endswith("/auto_control_deps.py") and func == "__exit__" for path, _, func in difference.stack
    )


@explain(
    "op_type",
    what="While, If and Case against StatelessWhile, StatelessIf and StatelessCase",
    why="A loop or branch with one of Debugger V2's ops in it is stateful. Ours are added later, so that the program "
    "gets the ops that it gets without a recorder.",
)
def stateful_by_debug_ops(difference: Difference) -> bool:
    return difference.theirs in ("While", "If", "Case") and difference.ours == "Stateless" + difference.theirs


@explain(
    "op_name",
    what="A name with If in it against the same with StatelessIf, and the like",
    why="An op is named after its type: see stateful_by_debug_ops.",
)
def named_after_stateful_type(difference: Difference) -> bool:
    theirs = re.sub(r"Stateful(?=PartitionedCall)", "", difference.theirs)
    return theirs == re.sub(r"Stateless(?=(If|While|Case)\b)", "", difference.ours)


@explain(
    "op_inputs",
    what="A call with Stateful in its name against the same without",
    why="As stateful_by_debug_ops: without tensors to record ours stay stateless, and those of tf.data always do.",
)
def input_named_after_stateful_call(difference: Difference) -> bool:
    theirs, ours = ([_plain_call(name) for name in names] for names in (difference.theirs, difference.ours))
    return theirs == ours and "StatefulPartitionedCall" in str(difference.theirs)


def _plain_call(name: str) -> str:
    """Returns the name of a call without its type and number. Each type of call has its own numbers."""
    return re.sub(r"(Stateful)?PartitionedCall(_\d+)?", "PartitionedCall", name)


@explain(
    "op_name",
    what="Placeholders and constants that TensorFlow names by a number which it counts up in the process",
    why="Debugger V2's own ops and tensors count too.",
)
def named_by_counter(difference: Difference) -> bool:
    theirs, ours = difference.theirs.rpartition("/"), difference.ours.rpartition("/")
    return (
        difference.subject in ("Placeholder", "Const")
        and theirs[0] == ours[0]
        and theirs[2].isdigit()
        and ours[2].isdigit()
        and int(theirs[2]) > int(ours[2])
    )


@explain(
    "op_name",
    what="`Const_2` against `Const_1`",
    why="In NO_TENSOR Debugger V2 adds constants of its own under the program's names.",
    modes=("NO_TENSOR",),
)
def constant_of_debugger_v2_took_the_name(difference: Difference) -> bool:
    return difference.subject == "Const" and _without_last_number(difference.theirs) == _without_last_number(
        difference.ours
    )


def _without_last_number(name: str) -> str:
    return re.sub(r"_\d+$", "", name)


@explain(
    "op_inputs",
    what="Inputs of a loop that only we have, after those of Debugger V2",
    why="A gradient extends a loop after it was created: Debugger V2 has its inputs as they were first, we have all.",
)
def inputs_added_by_gradient(difference: Difference) -> bool:
    return difference.subject == "While" and difference.ours[: len(difference.theirs)] == difference.theirs


@explain(
    "op_num_outputs",
    what="Outputs of a loop or branch that only we have",
    why="A gradient extends it after it was created: Debugger V2 has its outputs as they were first, we have all.",
)
def outputs_added_by_gradient(difference: Difference) -> bool:
    return difference.subject in ("While", "If") and difference.ours > difference.theirs


@explain(
    "op_name",
    what="An argument of a function, named after one of Debugger V2's own ops",
    why="Where Debugger V2 puts its op between a tensor and a function that takes it (a loop in graph mode, a saver), "
    "TensorFlow names the argument after that op. Ours has the name that it has without a recorder.",
    modes=("NO_TENSOR", "SHAPE", "FULL_TENSOR"),
)
def argument_named_after_debug_op(difference: Difference) -> bool:
    return (
        difference.subject == "Placeholder"
        and OWN_NAMES.search(difference.theirs) is not None
        and OWN_NAMES.search(difference.ours) is None
    )


@explain(
    "op_inputs",
    what="An input that comes from one of Debugger V2's own ops, where we have the program's",
    why="Debugger V2 gives out its own op as the output of the program's.",
    modes=("SHAPE", "FULL_TENSOR"),
)
def input_through_debug_op(difference: Difference) -> bool:
    pairs = list(itertools.zip_longest(difference.theirs, difference.ours))
    changed = [theirs for theirs, ours in pairs if theirs != ours]
    return None not in itertools.chain(*pairs) and all(OWN_NAMES.search(name) for name in changed)


_MOVED = ("Shape", "Size", "Rank", "TensorListElementShape", "TensorListLength")


@explain(
    "op",
    what="Ops that measure a shape, in the gradient of a loop",
    why="TensorFlow puts them into the loop itself, and tells callbacks of the gradient's graph: Debugger V2 has them "
    "in a graph in which they are not. We have them where they are.",
)
def moved_into_forward_graph(difference: Difference) -> bool:
    return (
        difference.subject in _MOVED and "_grad/" in difference.theirs and difference.elsewhere == [difference.theirs]
    )


@explain(
    "trace",
    what="The same, for what they computed",
    why="See moved_into_forward_graph: we have equal values, in the loop's graph.",
    modes=("SHAPE", "FULL_TENSOR"),
)
def computed_in_forward_graph(difference: Difference) -> bool:
    return difference.subject.partition(":")[0] in _MOVED and difference.elsewhere == [difference.theirs]


# Stacks.


@explain(
    "op_stack",
    what="A repeated frame that we have once",
    why="Autograph makes several functions of one statement, all of which map back to its one line.",
)
def repeated_frame(difference: Difference) -> bool:
    distinct = tuple(frame for frame, _ in itertools.groupby(difference.theirs))
    return distinct != difference.theirs and distinct == difference.ours


@explain(
    "op_stack",
    what="A lambda without a name",
    why="Autograph's map has none for it; we say `<lambda>`.",
)
def nameless_lambda(difference: Difference) -> bool:
    named = tuple((path, line, func or "<lambda>") for path, line, func in difference.theirs)
    distinct = tuple(frame for frame, _ in itertools.groupby(named))
    return named != difference.theirs and difference.ours in (named, distinct)


@explain(
    "execution",
    what="A ReadVariableOp that only we have",
    why="TensorFlow's core reads a variable that an eager op takes, and calls no op callback for that. We read it in "
    "an op of its own.",
)
def read_for_an_eager_op(difference: Difference) -> bool:
    return difference.theirs is None and difference.ours == "ReadVariableOp"


@explain(
    "op_stack",
    what="No user frame",
    why="TensorFlow maps autograph's generated code back for the main thread only. MirroredStrategy traces replicas in "
    "threads of their own; there Debugger V2 has generated code, and we have the user's.",
)
def unmapped_thread(difference: Difference) -> bool:
    return difference.theirs == () and difference.program == "mirrored_strategy" and difference.ours != ()


@explain(
    "library_frames",
    what="TensorFlow's Python function that makes a While, If or Case",
    why="Another makes the stateless one: see stateful_by_debug_ops.",
)
def made_as_stateful(difference: Difference) -> bool:
    ((path, _, func),) = difference.theirs[:1]
    return (
        len(difference.theirs) == 1
        and path.endswith("/tensorflow/python/ops/gen_functional_ops.py")
        and func in ("_while", "_if", "case")
    )


@explain(
    "library_frames",
    what="Keras's wrapper of a layer's `__call__`, where AutoGraph converted it",
    why="A recording puts a wrapper of its own around it, which AutoGraph converts. Our stacks leave it out.",
)
def converted_wrapper(difference: Difference) -> bool:
    return {(path.rpartition("/site-packages/")[2], func) for path, _, func in difference.theirs} == {
        ("keras/src/utils/traceback_utils.py", "error_handler")
    }


@explain(
    "library_frames",
    what="TensorFlow's frames that make an op of `tf.vectorized_map` or a jacobian from an op of the mapped function",
    why="Our stack is that of the op in the mapped function, whose line the user wrote.",
)
def made_by_vectorization(difference: Difference) -> bool:
    return any(path.endswith("/parallel_for/pfor.py") for path, _, _ in difference.theirs)


@explain(
    "op_stack",
    what="The call of `tf.vectorized_map`, without the line in the mapped function",
    why="TensorFlow makes the ops later, from those of the function. Our stack is that of the op in the function.",
)
def made_by_vectorization_without_a_line(difference: Difference) -> bool:
    theirs, ours = difference.theirs, difference.ours or ()
    is_longer = len(ours) > len(theirs) and ours[: len(theirs)] == theirs
    return difference.program in ("jacobians", "vectorized_map") and is_longer


# Traces.


@explain(
    "trace",
    what="Tensors of a function that was saved, where a loaded copy of it ran",
    why="Debugger V2's ops are saved with a function and go on to name the old graph. We save none: the copy is a "
    "graph of its own, and has equal values.",
    modes=MODES[1:],
)
def traces_of_saved_debug_ops(difference: Difference) -> bool:
    return difference.program == "saved_model" and difference.theirs in difference.elsewhere


@explain(
    "trace",
    what="The arguments of a function of tf.data that only hands them on",
    why="tf.data does not run such a function, unless it is stateful, as Debugger V2's ops make it. Ours do not.",
    modes=MODES[1:],
)
def argument_that_is_handed_on(difference: Difference) -> bool:
    is_argument = difference.subject.startswith("Placeholder:") and difference.ours is None
    return is_argument and difference.program in ("for_over_data_set", "iterator_in_function")


@explain(
    "trace",
    what="Outputs of calls, loops and branches; arguments of called functions; ops that only hand on tensors; ops "
    "whose result is not needed",
    why="TensorFlow inlines functions and removes ops that nothing needs. Debugger V2's ops need all of them. Our ops "
    "are added after that, so that the same ops run as without a recorder.",
    modes=MODES[1:],
)
def without_a_node(difference: Difference) -> bool:
    return difference.ours is None and not difference.has_node


@explain(
    "trace_count",
    "trace_value",
    what="Ops of a function of which one call needs less than the other",
    why="See without_a_node: TensorFlow removes them from one of the places where it inlines the function.",
    modes=MODES[1:],
)
def removed_from_one_call(difference: Difference) -> bool:
    if difference.program not in ("second_order", "keras_fit"):
        return False
    if difference.kind == "trace_count":
        return bool(difference.ours < difference.theirs)
    return bool(difference.ours < difference.theirs) and difference.ours.total() < difference.theirs.total()


@explain(
    "trace_value",
    what="The device of ops in the replicas of a MirroredStrategy",
    why="Debugger V2 gives the device that the op asked for when it was traced. Ours is the device that it ran on.",
    modes=MODES[1:],
)
def device_of_a_replica(difference: Difference) -> bool:
    without_devices = [Counter(value for _, value in side.elements()) for side in (difference.theirs, difference.ours)]
    return difference.program == "mirrored_strategy" and without_devices[0] == without_devices[1]


@explain(
    "trace",
    what="That a tensor was computed, without anything about it",
    why="Our NO_TENSOR records no tensors, by its specification: the cheapest mode that does is CURT_HEALTH, for the "
    "ops that have floating tensors, or SHAPE.",
    modes=("NO_TENSOR",),
)
def no_tensor_means_none(difference: Difference) -> bool:
    return difference.ours is None and {value for _, value in difference.theirs} == {None}


# Source files.


@explain(
    "source_file",
    what="Files of the debugger, and those of TensorFlow that call it",
    why="Debugger V2 leaves its own frames in each stack. We take a call's stack before TensorFlow's frames that "
    "call us.",
)
def files_of_the_debugger(difference: Difference) -> bool:
    return difference.ours is None and difference.subject.endswith(
        (
            "/tensorflow/python/debug/lib/dumping_callback.py",
            "/tensorflow/python/framework/op_callbacks.py",
            "/tensorflow/python/eager/context.py",
        )
    )


@explain(
    "source_file",
    what="A path that ends in `<frozen …>`",
    why="Such a module has no file. Debugger V2 makes a path of its name and an empty text.",
)
def frozen_module(difference: Difference) -> bool:
    return "/<frozen " in difference.subject and difference.theirs == "" and difference.ours is None


@explain(
    "source_file",
    what="A file that autograph generated",
    why="See unmapped_thread: we have the user's file instead.",
)
def generated_file(difference: Difference) -> bool:
    return "__autograph_generated_file" in difference.subject and difference.ours is None
