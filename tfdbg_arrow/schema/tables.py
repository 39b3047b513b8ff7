"""The single declaration of every table and column of a logdir.

Everything else that depends on columns (Arrow schemas, Parquet settings, spec/tables.md,
spec/schema.json, the views that DuckDB registers) is built from these objects.
"""

from __future__ import annotations

from dataclasses import replace

from tfdbg_arrow.schema.declaration import Column, Table, Type

FORMAT_VERSION = "1.3"
"""MAJOR.MINOR of the format, independent of the package's version."""

BAD_CONSTANT = "has_inf_or_nan"
"""Key in `graph_op.attributes` of a tensor that holds an infinity or a NaN."""

_T = Type

_RUN_ID = Column(
    id=1,
    name="run_id",
    type=_T.VARCHAR,
    doc="The run that wrote the row.",
    references="run.run_id",
)


def _wall_time(id_ns: int, id_timestamp: int, of: str) -> tuple[Column, Column]:
    return (
        Column(
            id=id_ns,
            name="wall_time_ns",
            type=_T.BIGINT,
            unit="ns",
            doc=f"{of}, in nanoseconds since 1970-01-01T00:00:00Z.",
        ),
        Column(
            id=id_timestamp,
            name="wall_time",
            type=_T.TIMESTAMP,
            unit="us",
            doc=f"{of}, as a UTC timestamp truncated to microseconds.",
        ),
    )


def _step(id_: int) -> Column:
    return Column(
        id=id_,
        name="step",
        type=_T.BIGINT,
        nullable=True,
        doc="The training step set by the last mark() before the event; NULL before the first mark().",
    )


def _layer(id_: int, of: str) -> Column:
    return Column(
        id=id_,
        name="layer",
        type=_T.VARCHAR,
        nullable=True,
        doc=(
            f"The Keras layer or tf.Module that made the {of}, as the user's names from the outermost to the "
            "innermost, such as `encoder/dense_1`; for a gradient, the layer of its forward op; NULL outside layers or "
            "if unknown."
        ),
    )


def _role(id_: int, of: str) -> Column:
    return Column(
        id=id_,
        name="role",
        type=_T.VARCHAR,
        nullable=True,
        doc=(
            f"The purpose of the {of}: `forward`, `gradient`, `optimizer`, `loss`, `metric`, or `input` (a function of "
            "a tf.data pipeline); NULL if unknown."
        ),
    )


RUN = Table(
    name="run",
    row="One recorded process: the program, its host, the settings, and how it ended.",
    key=("run_id",),
    columns=(
        replace(_RUN_ID, doc="Identifies the run; also part of the names of its directories.", references=None),
        *_wall_time(2, 3, "When recording started"),
        Column(
            id=4,
            name="end_wall_time_ns",
            type=_T.BIGINT,
            unit="ns",
            nullable=True,
            doc="When recording ended; NULL while it runs or if it did not end cleanly.",
        ),
        Column(
            id=5,
            name="is_clean_end",
            type=_T.BOOLEAN,
            doc="Whether the recording was closed and every event written.",
        ),
        Column(id=6, name="format_version", type=_T.VARCHAR, doc="MAJOR.MINOR of the format of this run."),
        Column(id=7, name="tfdbg_arrow_version", type=_T.VARCHAR, doc="Version of the package that wrote the run."),
        Column(
            id=8,
            name="tensorflow_version",
            type=_T.VARCHAR,
            nullable=True,
            doc="`tf.__version__`; NULL if TensorFlow was not involved.",
        ),
        Column(
            id=9,
            name="keras_version",
            type=_T.VARCHAR,
            nullable=True,
            doc="`keras.__version__`; NULL if Keras was not imported when recording started.",
        ),
        Column(
            id=10,
            name="python_version",
            type=_T.VARCHAR,
            nullable=True,
            doc="Version of the Python interpreter; NULL if unknown (an imported dump).",
        ),
        Column(
            id=11,
            name="platform",
            type=_T.VARCHAR,
            nullable=True,
            doc="Operating system and machine, as platform.platform() returns them; NULL if unknown.",
        ),
        Column(
            id=12,
            name="host_name",
            type=_T.VARCHAR,
            nullable=True,
            doc="Name of the host; NULL if unknown (an imported dump) or left out by `redact`.",
        ),
        Column(
            id=13,
            name="pid",
            type=_T.BIGINT,
            nullable=True,
            doc="Process id on that host; NULL if unknown (an imported dump).",
        ),
        Column(
            id=14,
            name="worker",
            type=_T.VARCHAR,
            nullable=True,
            doc="Task type and index in a cluster, such as `worker:1`; NULL outside a cluster.",
        ),
        Column(
            id=15,
            name="command_line",
            type=_T.VARCHAR,
            nullable=True,
            doc="`sys.orig_argv` as a JSON array; NULL if unknown (an imported dump) or left out by `redact`.",
        ),
        Column(
            id=16,
            name="working_directory",
            type=_T.VARCHAR,
            nullable=True,
            doc="Working directory when recording started; NULL in the same cases as command_line.",
        ),
        Column(
            id=17,
            name="tensor_debug_mode",
            type=_T.VARCHAR,
            nullable=True,
            doc=(
                "NO_TENSOR, CURT_HEALTH, CONCISE_HEALTH, FULL_HEALTH, FULL_NUMERICS, SHAPE or FULL_TENSOR; NULL if "
                "an imported dump has no events."
            ),
        ),
        Column(
            id=18,
            name="circular_buffer_size",
            type=_T.BIGINT,
            nullable=True,
            doc="How many of the last executions and graph tensors are kept; 0 or less means all; NULL if unknown.",
        ),
        Column(
            id=19,
            name="op_regex",
            type=_T.VARCHAR,
            nullable=True,
            doc="Only tensors of op types that match this regular expression were recorded; NULL means all op types.",
        ),
        Column(
            id=20,
            name="tensor_dtypes",
            type=_T.VARCHAR,
            nullable=True,
            doc=(
                "The recorded dtypes, as a JSON array of names, or the name of the callable that chose them; NULL "
                "means the dtypes of the mode."
            ),
        ),
        Column(
            id=21,
            name="health_backend",
            type=_T.VARCHAR,
            doc="Backend that measured the tensors: `native`, `tensorflow`, or `debugger_v2` for an imported dump.",
        ),
        Column(id=22, name="settings", type=_T.VARCHAR, doc="All other settings of the recording, as a JSON object."),
    ),
)

