"""THE declaration of every table and column of a logdir.

Everything else that knows a column (Arrow schemas, Parquet settings, spec/tables.md,
spec/schema.json, the views that DuckDB registers) is made from these objects.
"""

from __future__ import annotations

from dataclasses import replace

from tfdbg_arrow.schema.declaration import Column, Table, Type

FORMAT_VERSION = "1.3"
"""MAJOR.MINOR of the format, apart from the package's version."""

BAD_CONSTANT = "has_inf_or_nan"
"""Key of a tensor in `graph_op.attributes`: it holds an infinity or a NaN."""

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
            doc=f"{of}, as a UTC timestamp, cut to microseconds.",
        ),
    )


def _step(id_: int) -> Column:
    return Column(
        id=id_,
        name="step",
        type=_T.BIGINT,
        nullable=True,
        doc="The training step that the user's last mark() before the event gave; NULL before the first.",
    )


def _layer(id_: int, of: str) -> Column:
    return Column(
        id=id_,
        name="layer",
        type=_T.VARCHAR,
        nullable=True,
        doc=(
            f"The Keras layer or tf.Module that made the {of}, by the names that the user gave, from the outermost in, "
            "as `encoder/dense_1`; of a gradient that of its forward op; NULL outside layers and where not known."
        ),
    )


def _role(id_: int, of: str) -> Column:
    return Column(
        id=id_,
        name="role",
        type=_T.VARCHAR,
        nullable=True,
        doc=(
            f"What the {of} is for: `forward`, `gradient`, `optimizer`, `loss`, `metric`, or `input` (a function of a "
            "tf.data pipeline); NULL where not known."
        ),
    )


RUN = Table(
    name="run",
    row="One instrumented process: what ran, where, with which settings, and how it ended.",
    key=("run_id",),
    columns=(
        replace(_RUN_ID, doc="Identifies the run; also in the names of its directories.", references=None),
        *_wall_time(2, 3, "When recording started"),
        Column(
            id=4,
            name="end_wall_time_ns",
            type=_T.BIGINT,
            unit="ns",
            nullable=True,
            doc="When recording ended; NULL while it runs and where it never ended cleanly.",
        ),
        Column(
            id=5,
            name="is_clean_end",
            type=_T.BOOLEAN,
            doc="Whether recording was closed in order, with every event written.",
        ),
        Column(id=6, name="format_version", type=_T.VARCHAR, doc="MAJOR.MINOR of the format of this run."),
        Column(id=7, name="tfdbg_arrow_version", type=_T.VARCHAR, doc="Version of the writing package."),
        Column(
            id=8,
            name="tensorflow_version",
            type=_T.VARCHAR,
            nullable=True,
            doc="`tf.__version__`; NULL where TensorFlow took no part.",
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
            doc="Version of the interpreter; NULL where an import does not know it.",
        ),
        Column(
            id=11,
            name="platform",
            type=_T.VARCHAR,
            nullable=True,
            doc="Operating system and machine, as platform.platform() says; NULL where not known.",
        ),
        Column(
            id=12,
            name="host_name",
            type=_T.VARCHAR,
            nullable=True,
            doc="Name of the host; NULL where an import does not know it or `redact` left it out.",
        ),
        Column(
            id=13,
            name="pid",
            type=_T.BIGINT,
            nullable=True,
            doc="Process id on that host; NULL where an import does not know it.",
        ),
        Column(
            id=14,
            name="worker",
            type=_T.VARCHAR,
            nullable=True,
            doc="Task type and index in a cluster, as `worker:1`; NULL outside one.",
        ),
        Column(
            id=15,
            name="command_line",
            type=_T.VARCHAR,
            nullable=True,
            doc="`sys.orig_argv` as a JSON array; NULL where an import does not know it or `redact` left it out.",
        ),
        Column(
            id=16,
            name="working_directory",
            type=_T.VARCHAR,
            nullable=True,
            doc="Working directory when recording started; NULL as command_line.",
        ),
        Column(
            id=17,
            name="tensor_debug_mode",
            type=_T.VARCHAR,
            nullable=True,
            doc=(
                "NO_TENSOR, CURT_HEALTH, CONCISE_HEALTH, FULL_HEALTH, FULL_NUMERICS, SHAPE or FULL_TENSOR; NULL where "
                "an imported dump has no event."
            ),
        ),
        Column(
            id=18,
            name="circular_buffer_size",
            type=_T.BIGINT,
            nullable=True,
            doc="How many last executions and graph tensors are kept; 0 or less: all; NULL where not known.",
        ),
        Column(
            id=19,
            name="op_regex",
            type=_T.VARCHAR,
            nullable=True,
            doc="Regular expression that op types had to match for their tensors to be recorded; NULL: all.",
        ),
        Column(
            id=20,
            name="tensor_dtypes",
            type=_T.VARCHAR,
            nullable=True,
            doc=(
                "Dtypes that were recorded, as a JSON array of names, or the name of the callable; NULL: those of the "
                "mode."
            ),
        ),
        Column(
            id=21,
            name="health_backend",
            type=_T.VARCHAR,
            doc="What measured the tensors: `native`, `tensorflow`, or `debugger_v2` for an imported dump.",
        ),
        Column(id=22, name="settings", type=_T.VARCHAR, doc="Every other setting of the recording, as a JSON object."),
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
            doc="Full TensorFlow name, as `/job:localhost/replica:0/task:0/device:CPU:0`.",
        ),
    ),
)

