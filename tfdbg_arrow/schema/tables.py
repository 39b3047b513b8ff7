"""The single declaration of every table and column of a logdir.

The Arrow schemas, the Parquet settings, spec/tables.md, spec/schema.json and DuckDB's views are built from these
objects.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tfdbg_arrow.schema.declaration import Column, Table, Type
from tfdbg_arrow.schema.version import FORMAT_VERSION

BAD_CONSTANT = "has_inf_or_nan"
"""In `graph_op.attributes`, a tensor with an infinity or a NaN has this key."""
INTEGERS = "integers"
"""In `graph_op.attributes`, a tensor of a few integers has its elements under this key."""

# Each column is a line with its ID, name and type. The description is on the next line.
# fmt: off
_BIGINT, _INTEGER, _DOUBLE, _VARCHAR, _BOOLEAN, _TIMESTAMP, _BLOB, _BIGINT_LIST = Type
_nullable = partial(Column, nullable=True)

_RUN_ID = Column(1, "run_id", _VARCHAR, "The run that wrote the row.", references="run.run_id")


def _wall_time(id_ns: int, id_timestamp: int, of: str) -> tuple[Column, Column]:
    return (
        Column(id_ns, "wall_time_ns", _BIGINT, f"{of}, in nanoseconds since 1970-01-01T00:00:00Z.", unit="ns"),
        Column(id_timestamp, "wall_time", _TIMESTAMP,
            f"{of}, as a UTC timestamp truncated to microseconds.", unit="us"),
    )


def _step(id_: int) -> Column:
    return _nullable(id_, "step", _BIGINT,
        "The training step that the last mark() before the event set; NULL before the first mark().")


def _layer(id_: int, of: str) -> Column:
    return _nullable(id_, "layer", _VARCHAR,
        f"The Keras layer or tf.Module that made the {of}. The names of nested layers are joined, beginning with the "
        "outermost layer: `encoder/dense_1`. For a gradient, this is the layer of its forward op. NULL outside layers "
        "or if unknown.")


def _role(id_: int, of: str) -> Column:
    return _nullable(id_, "role", _VARCHAR,
        f"The purpose of the {of}: `forward`, `gradient`, `optimizer`, `loss`, `metric`, or `input` (a function of "
        "a tf.data pipeline). NULL if unknown.")


def _part(id_: int, of: str) -> Column:
    return _nullable(id_, "part_stack_trace_id", _BIGINT,
        f"The Python stack that called the constructor of the object that made the {of}. The object is the innermost "
        "Keras layer, loss, metric, optimizer or other operation that was running, or an optimizer of TensorFlow 1. "
        "NULL if there was no such object, or if its constructor was called before the recording began. Also NULL for "
        "a gradient, because its forward op has the stack.",
        references="stack_trace.stack_trace_id")


RUN = Table(
    name="run",
    row="One recorded process: the program, the host, the settings, and how the recording ended.",
    key=("run_id",),
    columns=(
        replace(_RUN_ID, doc="Identifies the run. The names of its directories contain this ID.", references=None),
        *_wall_time(2, 3, "When recording started"),
        _nullable(4, "end_wall_time_ns", _BIGINT,
            "When recording ended; NULL while the process is recording, or if the recording did not end cleanly.",
            unit="ns"),
        Column(5, "is_clean_end", _BOOLEAN, "Whether the recording was closed and all events were written."),
        Column(6, "format_version", _VARCHAR, "MAJOR.MINOR of the format in which the run was recorded."),
        Column(7, "tfdbg_arrow_version", _VARCHAR, "Version of the package that wrote the run."),
        _nullable(8, "tensorflow_version", _VARCHAR, "`tf.__version__`; NULL if TensorFlow was not involved."),
        _nullable(9, "keras_version", _VARCHAR,
            "`keras.__version__`; NULL if Keras was not imported when recording started."),
        _nullable(10, "python_version", _VARCHAR,
            "Version of the Python interpreter; NULL if unknown, as for an imported dump."),
        _nullable(11, "platform", _VARCHAR,
            "Operating system and machine, as platform.platform() returns them; NULL if unknown."),
        _nullable(12, "host_name", _VARCHAR,
            "Name of the host; NULL if unknown, as for an imported dump, or if `redact` left it out."),
        _nullable(13, "pid", _BIGINT, "Process ID on the host; NULL if unknown, as for an imported dump."),
        _nullable(14, "worker", _VARCHAR,
            "Task type and index in a cluster, such as `worker:1`; NULL outside a cluster."),
        _nullable(15, "command_line", _VARCHAR,
            "`sys.orig_argv` as a JSON array; NULL if unknown, as for an imported dump, or if `redact` left it out."),
        _nullable(16, "working_directory", _VARCHAR,
            "Working directory when recording started; NULL in the same cases as command_line."),
        _nullable(17, "tensor_debug_mode", _VARCHAR,
            "The mode: NO_TENSOR, CURT_HEALTH, CONCISE_HEALTH, FULL_HEALTH, FULL_NUMERICS, SHAPE or FULL_TENSOR. NULL "
            "for an imported dump without events."),
        _nullable(18, "circular_buffer_size", _BIGINT,
            "Number of executions, and of graph tensors, that are kept: the last ones. 0 or less means that all are "
            "kept. NULL if unknown."),
        _nullable(19, "op_regex", _VARCHAR,
            "Only tensors of op types that match this regular expression were recorded; NULL means all op types."),
        _nullable(20, "tensor_dtypes", _VARCHAR,
            "The recorded dtypes, as a JSON array of names, or the name of the callable that chose the dtypes. NULL "
            "means the dtypes of the mode."),
        Column(21, "health_backend", _VARCHAR,
            "The backend that measured the tensors: `native` or `tensorflow`; `debugger_v2` for an imported dump."),
        Column(22, "settings", _VARCHAR, "All other settings of the recording, as a JSON object."),
        _nullable(23, "run_name", _VARCHAR,
            "The user's name for the run, at most 200 characters. Several runs can have the same name. NULL if the run "
            "has no name."),
        _nullable(24, "tags", _VARCHAR,
            "The user's tags, as a JSON array of at most 100 strings of at most 200 characters; NULL if there are no "
            "tags."),
        _nullable(25, "notes", _VARCHAR, "The user's notes, at most 10,000 characters; NULL if there are no notes."),
    ),
)

DEVICE = Table(
    name="device",
    row="One device on which ops ran.",
    key=("run_id", "device_id"),
    columns=(
        _RUN_ID,
        Column(2, "device_id", _BIGINT, "Identifies the device within the run."),
        Column(3, "device_name", _VARCHAR,
            "TensorFlow's full name of the device, such as `/job:localhost/replica:0/task:0/device:CPU:0`."),
    ),
)

SOURCE_FILE = Table(
    name="source_file",
    row="One source file that a stack frame refers to, with the full text that it had when it was first seen.",
    key=("run_id", "source_file_id"),
    columns=(
        _RUN_ID,
        Column(2, "source_file_id", _BIGINT, "Identifies the file within the run."),
        Column(3, "file_path", _VARCHAR,
            "The path that the interpreter used, or the path with which `redact` replaced it. For a notebook cell, a "
            "name such as `Cell In[2]`."),
        _nullable(4, "source_text", _VARCHAR,
            "The full text; NULL if the file could not be read, or if `redact` left the text out."),
    ),
)

STACK_FRAME = Table(
    name="stack_frame",
    row="One distinct frame: a line of a function in a file, and the part of the line that the frame executes.",
    key=("run_id", "stack_frame_id"),
    columns=(
        _RUN_ID,
        Column(2, "stack_frame_id", _BIGINT, "Identifies the frame within the run."),
        Column(3, "source_file_id", _BIGINT, "The file.", references="source_file.source_file_id"),
        Column(4, "file_path", _VARCHAR, "The file's path, repeated here so that frames can be read without a join."),
        Column(5, "lineno", _INTEGER, "Line number, from 1."),
        Column(6, "func", _VARCHAR, "Name of the function; `<module>` for module-level code."),
        _nullable(7, "code", _VARCHAR,
            "Text of the line without its indentation; NULL in the same cases as source_file.source_text."),
        Column(8, "owner", _VARCHAR,
            "The owner of the code: `user`, `framework` (TensorFlow, Keras), or `library` (other installed packages, "
            "the standard library)."),
        _nullable(9, "colno", _INTEGER,
            "Position in the line, from 1, of the first character of the expression that the frame executes. If the "
            "expression begins in an earlier line, this is the position of its operator, or of the name of the method "
            "that it calls. NULL if unknown, and if the owner is not `user`."),
        _nullable(10, "end_colno", _INTEGER,
            "Position in the line after the last character of the expression. If the expression continues in the next "
            "line, this is the position after the last character of the line. NULL in the same cases as colno."),
    ),
)

STACK_TRACE = Table(
    name="stack_trace",
    row="One frame of one distinct stack trace.",
    key=("run_id", "stack_trace_id", "depth"),
    columns=(
        _RUN_ID,
        Column(2, "stack_trace_id", _BIGINT, "Identifies the stack trace within the run."),
        Column(3, "depth", _INTEGER, "Depth of the frame; the innermost frame has depth 0."),
        Column(4, "stack_frame_id", _BIGINT, "The frame.", references="stack_frame.stack_frame_id"),
    ),
)

GRAPH = Table(
    name="graph",
    row="One FuncGraph: the ops traced from one Python function, branch or loop body.",
    key=("run_id", "graph_id"),
    columns=(
        _RUN_ID,
        Column(2, "graph_id", _BIGINT, "Identifies the graph within the run."),
        Column(3, "graph_name", _VARCHAR, "FuncGraph.name: usually the Python function's name."),
        _nullable(4, "outer_graph_id", _BIGINT,
            "The graph in which this graph was traced; NULL if it was traced in eager code or in an unrecorded graph.",
            references="graph.graph_id"),
        _nullable(5, "stack_trace_id", _BIGINT,
            "The Python stack that made the graph's first function; NULL if unknown.",
            references="stack_trace.stack_trace_id"),
        *_wall_time(6, 7, "When the graph was first made into a function"),
    ),
)

GRAPH_OP = Table(
    name="graph_op",
    row="One op created in a graph.",
    key=("run_id", "graph_id", "op_name"),
    columns=(
        _RUN_ID,
        Column(2, "graph_id", _BIGINT, "The graph.", references="graph.graph_id"),
        Column(3, "op_index", _BIGINT, "Position in the graph's order of creation, from 0."),
        Column(4, "op_name", _VARCHAR, "Name, unique within the graph."),
        Column(5, "op_type", _VARCHAR, "Type, such as `MatMul`."),
        Column(6, "num_outputs", _INTEGER,
            "Number of output tensors when the op was created. If TensorFlow replaces a call for its gradient, the new "
            "call has more outputs, and tensor_health can have rows for these outputs."),
        _nullable(7, "device_name", _VARCHAR, "Device requested when the op was created; NULL means any device."),
        _nullable(8, "attributes", _VARCHAR,
            "The op's attributes as a JSON object from name to value. A dtype is given by its number in TensorFlow's "
            "enum DataType, such as 1 for float32. A tensor is given by its dtype and shape. If the tensor has an "
            f"infinity or a NaN, it also has the key `{BAD_CONSTANT}`. A tensor of int32 or int64 with at most 8 "
            f"elements also has the key `{INTEGERS}`: its elements in row-major order. A function is given by its "
            "name. NULL in an imported run."),
        _nullable(9, "stack_trace_id", _BIGINT,
            "The Python stack that created the op; NULL if no Python code created it during the recording.",
            references="stack_trace.stack_trace_id"),
        *_wall_time(10, 11, "When the op was created, or first seen if its creation was not observed"),
        _nullable(12, "forward_graph_id", _BIGINT,
            "The graph that contains forward_op_name: this graph or, if the gradient is a separate function, another "
            "graph. NULL if forward_op_name is NULL.",
            references="graph.graph_id"),
        _nullable(13, "forward_op_name", _VARCHAR,
            "The forward op: the op whose gradient function created this op. NULL if no gradient function created this "
            "op, or if the forward op is unknown.",
            references="graph_op.op_name"),
        _layer(14, "op"),
        _role(15, "op"),
        _part(16, "op"),
    ),
)

GRAPH_OP_INPUT = Table(
    name="graph_op_input",
    row="One input of an op of a graph: a data edge or a control edge.",
    key=("run_id", "graph_id", "op_name", "input_index", "is_control"),
    columns=(
        _RUN_ID,
        Column(2, "graph_id", _BIGINT, "The graph.", references="graph.graph_id"),
        Column(3, "op_name", _VARCHAR, "The consuming op.", references="graph_op.op_name"),
        Column(4, "input_index", _INTEGER, "Index of the input, from 0. Control edges are numbered separately."),
        Column(5, "is_control", _BOOLEAN, "True if the op only waits for the source, and no tensor flows."),
        Column(6, "source_op_name", _VARCHAR, "The op that produces the input.", references="graph_op.op_name"),
        _nullable(7, "source_output_slot", _INTEGER, "Index of the source's output, from 0; NULL for a control edge."),
    ),
)

GRAPH_OP_OUTPUT = Table(
    name="graph_op_output",
    row="One output tensor of an op of a graph, with the facts that were known at tracing.",
    key=("run_id", "graph_id", "op_name", "output_slot"),
    columns=(
        _RUN_ID,
        Column(2, "graph_id", _BIGINT, "The graph.", references="graph.graph_id"),
        Column(3, "op_name", _VARCHAR, "The op.", references="graph_op.op_name"),
        Column(4, "output_slot", _INTEGER, "Index of the output, from 0."),
        _nullable(5, "dtype", _VARCHAR,
            "TensorFlow's name of the dtype, such as `float32` or `resource`; NULL if unknown, as for an imported "
            "dump."),
        _nullable(6, "static_shape", _BIGINT_LIST,
            "Dimensions; -1 stands for an unknown dimension. NULL if the rank is unknown."),
        _nullable(7, "is_recorded", _BOOLEAN,
            "Whether tensor_health has a row for each time the output is computed; NULL if unknown. Outputs that "
            "TensorFlow's optimizer fuses, folds or prunes are not computed."),
        _nullable(8, "not_recorded_reason", _VARCHAR,
            "Why the output is not recorded: `mode`, `dtype`, `op_regex`, `tensor_dtypes`, `op_type`, `control_flow`, "
            "`xla` (the function is compiled, as requested), `remote` (the op runs on a device of another process), or "
            "`reference` (the output refers to a variable's memory, which can change before it is read). NULL if the "
            "output is recorded."),
    ),
)

GRAPH_FUNCTION = Table(
    name="graph_function",
    row=(
        "One runtime function made from a graph, or all runs of a graph-mode session with the same feeds, fetches and "
        "targets. A graph can have several functions, such as variants for gradients."
    ),
    key=("run_id", "function_name"),
    columns=(
        _RUN_ID,
        Column(2, "function_name", _VARCHAR,
            "Name in TensorFlow's runtime, such as `__inference_step_42`. Executions that call the function have this "
            "name as op_type."),
        Column(3, "graph_id", _BIGINT, "The graph that the function was made from.", references="graph.graph_id"),
        _nullable(4, "session_index", _INTEGER,
            "For session runs, the index of the session, from 0; the feeds are the arguments, and the fetches are the "
            "results. NULL for a function."),
        _nullable(5, "session_targets", _VARCHAR,
            "For session runs, a JSON array of the ops that a run executes without fetching a result. NULL for a "
            "function."),
    ),
)

GRAPH_FUNCTION_INPUT = Table(
    name="graph_function_input",
    row="One argument of a function with its Placeholder in the graph, or one feed of a session run.",
    key=("run_id", "function_name", "input_index"),
    columns=(
        _RUN_ID,
        Column(2, "function_name", _VARCHAR, "The function.", references="graph_function.function_name"),
        Column(3, "graph_id", _BIGINT, "The function's graph.", references="graph.graph_id"),
        Column(4, "input_index", _INTEGER,
            "Index of the argument, from 0; equal to the input_index of the call's input."),
        Column(5, "op_name", _VARCHAR, "The Placeholder; for a session run, the op that is fed.",
            references="graph_op.op_name"),
        Column(6, "is_capture", _BOOLEAN,
            "True for a captured tensor, false for an argument of the Python function."),
        _nullable(7, "output_slot", _INTEGER,
            "For a session run, the index of the fed output, from 0. Every op can be fed. If an op is fed, the run "
            "does not execute the op. NULL for a function."),
    ),
)

GRAPH_FUNCTION_OUTPUT = Table(
    name="graph_function_output",
    row="One result of a function, and the tensor of the graph that is this result.",
    key=("run_id", "function_name", "output_index"),
    columns=(
        _RUN_ID,
        Column(2, "function_name", _VARCHAR, "The function.", references="graph_function.function_name"),
        Column(3, "graph_id", _BIGINT, "The function's graph.", references="graph.graph_id"),
        Column(4, "output_index", _INTEGER,
            "Index of the result, from 0; equal to the output_slot of the calling op or execution."),
        Column(5, "op_name", _VARCHAR, "The op whose output is the result.", references="graph_op.op_name"),
        Column(6, "output_slot", _INTEGER, "Index of this output of the op."),
    ),
)

GRAPH_CALL = Table(
    name="graph_call",
    row="One function that an op of a graph can call: a called function, a branch, or the condition or body of a loop.",
    key=("run_id", "graph_id", "op_name", "attribute", "branch_index"),
    columns=(
        _RUN_ID,
        Column(2, "graph_id", _BIGINT, "The calling graph.", references="graph.graph_id"),
        Column(3, "op_name", _VARCHAR, "The calling op.", references="graph_op.op_name"),
        Column(4, "attribute", _VARCHAR,
            "The attribute that names the function: `f`, `then_branch`, `else_branch`, `cond`, `body`, `branches`, "
            "and so on."),
        Column(5, "branch_index", _INTEGER,
            "Index in a list of functions; 0 if the attribute has a single function."),
        Column(6, "function_name", _VARCHAR,
            "The callee's runtime name when the op was created. To compute a gradient, TensorFlow may instead call "
            "another function of the same graph that has more arguments and results."),
        _nullable(7, "callee_graph_id", _BIGINT,
            "The callee's graph; NULL if the graph was not recorded.", references="graph.graph_id"),
        Column(8, "is_inline", _BOOLEAN,
            "True if the callee runs within the caller's step, as in calls, branches and loops. False if it runs "
            "separately, as the functions of a data set do."),
    ),
)

EXECUTED_OP = Table(
    name="executed_op",
    row=(
        "One node of a graph that TensorFlow's optimizer changed and that TensorFlow then executed. Recordings with "
        "`graphs='executed'` have rows. Recordings with `graphs='traced'` can have rows."
    ),
    key=("run_id", "executed_graph_id", "node_name"),
    columns=(
        _RUN_ID,
        Column(2, "executed_graph_id", _BIGINT,
            "Identifies the optimized graph within the run, from 0. The graph consists of an outermost function and "
            "the functions that TensorFlow inlined into it."),
        Column(3, "node_name", _VARCHAR, "Name, unique within the optimized graph."),
        Column(4, "op_type", _VARCHAR,
            "The op type that ran, such as `_FusedMatMul`. It can differ from the type in graph_op."),
        _nullable(5, "graph_id", _BIGINT,
            "The program's graph that the node comes from; NULL if unknown.", references="graph.graph_id"),
        _nullable(6, "op_name", _VARCHAR,
            "The program's op whose outputs the node computes. A fused node computes several ops; this is the last of "
            "them. NULL if the optimizer added the node and the node computes no op of the program.",
            references="graph_op.op_name"),
        _nullable(7, "made_for", _VARCHAR,
            "If op_name is NULL, the op of the same graph whose name is in the node's name or, if there is no such op, "
            "the nearest op that is computed from the node. NULL if there is neither.",
            references="graph_op.op_name"),
        _nullable(8, "call_site", _VARCHAR,
            "Path of calling ops from the outermost graph, as in tensor_health.call_site; NULL if unknown."),
        _nullable(9, "device_name", _VARCHAR, "The device that TensorFlow chose; NULL if TensorFlow chose no device."),
        _nullable(10, "interface_index", _BIGINT,
            "For an `_Arg` node, the index of the outermost function's argument, from 0; for a `_Retval` node, the "
            "index of its result. NULL for other nodes."),
        _nullable(11, "output_dtypes", _VARCHAR,
            "The dtypes of the node's outputs, as a JSON array of TensorFlow's names. A reference is null in the "
            "array. NULL if unknown."),
    ),
)

EXECUTED_OP_INPUT = Table(
    name="executed_op_input",
    row="One input of a node of a graph that TensorFlow executed: a data edge or a control edge.",
    key=("run_id", "executed_graph_id", "node_name", "input_index"),
    columns=(
        _RUN_ID,
        Column(2, "executed_graph_id", _BIGINT, "The optimized graph.", references="executed_op.executed_graph_id"),
        Column(3, "node_name", _VARCHAR, "The consuming node.", references="executed_op.node_name"),
        Column(4, "input_index", _INTEGER,
            "Index of the input, from 0. The data edges come first, then the control edges."),
        Column(5, "is_control", _BOOLEAN, "True if the node only waits for the source, and no tensor flows."),
        Column(6, "source_node_name", _VARCHAR,
            "The node that produces the input.", references="executed_op.node_name"),
        _nullable(7, "source_output_slot", _INTEGER, "Index of the source's output, from 0; NULL for a control edge."),
    ),
)

EXECUTION = Table(
    name="execution",
    row="One eager op or one call of a function from eager code.",
    key=("run_id", "execution_index"),
    columns=(
        _RUN_ID,
        Column(2, "execution_index", _BIGINT,
            "Identifies the execution within the run. Executions are numbered in the order in which they start."),
        Column(3, "event_index", _BIGINT,
            "Position among all events. The event of a call is its start, so it comes before all events in the call."),
        *_wall_time(4, 5, "When the event was recorded"),
        Column(6, "op_type", _VARCHAR, "Op type, or the function's runtime name."),
        _nullable(7, "graph_id", _BIGINT,
            "The called function's graph; NULL for an op and for an unrecorded function.", references="graph.graph_id"),
        Column(8, "num_inputs", _INTEGER, "Number of input tensors."),
        Column(9, "num_outputs", _INTEGER, "Number of output tensors."),
        _nullable(10, "stack_trace_id", _BIGINT,
            "The Python stack of the execution; NULL if unknown.", references="stack_trace.stack_trace_id"),
        _nullable(11, "thread_id", _BIGINT,
            "The Python thread, as returned by threading.get_ident(); NULL in an imported run."),
        _step(12),
        _nullable(13, "forward_execution_index", _BIGINT,
            "The forward execution: the execution whose gradient function ran this one. NULL if no gradient function "
            "ran this execution, or if the forward execution is unknown.",
            references="execution.execution_index"),
        _layer(14, "execution"),
        _role(15, "execution"),
        _part(16, "execution"),
    ),
)

EXECUTION_INPUT = Table(
    name="execution_input",
    row="One input tensor of an execution.",
    key=("run_id", "execution_index", "input_index"),
    columns=(
        _RUN_ID,
        Column(2, "execution_index", _BIGINT, "The execution.", references="execution.execution_index"),
        Column(3, "input_index", _INTEGER, "Index of the input, from 0."),
        Column(4, "tensor_id", _BIGINT,
            "Identifies the eager tensor within the process. For a variable, this is the ID of its handle."),
    ),
)

EXECUTION_OUTPUT = Table(
    name="execution_output",
    row="One output tensor of an execution, of any dtype.",
    key=("run_id", "execution_index", "output_slot"),
    columns=(
        _RUN_ID,
        Column(2, "execution_index", _BIGINT, "The execution.", references="execution.execution_index"),
        Column(3, "output_slot", _INTEGER, "Index of the output, from 0."),
        Column(4, "tensor_id", _BIGINT, "Identifies the eager tensor within the process."),
        _nullable(5, "dtype", _VARCHAR, "TensorFlow's name of the dtype; NULL if unknown, as for an imported dump."),
    ),
)

DATA_SET = Table(
    name="data_set",
    row="One tf.data data set in eager code that an iterator was made from, or that was made from tensors.",
    key=("run_id", "tensor_id"),
    columns=(
        _RUN_ID,
        Column(2, "tensor_id", _BIGINT, "The data set: the tensor_id in execution_output of the op that made it."),
        Column(3, "is_deterministic", _BOOLEAN,
            "False if the order of the elements can differ from run to run, because the program set "
            "`deterministic=False`. Shuffling does not count."),
        _nullable(4, "component_paths", _VARCHAR,
            "A JSON array of one path for each tensor of an element, such as `[[0, \"age\"], [1]]`. A path consists of "
            "the indexes and keys that lead to the tensor. The order is that of the outputs of an op that gets an "
            "element, and of the inputs of an op that makes the data set from tensors. NULL if the elements are flat "
            "tuples; the path to each tensor is then its index."),
    ),
)

EXECUTION_ERROR = Table(
    name="execution_error",
    row="One execution that raised an error.",
    key=("run_id", "execution_index"),
    columns=(
        _RUN_ID,
        Column(2, "execution_index", _BIGINT, "The execution.", references="execution.execution_index"),
        Column(3, "event_index", _BIGINT,
            "Position of the error among all events. The error of a call comes after all events in the call."),
        *_wall_time(4, 5, "When the error was recorded"),
        Column(6, "error_type", _VARCHAR, "Name of the error's Python class, such as InvalidArgumentError."),
    ),
)

TENSOR_HEALTH = Table(
    name="tensor_health",
    row=(
        "One computation of a tensor. The tensor is an output of a graph op or of an execution, or an eager tensor "
        "that came from outside."
    ),
    key=("run_id", "event_index"),
    columns=(
        _RUN_ID,
        Column(2, "event_index", _BIGINT,
            "Position among all events of the process, by arrival. Within a call, this order can differ from the data "
            "flow."),
        *_wall_time(3, 4, "When the tensor was recorded"),
        Column(5, "scope", _VARCHAR,
            "`graph` for an output of an op inside a function, `execution` for an output of an eager op or a call, "
            "`external` for the first use of an eager tensor that no recorded op made."),
        _nullable(6, "execution_index", _BIGINT,
            "The execution that made the tensor. For `graph`, this is the call in which the op ran; NULL if there is "
            "no such call or if it is uncertain. For `external`, this is the first execution that used the tensor. A "
            "function of a tf.data pipeline runs in its own step, usually with NULL.",
            references="execution.execution_index"),
        _nullable(7, "step_id", _BIGINT,
            "TensorFlow's step ID. All tensors of one call of an outermost function have the same ID. NULL outside "
            "graphs, or if the backend cannot determine the ID."),
        _nullable(8, "frame_id", _BIGINT,
            "TensorFlow's control-flow frame, which distinguishes the loops of a step; 0 outside all loops. NULL in "
            "the same cases as step_id. The callee of a call or a branch has the caller's frame. The frame of an inner "
            "loop does not say in which iteration of the outer loop the frame began."),
        _nullable(9, "iteration", _BIGINT,
            "Iteration of the frame's loop, from 0. The condition of a loop has one more iteration than the body. NULL "
            "in the same cases as step_id."),
        _nullable(10, "call_site", _VARCHAR,
            "Path of calling ops from the outermost graph to the op's graph, such as `while/body/_5/call_1`. The path "
            "has the name of each calling op. For a branch or a part of a loop, the runtime's suffix follows the name. "
            "Empty in the outermost graph. NULL in the same cases as step_id."),
        _nullable(11, "graph_id", _BIGINT,
            "The graph that contains the op; NULL outside graphs.", references="graph.graph_id"),
        _nullable(12, "op_name", _VARCHAR,
            "The op in the graph. If TensorFlow's optimizer added a node that computes no op of the program, this is "
            "executed_op.node_name. NULL outside graphs.",
            references="graph_op.op_name"),
        _nullable(13, "op_type", _VARCHAR,
            "The op type that ran, or the function's runtime name; NULL for `external`. TensorFlow's optimizer may "
            "have changed the type (see executed_op.op_type)."),
        _nullable(14, "output_slot", _INTEGER, "Index of the op's output, from 0; NULL for `external`."),
        _nullable(15, "tensor_id", _BIGINT, "Identifies the eager tensor; NULL in graphs."),
        _nullable(16, "device_id", _BIGINT,
            "The device on which the tensor was computed; NULL if unknown.", references="device.device_id"),
        _nullable(17, "dtype", _VARCHAR, "TensorFlow's name of the dtype; NULL if unknown, as for an imported dump."),
        _nullable(18, "rank", _INTEGER, "Number of dimensions; NULL if not measured."),
        _nullable(19, "shape", _BIGINT_LIST, "Dimensions; NULL if not measured."),
        _nullable(20, "size", _BIGINT, "Number of elements; NULL if not measured.", unit="elements"),
        _nullable(21, "has_inf_or_nan", _BOOLEAN, "Whether any element is infinite or NaN; NULL if not measured."),
        _nullable(22, "num_neg_inf", _BIGINT,
            "Number of elements that are -infinity; NULL if not measured.", unit="elements"),
        _nullable(23, "num_pos_inf", _BIGINT,
            "Number of elements that are +infinity; NULL if not measured.", unit="elements"),
        _nullable(24, "num_nan", _BIGINT, "Number of elements that are NaN; NULL if not measured.", unit="elements"),
        _nullable(25, "num_neg_finite", _BIGINT,
            "Number of finite elements below zero; NULL if not measured.", unit="elements"),
        _nullable(26, "num_zero", _BIGINT,
            "Number of elements that are +0 or -0. If an accelerator counted the elements, subnormal elements may "
            "count as zeros. NULL if not measured.",
            unit="elements"),
        _nullable(27, "num_pos_finite", _BIGINT,
            "Number of finite elements above zero; NULL if not measured.", unit="elements"),
        _nullable(28, "min_finite", _DOUBLE,
            "Smallest finite element; NULL if no element is finite, if not measured, or for complex dtypes."),
        _nullable(29, "max_finite", _DOUBLE, "Largest finite element; NULL in the same cases as min_finite."),
        _nullable(30, "mean_finite", _DOUBLE,
            "Arithmetic mean of the finite elements; NULL in the same cases as min_finite."),
        _nullable(31, "stddev_finite", _DOUBLE,
            "Population standard deviation of the finite elements; NULL in the same cases as min_finite."),
        _nullable(32, "max_abs_finite", _DOUBLE,
            "Largest magnitude of the finite elements. The magnitude of a complex element is its modulus. NULL if no "
            "element is finite, or if not measured."),
        _nullable(33, "num_subnormal", _BIGINT,
            "Number of elements that are subnormal; NULL if not measured.", unit="elements"),
        _step(34),
        _nullable(35, "is_call_inferred", _BOOLEAN,
            "In an imported run, true if the execution_index of a `graph` row was inferred from times and names. NULL "
            "if the execution_index was observed or is unknown."),
        _nullable(36, "histogram_exponent", _INTEGER,
            "Exponent of the first bucket of the histogram. Bucket i of both lists counts the elements with magnitudes "
            "from 2^(histogram_exponent + i) up to, but not including, the next power of two. NULL if all finite "
            "elements are zero, or if not measured."),
        _nullable(37, "histogram_negative", _BIGINT_LIST,
            "Number of finite elements below zero in each bucket. The sum is num_neg_finite. Empty if "
            "histogram_exponent is NULL; NULL if not measured."),
        _nullable(38, "histogram_positive", _BIGINT_LIST,
            "Number of finite elements above zero in each bucket. The sum is num_pos_finite. The list is as long as "
            "histogram_negative. NULL if not measured."),
        _nullable(39, "executed_graph_id", _BIGINT,
            "The optimized graph in which the op ran; NULL outside graphs, in an imported run, and inside XLA.",
            references="executed_op.executed_graph_id"),
        _nullable(40, "first_bad_index", _BIGINT,
            "Index of the first element that is infinite or NaN, from 0, in row-major order; NULL if no element is "
            "infinite or NaN, or if not measured."),
        _nullable(41, "num_bad_slices", _BIGINT,
            "Number of slices along the first axis that have an infinite or NaN element. In a batch, this is the "
            "number of bad samples. NULL for a scalar, if no element is bad, or if not measured.", unit="slices"),
        _nullable(42, "scalar_value", _DOUBLE,
            "The element of a tensor with one element of a real floating-point dtype. The element can be infinite or "
            "NaN; -0 becomes 0. NULL for other tensors, if the mode reads no elements, or if the value is not known."),
    ),
)

TENSOR_VALUE = Table(
    name="tensor_value",
    row="The elements of one recorded tensor.",
    key=("run_id", "event_index"),
    columns=(
        _RUN_ID,
        Column(2, "event_index", _BIGINT, "The tensor, as a row of tensor_health.",
            references="tensor_health.event_index"),
        Column(3, "dtype", _VARCHAR, "TensorFlow's name of the dtype."),
        Column(4, "shape", _BIGINT_LIST, "Dimensions."),
        Column(5, "value", _BLOB,
            "The elements in row-major order, little-endian, without padding. For strings, the end offset of each "
            "string as int64, then the bytes of all strings."),
    ),
)

INPUT_VALUE = Table(
    name="input_value",
    row="The elements of one input of an op that made a bad value from healthy inputs.",
    key=("run_id", "event_index", "input_index"),
    columns=(
        _RUN_ID,
        Column(2, "event_index", _BIGINT, "The bad output of the op, as a row of tensor_health.",
            references="tensor_health.event_index"),
        Column(3, "input_index", _INTEGER,
            "Index of the input among the inputs of the op that ran, from 0. It is the input_index in "
            "executed_op_input, graph_op_input or execution_input."),
        Column(4, "dtype", _VARCHAR, "TensorFlow's name of the dtype."),
        Column(5, "shape", _BIGINT_LIST, "Dimensions."),
        Column(6, "value", _BLOB, "The elements, as in tensor_value."),
    ),
)

STEP_INPUT = Table(
    name="step_input",
    row="The elements of one input of a training step in which a tensor was bad.",
    key=("run_id", "event_index"),
    columns=(
        _RUN_ID,
        Column(2, "event_index", _BIGINT, "Position among all events."),
        _nullable(3, "tensor_id", _BIGINT,
            "The eager tensor. A call took it as an argument or a feed, or an eager op took it from a data set or from "
            "outside. NULL for a component that a graph took from a data set."),
        _nullable(4, "step_id", _BIGINT, "As in tensor_health; NULL for an eager tensor."),
        _nullable(5, "frame_id", _BIGINT, "As in tensor_health; NULL for an eager tensor."),
        _nullable(6, "iteration", _BIGINT, "As in tensor_health; NULL for an eager tensor."),
        _nullable(7, "graph_id", _BIGINT, "The graph that took the component; NULL for an eager tensor.",
            references="graph.graph_id"),
        _nullable(8, "op_name", _VARCHAR, "The op that took the component; NULL for an eager tensor."),
        _nullable(9, "output_slot", _INTEGER, "Index of the component, from 0; NULL for an eager tensor."),
        Column(10, "dtype", _VARCHAR, "TensorFlow's name of the dtype."),
        Column(11, "shape", _BIGINT_LIST, "Dimensions."),
        Column(12, "value", _BLOB, "The elements, as in tensor_value."),
    ),
)

MARK = Table(
    name="mark",
    row="One label that the program set with mark(), such as a training step or an epoch.",
    key=("run_id", "event_index", "label", "wall_time_ns"),
    columns=(
        _RUN_ID,
        Column(2, "event_index", _BIGINT,
            "Position among all events. The label applies to the events from this position on."),
        *_wall_time(3, 4, "When the label was set"),
        _nullable(5, "step", _BIGINT,
            "The training step of the events that follow; NULL if no training step has been set yet."),
        Column(6, "label", _VARCHAR, "The label's name; `step` for the training step itself."),
        Column(7, "value", _VARCHAR, "The label's value as text."),
    ),
)

CAPTURE_STAT = Table(
    name="capture_stat",
    row="Something that was not recorded, or was recorded in another way than requested, with the reason.",
    key=("run_id", "event_index", "stat", "subject"),
    columns=(
        _RUN_ID,
        Column(2, "event_index", _BIGINT, "Number of events that the process had recorded when the row was made."),
        *_wall_time(3, 4, "When the row was made"),
        Column(5, "stat", _VARCHAR,
            "What happened: `dropped`, `disabled`, `unobservable`, `failed`, `changed`, `unchanged`, `unkept`, "
            "`masked` or `recovered`."),
        Column(6, "subject", _VARCHAR, "What was affected, such as an op, a function or a table."),
        Column(7, "reason", _VARCHAR, "The reason, as a sentence."),
        _nullable(8, "num_events", _BIGINT,
            "Number of affected events; NULL if the events cannot be counted.", unit="events"),
        _nullable(9, "reason_code", _VARCHAR,
            "The kind of the reason: `spool_full`, `input_budget`, `circular_buffer`, `max_bytes`, `schedule`, "
            "`store_unreachable`, `upload_waits`, `parts_unwritable`, `traced_before`, `xla_kept`, "
            "`xla_refused`, `xla_left_out`, `ran_without_xla`, `other_devices`, `other_process` or "
            "`forked`. NULL for any other reason."),
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
    DATA_SET,
    EXECUTION_ERROR,
    TENSOR_HEALTH,
    TENSOR_VALUE,
    INPUT_VALUE,
    STEP_INPUT,
    MARK,
    CAPTURE_STAT,
)
"""All tables of a logdir, in the order of the specification."""

TABLES_BY_NAME = {table_.name: table_ for table_ in TABLES}


def table(name: str) -> Table:
    """Returns the table with the given name.

    Raises:
        KeyError: The format has no such table.
    """
    try:
        return TABLES_BY_NAME[name]
    except KeyError:
        raise KeyError(f"format {FORMAT_VERSION} has no table {name!r}; it has {', '.join(TABLES_BY_NAME)}") from None