DEVICE = Table(
    name="device",
    row="One device on which ops ran.",
    key=("run_id", "device_id"),
    columns=(
        _RUN_ID,
        Column(id=2, name="device_id", type=_T.BIGINT, doc="Identifies the device within the run."),
        Column(
            id=3,
            name="device_name",
            type=_T.VARCHAR,
            doc="Full TensorFlow name, such as `/job:localhost/replica:0/task:0/device:CPU:0`.",
        ),
    ),
)

SOURCE_FILE = Table(
    name="source_file",
    row="One source file that a stack frame refers to, with its full text at the time it was first seen.",
    key=("run_id", "source_file_id"),
    columns=(
        _RUN_ID,
        Column(id=2, name="source_file_id", type=_T.BIGINT, doc="Identifies the file within the run."),
        Column(
            id=3,
            name="file_path",
            type=_T.VARCHAR,
            doc="Path that the interpreter used, or its replacement by `redact`; artificial for a notebook cell.",
        ),
        Column(
            id=4,
            name="source_text",
            type=_T.VARCHAR,
            nullable=True,
            doc="The full text; NULL if it could not be read or was left out by `redact`.",
        ),
    ),
)

STACK_FRAME = Table(
    name="stack_frame",
    row="One distinct frame: a line of a function in a file.",
    key=("run_id", "stack_frame_id"),
    columns=(
        _RUN_ID,
        Column(id=2, name="stack_frame_id", type=_T.BIGINT, doc="Identifies the frame within the run."),
        Column(id=3, name="source_file_id", type=_T.BIGINT, references="source_file.source_file_id", doc="The file."),
        Column(
            id=4,
            name="file_path",
            type=_T.VARCHAR,
            doc="The file's path, repeated here so that you can read frames without a join.",
        ),
        Column(id=5, name="lineno", type=_T.INTEGER, doc="Line number, from 1."),
        Column(id=6, name="func", type=_T.VARCHAR, doc="Name of the function; `<module>` for module-level code."),
        Column(
            id=7,
            name="code",
            type=_T.VARCHAR,
            nullable=True,
            doc="Text of the line without its indentation; NULL in the same cases as source_file.source_text.",
        ),
        Column(
            id=8,
            name="owner",
            type=_T.VARCHAR,
            doc=(
                "Owner of the code: `user`, `framework` (TensorFlow, Keras), or `library` (other installed packages, "
                "the standard library)."
            ),
        ),
    ),
)

STACK_TRACE = Table(
    name="stack_trace",
    row="One frame of one distinct stack trace.",
    key=("run_id", "stack_trace_id", "depth"),
    columns=(
        _RUN_ID,
        Column(id=2, name="stack_trace_id", type=_T.BIGINT, doc="Identifies the stack trace within the run."),
        Column(id=3, name="depth", type=_T.INTEGER, doc="Depth of the frame; 0 is the innermost."),
        Column(id=4, name="stack_frame_id", type=_T.BIGINT, references="stack_frame.stack_frame_id", doc="The frame."),
    ),
)

GRAPH = Table(
    name="graph",
    row="One FuncGraph: the ops traced from one Python function, branch or loop body.",
    key=("run_id", "graph_id"),
    columns=(
        _RUN_ID,
        Column(id=2, name="graph_id", type=_T.BIGINT, doc="Identifies the graph within the run."),
        Column(id=3, name="graph_name", type=_T.VARCHAR, doc="FuncGraph.name: usually the Python function's name."),
        Column(
            id=4,
            name="outer_graph_id",
            type=_T.BIGINT,
            nullable=True,
            references="graph.graph_id",
            doc="The graph in which it was traced; NULL if it was traced in eager code or in an unrecorded graph.",
        ),
        Column(
            id=5,
            name="stack_trace_id",
            type=_T.BIGINT,
            nullable=True,
            references="stack_trace.stack_trace_id",
            doc="The Python stack that made the graph's first function; NULL if unknown.",
        ),
        *_wall_time(6, 7, "When the graph was first made into a function"),
    ),
)

GRAPH_OP = Table(
    name="graph_op",
    row="One op created in a graph.",
    key=("run_id", "graph_id", "op_name"),
    columns=(
        _RUN_ID,
        Column(id=2, name="graph_id", type=_T.BIGINT, references="graph.graph_id", doc="The graph."),
        Column(id=3, name="op_index", type=_T.BIGINT, doc="Position in the graph's order of creation, from 0."),
        Column(id=4, name="op_name", type=_T.VARCHAR, doc="Name, unique within the graph."),
        Column(id=5, name="op_type", type=_T.VARCHAR, doc="Type, such as `MatMul`."),
        Column(id=6, name="num_outputs", type=_T.INTEGER, doc="Number of output tensors."),
        Column(
            id=7,
            name="device_name",
            type=_T.VARCHAR,
            nullable=True,
            doc="Device requested when the op was created; NULL means any device.",
        ),
        Column(
            id=8,
            name="attributes",
            type=_T.VARCHAR,
            nullable=True,
            doc=(
                "The op's attributes as a JSON object from name to value. A tensor is given by dtype and shape, and by "
                f"`{BAD_CONSTANT}` if it holds an infinity or a NaN; a function is given by name. NULL in an imported "
                "run."
            ),
        ),
        Column(
            id=9,
            name="stack_trace_id",
            type=_T.BIGINT,
            nullable=True,
            references="stack_trace.stack_trace_id",
            doc="The Python stack that created the op; NULL if no Python code created it during the recording.",
        ),
        *_wall_time(10, 11, "When the op was created, or first seen if its creation was not observed"),
        Column(
            id=12,
            name="forward_graph_id",
            type=_T.BIGINT,
            nullable=True,
            references="graph.graph_id",
            doc=(
                "The graph of forward_op_name: this graph, or another one if the gradient is a separate function; NULL "
                "if forward_op_name is NULL."
            ),
        ),
        Column(
            id=13,
            name="forward_op_name",
            type=_T.VARCHAR,
            nullable=True,
            references="graph_op.op_name",
            doc=(
                "The op whose gradient function created this op; NULL if no gradient function created it, or if the "
                "forward op is unknown."
            ),
        ),
        _layer(14, "op"),
        _role(15, "op"),
    ),
)