SOURCE_FILE = Table(
    name="source_file",
    row="One source file that a stack frame points into, with its whole text as it was when first seen.",
    key=("run_id", "source_file_id"),
    columns=(
        _RUN_ID,
        Column(id=2, name="source_file_id", type=_T.BIGINT, doc="Identifies the file within the run."),
        Column(
            id=3,
            name="file_path",
            type=_T.VARCHAR,
            doc="Path as the interpreter knew it, or what `redact` put there; a notebook cell has a made-up one.",
        ),
        Column(
            id=4,
            name="source_text",
            type=_T.VARCHAR,
            nullable=True,
            doc="The whole text; NULL where it could not be read or `redact` left it out.",
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
            doc="The file's path, repeated here so that a frame can be read alone.",
        ),
        Column(id=5, name="lineno", type=_T.INTEGER, doc="Line number, from 1."),
        Column(id=6, name="func", type=_T.VARCHAR, doc="Name of the function, `<module>` at a module's top."),
        Column(
            id=7,
            name="code",
            type=_T.VARCHAR,
            nullable=True,
            doc="Text of the line without its indentation; NULL as source_file.source_text.",
        ),
        Column(
            id=8,
            name="owner",
            type=_T.VARCHAR,
            doc=(
                "Whose code it is: `user`, `framework` (TensorFlow, Keras), `library` (other installed packages, the "
                "standard library)."
            ),
        ),
    ),
)

STACK_TRACE = Table(
    name="stack_trace",
    row="One frame of one distinct stack trace, by depth.",
    key=("run_id", "stack_trace_id", "depth"),
    columns=(
        _RUN_ID,
        Column(id=2, name="stack_trace_id", type=_T.BIGINT, doc="Identifies the stack trace within the run."),
        Column(id=3, name="depth", type=_T.INTEGER, doc="0 is the innermost frame."),
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
            doc="The graph in which it was traced; NULL where that was eager code or an unrecorded graph.",
        ),
        Column(
            id=5,
            name="stack_trace_id",
            type=_T.BIGINT,
            nullable=True,
            references="stack_trace.stack_trace_id",
            doc="The Python stack that made the graph's first function; NULL where unknown.",
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
        Column(id=3, name="op_index", type=_T.BIGINT, doc="Order of creation within the graph, from 0."),
        Column(id=4, name="op_name", type=_T.VARCHAR, doc="Name, unique within the graph."),
        Column(id=5, name="op_type", type=_T.VARCHAR, doc="Type, as `MatMul`."),
        Column(id=6, name="num_outputs", type=_T.INTEGER, doc="How many output tensors it has."),
        Column(
            id=7, name="device_name", type=_T.VARCHAR, nullable=True, doc="Device asked for at creation; NULL: any."
        ),
        Column(
            id=8,
            name="attributes",
            type=_T.VARCHAR,
            nullable=True,
            doc=(
                "The op's attributes as a JSON object: name to value; a tensor is given by dtype and shape, and by "
                f"`{BAD_CONSTANT}` if it holds an infinity or a NaN, a function by name; NULL in an imported run."
            ),
        ),
        Column(
            id=9,
            name="stack_trace_id",
            type=_T.BIGINT,
            nullable=True,
            references="stack_trace.stack_trace_id",
            doc="The Python stack that created the op; NULL where no Python code did while recording.",
        ),
        *_wall_time(10, 11, "When the op was created, or first seen where that was not observed"),
        Column(
            id=12,
            name="forward_graph_id",
            type=_T.BIGINT,
            nullable=True,
            references="graph.graph_id",
            doc=(
                "The graph of forward_op_name: this one, or another where the gradient is a function apart; NULL as "
                "forward_op_name."
            ),
        ),
        Column(
            id=13,
            name="forward_op_name",
            type=_T.VARCHAR,
            nullable=True,
            references="graph_op.op_name",
            doc=(
                "The op whose gradient the op computes: the one whose gradient function made it; NULL where none did, "
                "or where its forward op is not known."
            ),
        ),
        _layer(14, "op"),
        _role(15, "op"),
    ),
)

