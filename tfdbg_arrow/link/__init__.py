"""link: turns a recorded run into its data flow: the tensors from which each tensor was computed.

`linked_run.LinkedRun` reads the tables of a run, and gives the inputs of any set of tensors. ARCHITECTURE.md explains
how.
"""

LINKED_TABLES = (
    "run", "graph_function", "graph_function_input", "graph_function_output", "graph_op", "graph_op_input",
    "graph_op_output", "graph_call", "executed_op", "executed_op_input", "execution", "execution_input",
    "execution_output", "tensor_health",
)  # fmt: skip
"""The tables that a linked run reads."""