GRAPH_OP_INPUT = Table(
    name="graph_op_input",
    row="One input of an op of a graph: a data edge or a control edge.",
    key=("run_id", "graph_id", "op_name", "input_index", "is_control"),
    columns=(
        _RUN_ID,
        Column(id=2, name="graph_id", type=_T.BIGINT, references="graph.graph_id", doc="The graph."),
        Column(id=3, name="op_name", type=_T.VARCHAR, references="graph_op.op_name", doc="The consuming op."),
        Column(
            id=4,
            name="input_index",
            type=_T.INTEGER,
            doc="Index of the input, from 0; control edges are numbered separately.",
        ),
        Column(
            id=5,
            name="is_control",
            type=_T.BOOLEAN,
            doc="True if the op only waits for the source, and no tensor flows.",
        ),
        Column(
            id=6,
            name="source_op_name",
            type=_T.VARCHAR,
            references="graph_op.op_name",
            doc="The op that produces the input.",
        ),
        Column(
            id=7,
            name="source_output_slot",
            type=_T.INTEGER,
            nullable=True,
            doc="Index of the source's output, from 0; NULL for a control edge.",
        ),
    ),
)

GRAPH_OP_OUTPUT = Table(
    name="graph_op_output",
    row="One output tensor of an op of a graph, with what was known at tracing.",
    key=("run_id", "graph_id", "op_name", "output_slot"),
    columns=(
        _RUN_ID,
        Column(id=2, name="graph_id", type=_T.BIGINT, references="graph.graph_id", doc="The graph."),
        Column(id=3, name="op_name", type=_T.VARCHAR, references="graph_op.op_name", doc="The op."),
        Column(id=4, name="output_slot", type=_T.INTEGER, doc="Index of the output, from 0."),
        Column(
            id=5,
            name="dtype",
            type=_T.VARCHAR,
            nullable=True,
            doc="TensorFlow's name of the dtype, such as `float32` or `resource`; NULL if unknown (an imported dump).",
        ),
        Column(
            id=6,
            name="static_shape",
            type=_T.BIGINT_LIST,
            nullable=True,
            doc="Dimensions, -1 for each unknown one; NULL for an unknown rank.",
        ),
        Column(
            id=7,
            name="is_recorded",
            type=_T.BOOLEAN,
            nullable=True,
            doc=(
                "Whether tensor_health has a row for each time the output is computed; NULL if unknown. Outputs that "
                "TensorFlow's optimizer fuses, folds or prunes are not computed."
            ),
        ),
        Column(
            id=8,
            name="not_recorded_reason",
            type=_T.VARCHAR,
            nullable=True,
            doc=(
                "Why it is not recorded: `mode`, `dtype`, `op_regex`, `tensor_dtypes`, `op_type`, `control_flow`, "
                "`xla` (compiled, as the setting asks), `remote` (on a device of another process), or `reference` (to "
                "a variable's memory, which can change in the meantime); NULL if it is recorded."
            ),
        ),
    ),
)

GRAPH_FUNCTION = Table(
    name="graph_function",
    row=(
        "One runtime function made from a graph (a graph can have several, such as forward variants and gradients of "
        "loops), or all runs of a graph-mode session with the same feeds, fetches and targets."
    ),
    key=("run_id", "function_name"),
    columns=(
        _RUN_ID,
        Column(
            id=2,
            name="function_name",
            type=_T.VARCHAR,
            doc="Name in TensorFlow's runtime, such as `__inference_step_42`; the op_type of executions that call it.",
        ),
        Column(
            id=3, name="graph_id", type=_T.BIGINT, references="graph.graph_id", doc="The graph that it was made from."
        ),
        Column(
            id=4,
            name="session_index",
            type=_T.INTEGER,
            nullable=True,
            doc=(
                "Index of the session, from 0, if the row stands for session runs with the same feeds (its arguments) "
                "and fetches (its results); NULL for a function."
            ),
        ),
        Column(
            id=5,
            name="session_targets",
            type=_T.VARCHAR,
            nullable=True,
            doc="JSON array of the ops that such a run executes without fetching a result; NULL for a function.",
        ),
    ),
)

GRAPH_FUNCTION_INPUT = Table(
    name="graph_function_input",
    row="One argument of a function and the Placeholder for it in the graph, or one feed of a session run.",
    key=("run_id", "function_name", "input_index"),
    columns=(
        _RUN_ID,
        Column(
            id=2, name="function_name", type=_T.VARCHAR, references="graph_function.function_name", doc="The function."
        ),
        Column(id=3, name="graph_id", type=_T.BIGINT, references="graph.graph_id", doc="Its graph."),
        Column(
            id=4,
            name="input_index",
            type=_T.INTEGER,
            doc="Index of the argument, from 0; equal to the input_index of the call's input.",
        ),
        Column(id=5, name="op_name", type=_T.VARCHAR, references="graph_op.op_name", doc="The Placeholder."),
        Column(
            id=6,
            name="is_capture",
            type=_T.BOOLEAN,
            doc="Whether it is a captured tensor rather than an argument of the Python function.",
        ),
        Column(
            id=7,
            name="output_slot",
            type=_T.INTEGER,
            nullable=True,
            doc=(
                "For a session run, the index of the fed output, from 0; any op can be fed, and a feed does not "
                "execute the op. NULL for a function."
            ),
        ),
    ),
)