GRAPH_OP_INPUT = Table(
    name="graph_op_input",
    row="One input of an op of a graph: a data edge, or a control edge.",
    key=("run_id", "graph_id", "op_name", "input_index", "is_control"),
    columns=(
        _RUN_ID,
        Column(id=2, name="graph_id", type=_T.BIGINT, references="graph.graph_id", doc="The graph."),
        Column(id=3, name="op_name", type=_T.VARCHAR, references="graph_op.op_name", doc="The consuming op."),
        Column(
            id=4,
            name="input_index",
            type=_T.INTEGER,
            doc="Which input, from 0; control edges are counted by themselves.",
        ),
        Column(
            id=5, name="is_control", type=_T.BOOLEAN, doc="True: the op only waits for the source, no tensor flows."
        ),
        Column(
            id=6,
            name="source_op_name",
            type=_T.VARCHAR,
            references="graph_op.op_name",
            doc="The op whose output it is.",
        ),
        Column(
            id=7,
            name="source_output_slot",
            type=_T.INTEGER,
            nullable=True,
            doc="Which of the source's outputs, from 0; NULL for a control edge.",
        ),
    ),
)

GRAPH_OP_OUTPUT = Table(
    name="graph_op_output",
    row="One output tensor of an op of a graph, as known when it was traced.",
    key=("run_id", "graph_id", "op_name", "output_slot"),
    columns=(
        _RUN_ID,
        Column(id=2, name="graph_id", type=_T.BIGINT, references="graph.graph_id", doc="The graph."),
        Column(id=3, name="op_name", type=_T.VARCHAR, references="graph_op.op_name", doc="The op."),
        Column(id=4, name="output_slot", type=_T.INTEGER, doc="Which output, from 0."),
        Column(
            id=5,
            name="dtype",
            type=_T.VARCHAR,
            nullable=True,
            doc="Dtype, by TensorFlow's name, as `float32`, `resource`; NULL where an import does not know it.",
        ),
        Column(
            id=6,
            name="static_shape",
            type=_T.BIGINT_LIST,
            nullable=True,
            doc="Dimensions, -1 where unknown; NULL for an unknown rank.",
        ),
        Column(
            id=7,
            name="is_recorded",
            type=_T.BOOLEAN,
            nullable=True,
            doc=(
                "Whether each computation of it is recorded in tensor_health; NULL where not known. What TensorFlow's "
                "optimizer fuses, folds or prunes is not computed."
            ),
        ),
        Column(
            id=8,
            name="not_recorded_reason",
            type=_T.VARCHAR,
            nullable=True,
            doc=(
                "Why not: `mode`, `dtype`, `op_regex`, `tensor_dtypes`, `op_type`, `control_flow`, `xla` (compiled, as "
                "the setting asks), `remote` (on a device of another process), `reference` (to a variable's memory, "
                "which may change meanwhile); NULL where recorded."
            ),
        ),
    ),
)

GRAPH_FUNCTION = Table(
    name="graph_function",
    row=(
        "One runtime function made of a graph (a graph can have several: forward variants, gradients of loops), or all "
        "runs of a session of graph mode that ask for the same."
    ),
    key=("run_id", "function_name"),
    columns=(
        _RUN_ID,
        Column(
            id=2,
            name="function_name",
            type=_T.VARCHAR,
            doc="Name in TensorFlow's runtime, as `__inference_step_42`: the op type of the executions that call it.",
        ),
        Column(id=3, name="graph_id", type=_T.BIGINT, references="graph.graph_id", doc="The graph it was made of."),
        Column(
            id=4,
            name="session_index",
            type=_T.INTEGER,
            nullable=True,
            doc=(
                "Where it stands for the runs of a session with the same feeds (its arguments) and fetches (its "
                "results): which session, from 0; NULL for a function."
            ),
        ),
        Column(
            id=5,
            name="session_targets",
            type=_T.VARCHAR,
            nullable=True,
            doc="JSON array of the ops that such a run was asked to run without a result; NULL for a function.",
        ),
    ),
)