GRAPH_FUNCTION_OUTPUT = Table(
    name="graph_function_output",
    row="One result of a function, and the tensor of the graph that it returns.",
    key=("run_id", "function_name", "output_index"),
    columns=(
        _RUN_ID,
        Column(
            id=2, name="function_name", type=_T.VARCHAR, references="graph_function.function_name", doc="The function."
        ),
        Column(id=3, name="graph_id", type=_T.BIGINT, references="graph.graph_id", doc="Its graph."),
        Column(
            id=4,
            name="output_index",
            type=_T.INTEGER,
            doc="Index of the result, from 0; equal to the output_slot of the calling op or execution.",
        ),
        Column(
            id=5, name="op_name", type=_T.VARCHAR, references="graph_op.op_name", doc="The op whose output is returned."
        ),
        Column(id=6, name="output_slot", type=_T.INTEGER, doc="Index of that op's output."),
    ),
)

GRAPH_CALL = Table(
    name="graph_call",
    row="One function that an op of a graph can call: the callee of a call, a branch, or a loop's condition or body.",
    key=("run_id", "graph_id", "op_name", "attribute", "branch_index"),
    columns=(
        _RUN_ID,
        Column(id=2, name="graph_id", type=_T.BIGINT, references="graph.graph_id", doc="The calling graph."),
        Column(id=3, name="op_name", type=_T.VARCHAR, references="graph_op.op_name", doc="The calling op."),
        Column(
            id=4,
            name="attribute",
            type=_T.VARCHAR,
            doc=(
                "The attribute that names the function: `f`, `then_branch`, `else_branch`, `cond`, `body`, `branches`, "
                "and so on."
            ),
        ),
        Column(
            id=5,
            name="branch_index",
            type=_T.INTEGER,
            doc="Index in a list of functions; 0 if the attribute holds a single function.",
        ),
        Column(id=6, name="function_name", type=_T.VARCHAR, doc="The callee's runtime name."),
        Column(
            id=7,
            name="callee_graph_id",
            type=_T.BIGINT,
            nullable=True,
            references="graph.graph_id",
            doc="The callee's graph; NULL if it was not recorded.",
        ),
        Column(
            id=8,
            name="is_inline",
            type=_T.BOOLEAN,
            doc=(
                "Whether the callee runs within the caller's step (calls, branches, loops) rather than separately "
                "(functions of a data set)."
            ),
        ),
    ),
)

EXECUTED_OP = Table(
    name="executed_op",
    row=(
        "One node of a graph that TensorFlow executed, after its optimizer changed the graph; only recordings with "
        "`graphs='executed'` have rows."
    ),
    key=("run_id", "executed_graph_id", "node_name"),
    columns=(
        _RUN_ID,
        Column(
            id=2,
            name="executed_graph_id",
            type=_T.BIGINT,
            doc=(
                "Identifies the optimized graph within the run, from 0. The graph holds an outermost function and the "
                "functions that TensorFlow inlined into it."
            ),
        ),
        Column(id=3, name="node_name", type=_T.VARCHAR, doc="Name, unique within the optimized graph."),
        Column(
            id=4,
            name="op_type",
            type=_T.VARCHAR,
            doc="The op type that ran, such as `_FusedMatMul`; it can differ from the type in graph_op.",
        ),
        Column(
            id=5,
            name="graph_id",
            type=_T.BIGINT,
            nullable=True,
            references="graph.graph_id",
            doc="The program's graph that the node comes from; NULL if unknown.",
        ),
        Column(
            id=6,
            name="op_name",
            type=_T.VARCHAR,
            nullable=True,
            references="graph_op.op_name",
            doc=(
                "The program's op whose outputs the node computes; for a fused node, the last of the ops that it "
                "computes. NULL if the optimizer added the node and it computes no op of the program."
            ),
        ),
        Column(
            id=7,
            name="made_for",
            type=_T.VARCHAR,
            nullable=True,
            references="graph_op.op_name",
            doc=(
                "If op_name is NULL, the op of the same graph that the node's name contains, or else the nearest op "
                "computed from the node; NULL if there is none."
            ),
        ),
        Column(
            id=8,
            name="call_site",
            type=_T.VARCHAR,
            nullable=True,
            doc="Path of calling ops from the outermost graph, as in tensor_health.call_site; NULL if unknown.",
        ),
        Column(
            id=9,
            name="device_name",
            type=_T.VARCHAR,
            nullable=True,
            doc="The device that TensorFlow chose; NULL if it left the choice open.",
        ),
        Column(
            id=10,
            name="interface_index",
            type=_T.BIGINT,
            nullable=True,
            doc=(
                "Index, from 0, of the outermost function's argument (for an `_Arg` node) or result (for a `_Retval` "
                "node); NULL for other nodes."
            ),
        ),
        Column(
            id=11,
            name="output_dtypes",
            type=_T.VARCHAR,
            nullable=True,
            doc=(
                "The dtypes of its outputs as a JSON array of TensorFlow's names, null for a reference; NULL if "
                "unknown."
            ),
        ),
    ),
)

EXECUTED_OP_INPUT = Table(
    name="executed_op_input",
    row="One input of a node of a graph that TensorFlow executed: a data edge or a control edge.",
    key=("run_id", "executed_graph_id", "node_name", "input_index"),
    columns=(
        _RUN_ID,
        Column(
            id=2,
            name="executed_graph_id",
            type=_T.BIGINT,
            references="executed_op.executed_graph_id",
            doc="The optimized graph.",
        ),
        Column(id=3, name="node_name", type=_T.VARCHAR, references="executed_op.node_name", doc="The consuming node."),
        Column(
            id=4,
            name="input_index",
            type=_T.INTEGER,
            doc="Index of the input, from 0: the data edges come first, then the control edges.",
        ),
        Column(
            id=5,
            name="is_control",
            type=_T.BOOLEAN,
            doc="True if the node only waits for the source, and no tensor flows.",
        ),
        Column(
            id=6,
            name="source_node_name",
            type=_T.VARCHAR,
            references="executed_op.node_name",
            doc="The node that produces the input.",
        ),
        Column(
            id=7,
            name="source_output_slot",
            type=_T.INTEGER,
            nullable=True,
            doc="Index of the source's output, from 0; NULL for a control edge.",
        ),
    ),
)

EXECUTION = Table(
    name="execution",
    row="One eager op or one call of a function from eager code.",
    key=("run_id", "execution_index"),
    columns=(
        _RUN_ID,
        Column(
            id=2,
            name="execution_index",
            type=_T.BIGINT,
            doc="Identifies the execution within the run; executions are numbered in the order in which they start.",
        ),
        Column(
            id=3,
            name="event_index",
            type=_T.BIGINT,
            doc="Position among all events; for a call, its start, before everything that runs in it.",
        ),
        *_wall_time(4, 5, "When the event was recorded"),
        Column(id=6, name="op_type", type=_T.VARCHAR, doc="Op type, or the function's runtime name."),
        Column(
            id=7,
            name="graph_id",
            type=_T.BIGINT,
            nullable=True,
            references="graph.graph_id",
            doc="The called function's graph; NULL for an op and for an unrecorded function.",
        ),
        Column(id=8, name="num_inputs", type=_T.INTEGER, doc="Number of input tensors."),
        Column(id=9, name="num_outputs", type=_T.INTEGER, doc="Number of output tensors."),
        Column(
            id=10,
            name="stack_trace_id",
            type=_T.BIGINT,
            nullable=True,
            references="stack_trace.stack_trace_id",
            doc="The Python stack that executed it; NULL if unknown.",
        ),
        Column(
            id=11,
            name="thread_id",
            type=_T.BIGINT,
            nullable=True,
            doc="The Python thread, as returned by threading.get_ident(); NULL in an imported run.",
        ),
        _step(12),
        Column(
            id=13,
            name="forward_execution_index",
            type=_T.BIGINT,
            nullable=True,
            references="execution.execution_index",
            doc=(
                "The execution whose gradient function ran this one; NULL if no gradient function ran it, or if the "
                "forward execution is unknown."
            ),
        ),
        _layer(14, "execution"),
        _role(15, "execution"),
    ),
)

EXECUTION_INPUT = Table(
    name="execution_input",
    row="One input tensor of an execution.",
    key=("run_id", "execution_index", "input_index"),
    columns=(
        _RUN_ID,
        Column(
            id=2, name="execution_index", type=_T.BIGINT, references="execution.execution_index", doc="The execution."
        ),
        Column(id=3, name="input_index", type=_T.INTEGER, doc="Index of the input, from 0."),
        Column(
            id=4,
            name="tensor_id",
            type=_T.BIGINT,
            doc="Identifies the eager tensor within the process; a variable is identified by its handle's id.",
        ),
    ),
)

EXECUTION_OUTPUT = Table(
    name="execution_output",
    row="One output tensor of an execution, of any dtype.",
    key=("run_id", "execution_index", "output_slot"),
    columns=(
        _RUN_ID,
        Column(
            id=2, name="execution_index", type=_T.BIGINT, references="execution.execution_index", doc="The execution."
        ),
        Column(id=3, name="output_slot", type=_T.INTEGER, doc="Index of the output, from 0."),
        Column(id=4, name="tensor_id", type=_T.BIGINT, doc="Identifies the eager tensor within the process."),
        Column(
            id=5,
            name="dtype",
            type=_T.VARCHAR,
            nullable=True,
            doc="TensorFlow's name of the dtype; NULL if unknown (an imported dump).",
        ),
    ),
)

EXECUTION_ERROR = Table(
    name="execution_error",
    row="One execution that raised an error instead of returning.",
    key=("run_id", "execution_index"),
    columns=(
        _RUN_ID,
        Column(
            id=2, name="execution_index", type=_T.BIGINT, references="execution.execution_index", doc="The execution."
        ),
        Column(
            id=3,
            name="event_index",
            type=_T.BIGINT,
            doc="Position of the error among all events; for a call, after everything that ran in it.",
        ),
        *_wall_time(4, 5, "When the error was recorded"),
        Column(
            id=6,
            name="error_type",
            type=_T.VARCHAR,
            doc="Name of the error's Python class, such as InvalidArgumentError.",
        ),
    ),
)