GRAPH_FUNCTION_INPUT = Table(
    name="graph_function_input",
    row="One argument of a function, the Placeholder that stands for it in the graph; or what a session's run is fed.",
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
            doc="Which argument, from 0: the input_index of the call's inputs.",
        ),
        Column(id=5, name="op_name", type=_T.VARCHAR, references="graph_op.op_name", doc="The Placeholder."),
        Column(
            id=6,
            name="is_capture",
            type=_T.BOOLEAN,
            doc="Whether it is a captured tensor, not an argument of the Python function.",
        ),
        Column(
            id=7,
            name="output_slot",
            type=_T.INTEGER,
            nullable=True,
            doc=(
                "Of a session's run: which output of the op is fed, from 0; the op may be any, and does not run for "
                "it. NULL for a function."
            ),
        ),
    ),
)

GRAPH_FUNCTION_OUTPUT = Table(
    name="graph_function_output",
    row="One result of a function: the tensor of the graph that it returns.",
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
            doc="Which result, from 0: the output_slot of the calling op or execution.",
        ),
        Column(
            id=5, name="op_name", type=_T.VARCHAR, references="graph_op.op_name", doc="The op whose output is returned."
        ),
        Column(id=6, name="output_slot", type=_T.INTEGER, doc="Which of its outputs."),
    ),
)

GRAPH_CALL = Table(
    name="graph_call",
    row="One function that an op of a graph can call: the callee of a call, a branch, a loop's condition or body.",
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
            doc="Place in a list of functions; 0 where the attribute holds one.",
        ),
        Column(id=6, name="function_name", type=_T.VARCHAR, doc="The callee's runtime name."),
        Column(
            id=7,
            name="callee_graph_id",
            type=_T.BIGINT,
            nullable=True,
            references="graph.graph_id",
            doc="The callee's graph; NULL where it was not recorded.",
        ),
        Column(
            id=8,
            name="is_inline",
            type=_T.BOOLEAN,
            doc=(
                "Whether the callee runs within the caller's step (calls, branches, loops), not apart from it "
                "(functions of a data set)."
            ),
        ),
    ),
)

EXECUTED_OP = Table(
    name="executed_op",
    row=(
        "One node of a graph that TensorFlow ran, after its optimizer changed the graph; only of recordings with "
        "`graphs='executed'`."
    ),
    key=("run_id", "executed_graph_id", "node_name"),
    columns=(
        _RUN_ID,
        Column(
            id=2,
            name="executed_graph_id",
            type=_T.BIGINT,
            doc=(
                "Identifies the optimized graph within the run, from 0. It holds an outermost function and the "
                "functions that TensorFlow inlined into it."
            ),
        ),
        Column(id=3, name="node_name", type=_T.VARCHAR, doc="Name, unique within the optimized graph."),
        Column(
            id=4,
            name="op_type",
            type=_T.VARCHAR,
            doc="The type that ran, as `_FusedMatMul`: not always that of the op in graph_op.",
        ),
        Column(
            id=5,
            name="graph_id",
            type=_T.BIGINT,
            nullable=True,
            references="graph.graph_id",
            doc="The program's graph that the node comes from; NULL where that is not known.",
        ),
        Column(
            id=6,
            name="op_name",
            type=_T.VARCHAR,
            nullable=True,
            references="graph_op.op_name",
            doc=(
                "The program's op whose outputs the node computes: of a fused node the last of the ops that it "
                "computes. NULL where the optimizer made the node for none."
            ),
        ),
        Column(
            id=7,
            name="made_for",
            type=_T.VARCHAR,
            nullable=True,
            references="graph_op.op_name",
            doc=(
                "Where op_name is NULL: the op of the same graph that the node's name names, or the nearest one that "
                "is computed from it; NULL where there is none."
            ),
        ),
        Column(
            id=8,
            name="call_site",
            type=_T.VARCHAR,
            nullable=True,
            doc="Path of calling ops from the outermost graph, as tensor_health.call_site; NULL where not known.",
        ),
        Column(
            id=9,
            name="device_name",
            type=_T.VARCHAR,
            nullable=True,
            doc="The device that TensorFlow chose; NULL where it left the choice open.",
        ),
        Column(
            id=10,
            name="interface_index",
            type=_T.BIGINT,
            nullable=True,
            doc=(
                "Of an `_Arg` which argument of the outermost function it is, of a `_Retval` which result, from 0; "
                "NULL of other nodes."
            ),
        ),
        Column(
            id=11,
            name="output_dtypes",
            type=_T.VARCHAR,
            nullable=True,
            doc=(
                "The dtypes of its outputs as a JSON array of TensorFlow's names, null for a reference; NULL where not "
                "known."
            ),
        ),
    ),
)