TENSOR_HEALTH = Table(
    name="tensor_health",
    row=(
        "One tensor each time it is computed: an output of a graph op or of an execution, or an eager tensor that came "
        "from outside."
    ),
    key=("run_id", "event_index"),
    columns=(
        _RUN_ID,
        Column(
            id=2,
            name="event_index",
            type=_T.BIGINT,
            doc="Position among all events of the process, by arrival; within a call this can differ from data flow.",
        ),
        *_wall_time(3, 4, "When the tensor was recorded"),
        Column(
            id=5,
            name="scope",
            type=_T.VARCHAR,
            doc=(
                "`graph` for an op inside a function, `execution` for an eager op or a call, `external` for an eager "
                "tensor that no recorded op made, at its first use."
            ),
        ),
        Column(
            id=6,
            name="execution_index",
            type=_T.BIGINT,
            nullable=True,
            references="execution.execution_index",
            doc=(
                "The execution that made the tensor. For `graph`, the call in which the op ran, NULL if there is none "
                "or it is uncertain; for `external`, the first execution that used it."
            ),
        ),
        Column(
            id=7,
            name="step_id",
            type=_T.BIGINT,
            nullable=True,
            doc=(
                "TensorFlow's step id, equal for all tensors of one call of an outermost function; NULL outside graphs "
                "or if the backend cannot determine it."
            ),
        ),
        Column(
            id=8,
            name="frame_id",
            type=_T.BIGINT,
            nullable=True,
            doc=(
                "TensorFlow's control-flow frame, which distinguishes the loops of a step; 0 is outside all loops; "
                "NULL in the same cases as step_id."
            ),
        ),
        Column(
            id=9,
            name="iteration",
            type=_T.BIGINT,
            nullable=True,
            doc="Iteration of that frame's loop, from 0; NULL in the same cases as step_id.",
        ),
        Column(
            id=10,
            name="call_site",
            type=_T.VARCHAR,
            nullable=True,
            doc=(
                "Path of calling ops from the outermost graph to the op's graph, such as `while/body/_5/call_1`: each "
                "op's name, followed by the runtime's suffix for a branch or a part of a loop; empty in the outermost "
                "graph; NULL in the same cases as step_id."
            ),
        ),
        Column(
            id=11,
            name="graph_id",
            type=_T.BIGINT,
            nullable=True,
            references="graph.graph_id",
            doc="The graph that contains the op; NULL outside graphs.",
        ),
        Column(
            id=12,
            name="op_name",
            type=_T.VARCHAR,
            nullable=True,
            references="graph_op.op_name",
            doc=(
                "The op in that graph, or executed_op.node_name if TensorFlow's optimizer added the node and it "
                "computes no op of the program; NULL outside graphs."
            ),
        ),
        Column(
            id=13,
            name="op_type",
            type=_T.VARCHAR,
            nullable=True,
            doc=(
                "Op type, or the function's runtime name; NULL for `external`. This is the type that ran, which the "
                "optimizer may have changed (see executed_op.op_type)."
            ),
        ),
        Column(
            id=14,
            name="output_slot",
            type=_T.INTEGER,
            nullable=True,
            doc="Index of the op's output, from 0; NULL for `external`.",
        ),
        Column(
            id=15, name="tensor_id", type=_T.BIGINT, nullable=True, doc="Identifies the eager tensor; NULL in graphs."
        ),
        Column(
            id=16,
            name="device_id",
            type=_T.BIGINT,
            nullable=True,
            references="device.device_id",
            doc="The device on which it was computed; NULL if unknown.",
        ),
        Column(
            id=17,
            name="dtype",
            type=_T.VARCHAR,
            nullable=True,
            doc="TensorFlow's name of the dtype; NULL if unknown (an imported dump).",
        ),
        Column(id=18, name="rank", type=_T.INTEGER, nullable=True, doc="Number of dimensions; NULL if not measured."),
        Column(id=19, name="shape", type=_T.BIGINT_LIST, nullable=True, doc="Dimensions; NULL if not measured."),
        Column(
            id=20,
            name="size",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Number of elements; NULL if not measured.",
        ),
        Column(
            id=21,
            name="has_inf_or_nan",
            type=_T.BOOLEAN,
            nullable=True,
            doc="Whether any element is infinite or NaN; NULL if not measured.",
        ),
        Column(
            id=22,
            name="num_neg_inf",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Elements that are -infinity; NULL if not measured.",
        ),
        Column(
            id=23,
            name="num_pos_inf",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Elements that are +infinity; NULL if not measured.",
        ),
        Column(
            id=24,
            name="num_nan",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Elements that are NaN; NULL if not measured.",
        ),
        Column(
            id=25,
            name="num_neg_finite",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Finite elements below zero; NULL if not measured.",
        ),
        Column(
            id=26,
            name="num_zero",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Elements that are +0 or -0; NULL if not measured.",
        ),
        Column(
            id=27,
            name="num_pos_finite",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Finite elements above zero; NULL if not measured.",
        ),
        Column(
            id=28,
            name="min_finite",
            type=_T.DOUBLE,
            nullable=True,
            doc="Smallest finite element; NULL if there is none, if not measured, or for complex dtypes.",
        ),
        Column(
            id=29,
            name="max_finite",
            type=_T.DOUBLE,
            nullable=True,
            doc="Largest finite element; NULL in the same cases as min_finite.",
        ),
        Column(
            id=30,
            name="mean_finite",
            type=_T.DOUBLE,
            nullable=True,
            doc="Arithmetic mean of the finite elements; NULL in the same cases as min_finite.",
        ),
        Column(
            id=31,
            name="stddev_finite",
            type=_T.DOUBLE,
            nullable=True,
            doc="Population standard deviation of the finite elements; NULL in the same cases as min_finite.",
        ),
        Column(
            id=32,
            name="max_abs_finite",
            type=_T.DOUBLE,
            nullable=True,
            doc=(
                "Largest magnitude of the finite elements (for a complex element, its modulus); NULL if there is none "
                "or not measured."
            ),
        ),
        Column(
            id=33,
            name="num_subnormal",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Elements that are subnormal; NULL if not measured.",
        ),
        _step(34),
        Column(
            id=35,
            name="is_call_inferred",
            type=_T.BOOLEAN,
            nullable=True,
            doc=(
                "True if the execution_index of a `graph` row was inferred from times and names, in an imported run; "
                "NULL if it was observed or is unknown."
            ),
        ),
    ),
)

OP_DIGEST = Table(
    name="op_digest",
    row=(
        "Extremes and sums over the tensors of one op output and one dtype in one part of tensor_health. They let a "
        "reader skip parts and outputs that cannot match."
    ),
    key=("run_id", "part_number", "digest_index"),
    columns=(
        _RUN_ID,
        Column(
            id=2,
            name="part_number",
            type=_T.BIGINT,
            doc="Number of the part of tensor_health; equal to the number of the part that holds this row.",
        ),
        Column(id=3, name="digest_index", type=_T.BIGINT, doc="Index of the row in the part's digest, from 0."),
        Column(
            id=4,
            name="graph_id",
            type=_T.BIGINT,
            nullable=True,
            references="graph.graph_id",
            doc="The graph that contains the op; NULL outside graphs.",
        ),
        Column(
            id=5,
            name="op_name",
            type=_T.VARCHAR,
            nullable=True,
            references="graph_op.op_name",
            doc="The op in that graph; NULL outside graphs.",
        ),
        Column(
            id=6,
            name="op_type",
            type=_T.VARCHAR,
            nullable=True,
            doc="Op type, or the function's runtime name; NULL for `external`.",
        ),
        Column(
            id=7,
            name="output_slot",
            type=_T.INTEGER,
            nullable=True,
            doc="Index of the op's output, from 0; NULL for `external`.",
        ),
        Column(
            id=8,
            name="dtype",
            type=_T.VARCHAR,
            nullable=True,
            doc="TensorFlow's name of the dtype; NULL if unknown (an imported dump).",
        ),
        Column(id=9, name="num_tensors", type=_T.BIGINT, doc="Number of rows of tensor_health."),
        Column(
            id=10,
            name="num_bad_tensors",
            type=_T.BIGINT,
            doc="Number of tensors whose has_inf_or_nan is true.",
        ),
        Column(
            id=11,
            name="min_size",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Smallest size; NULL if no size was measured.",
        ),
        Column(
            id=12,
            name="max_size",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Largest size; NULL if min_size is NULL.",
        ),
        Column(
            id=13,
            name="min_shape",
            type=_T.VARCHAR,
            nullable=True,
            doc=(
                "Smallest shape in byte order of its text, such as `32,64`; empty for a scalar; NULL if no shape was "
                "measured."
            ),
        ),
        Column(
            id=14,
            name="max_shape",
            type=_T.VARCHAR,
            nullable=True,
            doc="Largest shape in the same order; NULL if min_shape is NULL.",
        ),
        Column(
            id=15,
            name="max_nonzero",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Largest size - num_zero of tensors with more than one element; NULL if there are none.",
        ),
        Column(
            id=16,
            name="max_zero_share",
            type=_T.DOUBLE,
            nullable=True,
            doc="Largest num_zero / size; NULL if there is none.",
        ),
        Column(
            id=17,
            name="max_subnormal",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Largest num_subnormal; NULL if none was measured.",
        ),
        Column(
            id=18,
            name="max_magnitude",
            type=_T.DOUBLE,
            nullable=True,
            doc="Largest max_abs_finite; NULL if there is none.",
        ),
        Column(
            id=19,
            name="num_logs",
            type=_T.BIGINT,
            doc="Number of tensors with max_abs_finite above 0.",
        ),
        Column(
            id=20,
            name="sum_log",
            type=_T.DOUBLE,
            nullable=True,
            doc="Sum of ln(max_abs_finite) over these tensors; NULL if there are none.",
        ),
        Column(
            id=21,
            name="sum_log_square",
            type=_T.DOUBLE,
            nullable=True,
            doc="Sum of the squares of these logarithms; NULL if sum_log is NULL.",
        ),
        Column(
            id=22,
            name="min_square",
            type=_T.DOUBLE,
            nullable=True,
            doc=(
                "Smallest mean square, mean_finite * mean_finite + stddev_finite * stddev_finite, clipped to the range "
                "of DOUBLE; NULL if there is none."
            ),
        ),
        Column(
            id=23,
            name="max_square",
            type=_T.DOUBLE,
            nullable=True,
            doc="Largest mean square; NULL if min_square is NULL.",
        ),
        Column(
            id=24,
            name="min_stddev",
            type=_T.DOUBLE,
            nullable=True,
            doc="Smallest stddev_finite; NULL if there is none.",
        ),
        Column(
            id=25,
            name="max_stddev",
            type=_T.DOUBLE,
            nullable=True,
            doc="Largest stddev_finite; NULL if min_stddev is NULL.",
        ),
        Column(
            id=26,
            name="min_slope",
            type=_T.DOUBLE,
            nullable=True,
            doc=(
                "Smallest mean of y - y * y over the elements y, which is mean_finite minus the mean square, clipped "
                "to the range of DOUBLE; NULL if there is none."
            ),
        ),
        Column(
            id=27,
            name="num_norms",
            type=_T.BIGINT,
            doc="Number of tensors of scope `graph` that have a mean_finite and whose has_inf_or_nan is false.",
        ),
        Column(
            id=28,
            name="min_norm",
            type=_T.DOUBLE,
            nullable=True,
            doc=(
                "Smallest Euclidean norm of these tensors, the square root of size times mean square, clipped in the "
                "same way; NULL if there are none."
            ),
        ),
        Column(
            id=29,
            name="max_norm",
            type=_T.DOUBLE,
            nullable=True,
            doc="Largest Euclidean norm of these tensors; NULL if min_norm is NULL.",
        ),
        Column(
            id=30,
            name="max_norm_jump",
            type=_T.DOUBLE,
            nullable=True,
            doc=(
                "Largest ratio of a norm to the mean of the ten norms before it in the part; 0 if no norm has ten "
                "norms before it with a mean above 0; NULL if unknown."
            ),
        ),
    ),
)