EXECUTED_OP_INPUT = Table(
    name="executed_op_input",
    row="One input of a node of a graph that TensorFlow ran: a data edge, or a control edge.",
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
            doc="Which input, from 0: the data edges first, then the control edges.",
        ),
        Column(
            id=5,
            name="is_control",
            type=_T.BOOLEAN,
            doc="True: the node only waits for the source, no tensor flows.",
        ),
        Column(
            id=6,
            name="source_node_name",
            type=_T.VARCHAR,
            references="executed_op.node_name",
            doc="The node whose output it is.",
        ),
        Column(
            id=7,
            name="source_output_slot",
            type=_T.INTEGER,
            nullable=True,
            doc="Which of the source's outputs, from 0; NULL for a control edge.",
        ),
    ),
)

EXECUTION = Table(
    name="execution",
    row="One eager op, or one call of a function from eager code.",
    key=("run_id", "execution_index"),
    columns=(
        _RUN_ID,
        Column(
            id=2,
            name="execution_index",
            type=_T.BIGINT,
            doc="Identifies the execution within the run, in order of start.",
        ),
        Column(
            id=3,
            name="event_index",
            type=_T.BIGINT,
            doc="Its place among all events: for a call the start, before everything that runs in it.",
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
        Column(id=8, name="num_inputs", type=_T.INTEGER, doc="How many tensors went in."),
        Column(id=9, name="num_outputs", type=_T.INTEGER, doc="How many tensors come out."),
        Column(
            id=10,
            name="stack_trace_id",
            type=_T.BIGINT,
            nullable=True,
            references="stack_trace.stack_trace_id",
            doc="The Python stack that executed it; NULL where unknown.",
        ),
        Column(
            id=11,
            name="thread_id",
            type=_T.BIGINT,
            nullable=True,
            doc="The Python thread, as threading.get_ident() gives it; NULL in an imported run.",
        ),
        _step(12),
        Column(
            id=13,
            name="forward_execution_index",
            type=_T.BIGINT,
            nullable=True,
            references="execution.execution_index",
            doc=(
                "The execution whose gradient it computes: the one whose gradient function ran it; NULL where none "
                "did, or where the forward execution is not known."
            ),
        ),
        _layer(14, "execution"),
        _role(15, "execution"),
    ),
)

EXECUTION_INPUT = Table(
    name="execution_input",
    row="One tensor that went into an execution.",
    key=("run_id", "execution_index", "input_index"),
    columns=(
        _RUN_ID,
        Column(
            id=2, name="execution_index", type=_T.BIGINT, references="execution.execution_index", doc="The execution."
        ),
        Column(id=3, name="input_index", type=_T.INTEGER, doc="Which input, from 0."),
        Column(
            id=4,
            name="tensor_id",
            type=_T.BIGINT,
            doc="Identifies the eager tensor within the process; a variable is known by its handle's.",
        ),
    ),
)

EXECUTION_OUTPUT = Table(
    name="execution_output",
    row="One tensor that came out of an execution, of any dtype.",
    key=("run_id", "execution_index", "output_slot"),
    columns=(
        _RUN_ID,
        Column(
            id=2, name="execution_index", type=_T.BIGINT, references="execution.execution_index", doc="The execution."
        ),
        Column(id=3, name="output_slot", type=_T.INTEGER, doc="Which output, from 0."),
        Column(id=4, name="tensor_id", type=_T.BIGINT, doc="Identifies the eager tensor within the process."),
        Column(
            id=5,
            name="dtype",
            type=_T.VARCHAR,
            nullable=True,
            doc="Dtype, by TensorFlow's name; NULL where an import does not know it.",
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
            doc="The place of the error among all events: for a call behind everything that ran in it.",
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
        "One tensor, once computed: an output of a graph op or of an execution, or an eager tensor that came from "
        "outside."
    ),
    key=("run_id", "event_index"),
    columns=(
        _RUN_ID,
        Column(
            id=2,
            name="event_index",
            type=_T.BIGINT,
            doc="Place among all events of the process, by arrival: within a call not always the order of data flow.",
        ),
        *_wall_time(3, 4, "When the tensor was recorded"),
        Column(
            id=5,
            name="scope",
            type=_T.VARCHAR,
            doc=(
                "`graph`: an op inside a function; `execution`: an eager op or a call; `external`: an eager tensor "
                "that no recorded op made, when first used."
            ),
        ),
        Column(
            id=6,
            name="execution_index",
            type=_T.BIGINT,
            nullable=True,
            references="execution.execution_index",
            doc=(
                "The execution that made it; graph: the call in which it ran, NULL where none or not certain; "
                "external: the first user."
            ),
        ),
        Column(
            id=7,
            name="step_id",
            type=_T.BIGINT,
            nullable=True,
            doc=(
                "TensorFlow's step id: equal for all tensors of one call of an outermost function; NULL outside graphs "
                "and where the backend cannot know."
            ),
        ),
        Column(
            id=8,
            name="frame_id",
            type=_T.BIGINT,
            nullable=True,
            doc=(
                "TensorFlow's control-flow frame: tells the loops of a step apart; 0 is outside all loops; NULL as "
                "step_id."
            ),
        ),
        Column(
            id=9,
            name="iteration",
            type=_T.BIGINT,
            nullable=True,
            doc="Iteration of that frame's loop, from 0; NULL as step_id.",
        ),
        Column(
            id=10,
            name="call_site",
            type=_T.VARCHAR,
            nullable=True,
            doc=(
                "Path of calling ops from the outermost graph to the op's graph, as `while/body/_5/call_1`: an op's "
                "name, behind it what the runtime adds for a branch or a part of a loop; empty at the top; NULL as "
                "step_id."
            ),
        ),
        Column(
            id=11,
            name="graph_id",
            type=_T.BIGINT,
            nullable=True,
            references="graph.graph_id",
            doc="The graph that holds the op; NULL outside graphs.",
        ),
        Column(
            id=12,
            name="op_name",
            type=_T.VARCHAR,
            nullable=True,
            references="graph_op.op_name",
            doc=(
                "The op in that graph; where TensorFlow's optimizer made the node for no op of the program, "
                "executed_op.node_name; NULL outside graphs."
            ),
        ),
        Column(
            id=13,
            name="op_type",
            type=_T.VARCHAR,
            nullable=True,
            doc=(
                "Op type, or the function's runtime name; NULL for external. It is the type that ran, which the "
                "optimizer may have changed: executed_op.op_type."
            ),
        ),
        Column(
            id=14,
            name="output_slot",
            type=_T.INTEGER,
            nullable=True,
            doc="Which output of the op, from 0; NULL for external.",
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
            doc="The device on which it was computed; NULL where unknown.",
        ),
        Column(
            id=17,
            name="dtype",
            type=_T.VARCHAR,
            nullable=True,
            doc="Dtype, by TensorFlow's name; NULL where an import does not know it.",
        ),
        Column(
            id=18, name="rank", type=_T.INTEGER, nullable=True, doc="Number of dimensions; NULL where not measured."
        ),
        Column(id=19, name="shape", type=_T.BIGINT_LIST, nullable=True, doc="Dimensions; NULL where not measured."),
        Column(
            id=20,
            name="size",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Number of elements; NULL where not measured.",
        ),
        Column(
            id=21,
            name="has_inf_or_nan",
            type=_T.BOOLEAN,
            nullable=True,
            doc="Whether any element is infinite or NaN; NULL where not measured.",
        ),
        Column(
            id=22,
            name="num_neg_inf",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Elements that are -infinity; NULL where not measured.",
        ),
        Column(
            id=23,
            name="num_pos_inf",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Elements that are +infinity; NULL where not measured.",
        ),
        Column(
            id=24,
            name="num_nan",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Elements that are NaN; NULL where not measured.",
        ),
        Column(
            id=25,
            name="num_neg_finite",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Finite elements below zero; NULL where not measured.",
        ),
        Column(
            id=26,
            name="num_zero",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Elements that are +0 or -0; NULL where not measured.",
        ),
        Column(
            id=27,
            name="num_pos_finite",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Finite elements above zero; NULL where not measured.",
        ),
        Column(
            id=28,
            name="min_finite",
            type=_T.DOUBLE,
            nullable=True,
            doc="Least finite element; NULL where there is none, not measured, or complex.",
        ),
        Column(
            id=29, name="max_finite", type=_T.DOUBLE, nullable=True, doc="Greatest finite element; NULL as min_finite."
        ),
        Column(
            id=30,
            name="mean_finite",
            type=_T.DOUBLE,
            nullable=True,
            doc="Arithmetic mean of the finite elements; NULL as min_finite.",
        ),
        Column(
            id=31,
            name="stddev_finite",
            type=_T.DOUBLE,
            nullable=True,
            doc="Population standard deviation of the finite elements; NULL as min_finite.",
        ),
        Column(
            id=32,
            name="max_abs_finite",
            type=_T.DOUBLE,
            nullable=True,
            doc=(
                "Largest magnitude of the finite elements (of a complex one its modulus); NULL where there is none or "
                "not measured."
            ),
        ),
        Column(
            id=33,
            name="num_subnormal",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Subnormal elements; NULL where not measured.",
        ),
        _step(34),
        Column(
            id=35,
            name="is_call_inferred",
            type=_T.BOOLEAN,
            nullable=True,
            doc=(
                "Graph: whether execution_index was inferred from times and names, in an imported run; NULL where it "
                "was observed or is not known."
            ),
        ),
    ),
)

OP_DIGEST = Table(
    name="op_digest",
    row=(
        "What one op output held in one part of tensor_health, its tensors of one dtype together: extremes and sums, "
        "by which a reader can leave out what it cannot find anything in."
    ),
    key=("run_id", "part_number", "digest_index"),
    columns=(
        _RUN_ID,
        Column(
            id=2,
            name="part_number",
            type=_T.BIGINT,
            doc="Number of the part of tensor_health; the same as that of the row's own part.",
        ),
        Column(id=3, name="digest_index", type=_T.BIGINT, doc="Which row of the part's digest, from 0."),
        Column(
            id=4,
            name="graph_id",
            type=_T.BIGINT,
            nullable=True,
            references="graph.graph_id",
            doc="The graph that holds the op; NULL outside graphs.",
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
            doc="Op type, or the function's runtime name; NULL for external.",
        ),
        Column(
            id=7,
            name="output_slot",
            type=_T.INTEGER,
            nullable=True,
            doc="Which output of the op, from 0; NULL for external.",
        ),
        Column(
            id=8,
            name="dtype",
            type=_T.VARCHAR,
            nullable=True,
            doc="Dtype, by TensorFlow's name; NULL where an import does not know it.",
        ),
        Column(id=9, name="num_tensors", type=_T.BIGINT, doc="Rows of tensor_health."),
        Column(
            id=10,
            name="num_bad_tensors",
            type=_T.BIGINT,
            doc="Tensors for which has_inf_or_nan is true.",
        ),
        Column(
            id=11,
            name="min_size",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Least size; NULL where none is measured.",
        ),
        Column(
            id=12,
            name="max_size",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Greatest size; NULL as min_size.",
        ),
        Column(
            id=13,
            name="min_shape",
            type=_T.VARCHAR,
            nullable=True,
            doc="Least shape as text, as `32,64`, by the bytes; empty: a scalar; NULL where none is measured.",
        ),
        Column(id=14, name="max_shape", type=_T.VARCHAR, nullable=True, doc="Greatest of them; NULL as min_shape."),
        Column(
            id=15,
            name="max_nonzero",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Greatest size - num_zero of tensors of more than one element; NULL where there is none.",
        ),
        Column(
            id=16,
            name="max_zero_share",
            type=_T.DOUBLE,
            nullable=True,
            doc="Greatest num_zero / size; NULL where there is none.",
        ),
        Column(
            id=17,
            name="max_subnormal",
            type=_T.BIGINT,
            nullable=True,
            unit="elements",
            doc="Greatest num_subnormal; NULL where none is measured.",
        ),
        Column(
            id=18,
            name="max_magnitude",
            type=_T.DOUBLE,
            nullable=True,
            doc="Greatest max_abs_finite; NULL where there is none.",
        ),
        Column(
            id=19,
            name="num_logs",
            type=_T.BIGINT,
            doc="Tensors with max_abs_finite above 0.",
        ),
        Column(
            id=20,
            name="sum_log",
            type=_T.DOUBLE,
            nullable=True,
            doc="Sum of ln(max_abs_finite) over these; NULL where there is none.",
        ),
        Column(
            id=21,
            name="sum_log_square",
            type=_T.DOUBLE,
            nullable=True,
            doc="Sum of the squares of these logarithms; NULL as sum_log.",
        ),
        Column(
            id=22,
            name="min_square",
            type=_T.DOUBLE,
            nullable=True,
            doc=(
                "Least mean square, mean_finite * mean_finite + stddev_finite * stddev_finite, cut to the range of "
                "DOUBLE; NULL where there is none."
            ),
        ),
        Column(id=23, name="max_square", type=_T.DOUBLE, nullable=True, doc="Greatest of them; NULL as min_square."),
        Column(
            id=24,
            name="min_stddev",
            type=_T.DOUBLE,
            nullable=True,
            doc="Least stddev_finite; NULL where there is none.",
        ),
        Column(
            id=25, name="max_stddev", type=_T.DOUBLE, nullable=True, doc="Greatest stddev_finite; NULL as min_stddev."
        ),
        Column(
            id=26,
            name="min_slope",
            type=_T.DOUBLE,
            nullable=True,
            doc=(
                "Least mean of y - y * y over the elements y: mean_finite less the mean square, cut to the range of "
                "DOUBLE; NULL where there is none."
            ),
        ),
        Column(
            id=27,
            name="num_norms",
            type=_T.BIGINT,
            doc="Tensors of scope `graph` that have a mean_finite and for which has_inf_or_nan is false.",
        ),
        Column(
            id=28,
            name="min_norm",
            type=_T.DOUBLE,
            nullable=True,
            doc="Least Euclidean norm of these, the root of size times mean square, cut too; NULL where there is none.",
        ),
        Column(id=29, name="max_norm", type=_T.DOUBLE, nullable=True, doc="Greatest of them; NULL as min_norm."),
        Column(
            id=30,
            name="max_norm_jump",
            type=_T.DOUBLE,
            nullable=True,
            doc=(
                "How many times the mean of the ten of these before it in the part a norm is, at most; 0 where none "
                "has ten before it with a mean above 0; NULL where that is not known."
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
        Column(id=3, name="dtype", type=_T.VARCHAR, doc="Dtype, by TensorFlow's name."),
        Column(id=4, name="shape", type=_T.BIGINT_LIST, doc="Dimensions."),
        Column(
            id=5,
            name="value",
            type=_T.BLOB,
            doc=(
                "The elements in row-major order, little-endian, without padding; of strings first where each ends, as "
                "int64, then their bytes."
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
            doc="Place among all events: the label holds for the events after it.",
        ),
        *_wall_time(3, 4, "When the label was set"),
        Column(
            id=5,
            name="step",
            type=_T.BIGINT,
            nullable=True,
            doc="The training step in force from here on; NULL where none was given yet.",
        ),
        Column(id=6, name="label", type=_T.VARCHAR, doc="The label's name; `step` for the training step itself."),
        Column(id=7, name="value", type=_T.VARCHAR, doc="The label's value as text."),
    ),
)

CAPTURE_STAT = Table(
    name="capture_stat",
    row="Something that was not recorded, or not as asked, and why.",
    key=("run_id", "event_index", "stat", "subject"),
    columns=(
        _RUN_ID,
        Column(
            id=2,
            name="event_index",
            type=_T.BIGINT,
            doc="How many events the process had recorded when this was noted.",
        ),
        *_wall_time(3, 4, "When it was noted"),
        Column(
            id=5,
            name="stat",
            type=_T.VARCHAR,
            doc="What: `dropped`, `disabled`, `unobservable`, `failed`, `changed`, `masked`, `recovered`.",
        ),
        Column(id=6, name="subject", type=_T.VARCHAR, doc="What it happened to: an op, a function, a table, a thread."),
        Column(id=7, name="reason", type=_T.VARCHAR, doc="Why, as a sentence."),
        Column(
            id=8,
            name="num_events",
            type=_T.BIGINT,
            unit="events",
            nullable=True,
            doc="How many events it concerns; NULL where that cannot be counted.",
        ),
    ),
)

DUMP_MESSAGE = Table(
    name="dump_message",
    row=(
        "What records of an imported Debugger V2 dump hold that no other column does; records that differ only in what "
        "other columns hold share a row."
    ),
    key=("run_id", "message_id"),
    columns=(
        _RUN_ID,
        Column(id=2, name="message_id", type=_T.BIGINT, doc="Identifies the message within the run."),
        Column(
            id=3,
            name="is_whole",
            type=_T.BOOLEAN,
            doc="True: the message is the record, byte for byte. False: parts of it stand in other columns.",
        ),
        Column(
            id=4,
            name="stack_trace_id",
            type=_T.BIGINT,
            nullable=True,
            references="stack_trace.stack_trace_id",
            doc="The stack whose frame ids were taken out of the code location; NULL where none were.",
        ),
        Column(id=5, name="message", type=_T.BLOB, doc="A DebugEvent, serialised."),
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
        Column(id=3, name="record_index", type=_T.BIGINT, doc="Which record of the file, from 0."),
        Column(
            id=4,
            name="message_id",
            type=_T.BIGINT,
            references="dump_message.message_id",
            doc="What the record holds besides what follows.",
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
                "The row made of it: source_file_id, stack_frame_id, graph_id, device_id, execution_index, or a "
                "trace's event_index; NULL for others."
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
    """Returns the table of that name.

    Raises:
        KeyError: The format has no such table.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise KeyError(f"format {FORMAT_VERSION} has no table {name!r}; it has {', '.join(_BY_NAME)}") from None