TENSOR_VALUE = Table(
    name="tensor_value",
    row="The elements of one recorded tensor.",
    key=("run_id", "event_index"),
    columns=(
        _RUN_ID,
        Column(
            id=2,
            name="event_index",
            type=_T.BIGINT,
            references="tensor_health.event_index",
            doc="The tensor's row in tensor_health.",
        ),
        Column(id=3, name="dtype", type=_T.VARCHAR, doc="TensorFlow's name of the dtype."),
        Column(id=4, name="shape", type=_T.BIGINT_LIST, doc="Dimensions."),
        Column(
            id=5,
            name="value",
            type=_T.BLOB,
            doc=(
                "The elements in row-major order, little-endian, without padding; for strings, the end offset of each "
                "as int64, then their bytes."
            ),
        ),
    ),
)

MARK = Table(
    name="mark",
    row="One label that the program set with mark(): a training step, an epoch, a phase.",
    key=("run_id", "event_index", "label"),
    columns=(
        _RUN_ID,
        Column(
            id=2,
            name="event_index",
            type=_T.BIGINT,
            doc="Position among all events; the label applies to the events after it.",
        ),
        *_wall_time(3, 4, "When the label was set"),
        Column(
            id=5,
            name="step",
            type=_T.BIGINT,
            nullable=True,
            doc="The training step that applies from here on; NULL if none has been set yet.",
        ),
        Column(id=6, name="label", type=_T.VARCHAR, doc="The label's name; `step` for the training step itself."),
        Column(id=7, name="value", type=_T.VARCHAR, doc="The label's value as text."),
    ),
)

CAPTURE_STAT = Table(
    name="capture_stat",
    row="Something that was not recorded, or was recorded in another way than requested, and why.",
    key=("run_id", "event_index", "stat", "subject"),
    columns=(
        _RUN_ID,
        Column(
            id=2,
            name="event_index",
            type=_T.BIGINT,
            doc="Number of events that the process had recorded when this was noted.",
        ),
        *_wall_time(3, 4, "When it was noted"),
        Column(
            id=5,
            name="stat",
            type=_T.VARCHAR,
            doc="What happened: `dropped`, `disabled`, `unobservable`, `failed`, `changed`, `masked` or `recovered`.",
        ),
        Column(id=6, name="subject", type=_T.VARCHAR, doc="What it happened to, such as an op, a function or a table."),
        Column(id=7, name="reason", type=_T.VARCHAR, doc="The reason, as a sentence."),
        Column(
            id=8,
            name="num_events",
            type=_T.BIGINT,
            unit="events",
            nullable=True,
            doc="Number of events affected; NULL if they cannot be counted.",
        ),
    ),
)

DUMP_MESSAGE = Table(
    name="dump_message",
    row=(
        "The content of records of an imported Debugger V2 dump that no other column holds; records that differ only "
        "in what other columns hold share a row."
    ),
    key=("run_id", "message_id"),
    columns=(
        _RUN_ID,
        Column(id=2, name="message_id", type=_T.BIGINT, doc="Identifies the message within the run."),
        Column(
            id=3,
            name="is_whole",
            type=_T.BOOLEAN,
            doc="True if the message is the record, byte for byte; false if other columns hold parts of it.",
        ),
        Column(
            id=4,
            name="stack_trace_id",
            type=_T.BIGINT,
            nullable=True,
            references="stack_trace.stack_trace_id",
            doc="The stack whose frame ids were removed from the code location; NULL if none were removed.",
        ),
        Column(id=5, name="message", type=_T.BLOB, doc="A serialised DebugEvent."),
    ),
)

DUMP_RECORD = Table(
    name="dump_record",
    row="One record of a file of an imported Debugger V2 dump.",
    key=("run_id", "file", "record_index"),
    columns=(
        _RUN_ID,
        Column(
            id=2,
            name="file",
            type=_T.VARCHAR,
            doc=(
                "Suffix of the file: `metadata`, `source_files`, `stack_frames`, `graphs`, `execution` or "
                "`graph_execution_traces`."
            ),
        ),
        Column(id=3, name="record_index", type=_T.BIGINT, doc="Index of the record in the file, from 0."),
        Column(
            id=4,
            name="message_id",
            type=_T.BIGINT,
            references="dump_message.message_id",
            doc="The content of the record that the other columns of this row do not hold.",
        ),
        Column(
            id=5, name="wall_time_s", type=_T.DOUBLE, unit="s", doc="DebugEvent.wall_time, in seconds since 1970-01-01."
        ),
        Column(
            id=6,
            name="row_id",
            type=_T.BIGINT,
            nullable=True,
            doc=(
                "The row made from the record: a source_file_id, stack_frame_id, graph_id, device_id or "
                "execution_index, or the event_index of a trace; NULL for other records."
            ),
        ),
    ),
)

TABLES: tuple[Table, ...] = (
    RUN,
    DEVICE,
    SOURCE_FILE,
    STACK_FRAME,
    STACK_TRACE,
    GRAPH,
    GRAPH_FUNCTION,
    GRAPH_FUNCTION_INPUT,
    GRAPH_FUNCTION_OUTPUT,
    GRAPH_OP,
    GRAPH_OP_INPUT,
    GRAPH_OP_OUTPUT,
    GRAPH_CALL,
    EXECUTED_OP,
    EXECUTED_OP_INPUT,
    EXECUTION,
    EXECUTION_INPUT,
    EXECUTION_OUTPUT,
    EXECUTION_ERROR,
    TENSOR_HEALTH,
    OP_DIGEST,
    TENSOR_VALUE,
    MARK,
    CAPTURE_STAT,
    DUMP_MESSAGE,
    DUMP_RECORD,
)
"""All tables of a logdir, in the order of the specification."""

_BY_NAME = {table_.name: table_ for table_ in TABLES}


def table(name: str) -> Table:
    """Returns the table with the given name.

    Raises:
        KeyError: The format has no such table.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise KeyError(f"format {FORMAT_VERSION} has no table {name!r}; it has {', '.join(_BY_NAME)}") from None
