"""InputNames: names the inputs of training steps as the program does, such as `the component age` or `y`."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping

from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.outside_tensors import OutsideTensors, users_of
from tfdbg_arrow.query.recorded import Execution, TensorEvent
from tfdbg_arrow.query.stacks import library_function_names

Path = tuple[int | str, ...]
"""The indexes and keys that lead to a tensor in an element of a data set."""
Names = Mapping[Path, str]
"""The program's names for the components of an element, by their paths."""
_NAMES_OF_KERAS: Names = {(0,): "x", (1,): "y", (2,): "sample_weight"}
"""Keras's names for the components of an element of a data set."""
_PARAMETERS_ON_BATCH = {
    "predict_on_batch": ("x",),
    "test_on_batch": ("x", "y", "sample_weight"),
    "train_on_batch": ("x", "y", "sample_weight", "class_weight"),
}
"""For each Keras method that takes a batch: the parameters from which the method makes tensors."""
_STEPS_OF_KERAS = {"evaluate": "test_step", "fit": "train_step", "predict": "predict_step"}
"""For each Keras method that takes elements from a data set: the method of the model that processes one element. The
order matters, because `fit` calls `evaluate` for validation data."""
_ORDINALS = ("first", "second", "third")


class InputNames:
    """Names the inputs of the training steps of one run. The caller must hold the lock of the data flow."""

    def __init__(self, flow: DataFlow) -> None:
        self._flow = flow
        self._stacks = flow.stacks
        self._outside = OutsideTensors(flow)

    def library_functions(self, event: TensorEvent) -> set[str]:
        """Returns the library functions that called the execution of a tensor."""
        execution = self._flow.events.execution(event.execution_index)
        stack = () if execution is None else self._stacks.stack(execution.stack_trace_id)
        return library_function_names(stack)

    def of_components(self, element: TensorEvent, num_components: int) -> Names:
        """Returns the names of the components of an element: Keras's names, or those in the model's own `train_step`.

        The result is empty if the program does not name the components.

        Args:
            element: A tensor of the element.
            num_components: Number of components of the element.
        """
        functions = self.library_functions(element)
        method = next((step for taker, step in _STEPS_OF_KERAS.items() if taker in functions), None)
        if method is None:
            return {}
        # Each op of an eager step is an execution. The recording does not show which executions belong to one step.
        step_index = None if element.graph_tensor is None else element.execution_index
        own_names = [_names_in_step(step, num_components) for step in self._steps_of_user(method, step_index)]
        if not own_names:
            return _NAMES_OF_KERAS
        return own_names[0] if all(names == own_names[0] for names in own_names) else {}

    def _steps_of_user(self, method: str, execution_index: int | None) -> list[ast.FunctionDef]:
        """Returns the program's own methods that have a given name, such as `train_step`.

        Args:
            method: The name.
            execution_index: The execution whose ops the methods made; None means any execution.
        """
        steps: dict[tuple[str, int], ast.FunctionDef] = {}
        for file_path, lineno in self._stacks.user_lines(method, execution_index=execution_index):
            module = self._stacks.module(file_path)
            for node in () if module is None else ast.walk(module):
                is_step = isinstance(node, ast.FunctionDef) and node.name == method
                if isinstance(node, ast.FunctionDef) and is_step and node.lineno <= lineno <= (node.end_lineno or 0):
                    steps[file_path, node.lineno] = node
        return list(steps.values())

    def has_class_weight(self, weights: TensorEvent) -> bool:
        """Returns whether the program's text passes `class_weight`, from which Keras makes the weights of the samples.

        Args:
            weights: The weights of the samples.
        """
        execution = self._flow.events.execution(weights.execution_index)
        frames = () if execution is None else self._stacks.stack(execution.stack_trace_id)
        return any(
            keyword.arg == "class_weight"
            for frame in frames
            if frame.is_user
            for call in self._calls_at(frame.file_path, frame.lineno)
            for keyword in call.keywords
        )

    def arguments(self, execution: Execution) -> dict[int, str]:
        """Returns the name of each argument of a call, by input_index.

        The names are those of `on_batch` or, if it returns none, the names of the placeholders.
        """
        inputs = self._flow.events.execution_inputs(execution.execution_index)
        by_index = ((index, self._outside.argument_name(execution, index)) for index in inputs)
        names = {index: name for index, name in by_index if name is not None}
        is_data = list(names.values()) == ["data"]
        if is_data and "predict" in library_function_names(self._stacks.stack(execution.stack_trace_id)):
            return dict.fromkeys(names, "x")  # the user's name for this argument: a parameter of Keras's `predict`
        return self.on_batch(execution) or names

    def on_batch(self, execution: Execution) -> dict[int, str]:
        """Returns the parameter of Keras's `train_on_batch` (or a similar method) for each input, by input_index.

        Keras merges the batch into one argument `data`, so only the program's text shows the parameters. The result is
        empty for other calls, and if the text does not show the parameters.
        """
        inputs = self._flow.events.execution_inputs(execution.execution_index)
        indexes = [index for index in sorted(inputs) if self._outside.argument_name(execution, index) is not None]
        tensors = self._tensors_on_batch(execution)
        if len(tensors) != len(indexes):
            return {}
        by_index = dict(zip(indexes, tensors, strict=True))
        if not self._are_targets_outside_layers(execution, by_index):
            return {}
        return {index: _name_of(tensor) for index, tensor in by_index.items()}

    def _tensors_on_batch(self, execution: Execution) -> list[tuple[str, Path]]:
        """Returns the tensors that the program's text passes to a Keras method that takes a batch.

        Each tensor is (parameter, path of the tensor in the parameter's value).
        """
        frames = self._stacks.stack(execution.stack_trace_id)
        for frame, caller in itertools.pairwise(frames):
            method = frame.func.rpartition(".")[2]
            if frame.is_user or method not in _PARAMETERS_ON_BATCH or not caller.is_user:
                continue
            calls = [
                call
                for call in self._calls_at(caller.file_path, caller.lineno)
                if isinstance(call.func, ast.Attribute) and call.func.attr == method
            ]
            return _tensors_in(calls[0], _PARAMETERS_ON_BATCH[method]) if len(calls) == 1 else []
        return []

    def _are_targets_outside_layers(self, execution: Execution, tensors: dict[int, tuple[str, Path]]) -> bool:
        """Returns whether x is the only parameter that layers take.

        If a layer takes another parameter, the program's text was misread, for example because an argument is None.
        """
        for index, (parameter, _) in tensors.items():
            placeholder = self._flow.graphs.placeholder(execution.op_type, index)
            if parameter == "x" or placeholder is None or execution.graph_id is None:
                continue
            for graph_id, op in users_of(self._flow, execution.graph_id, placeholder):
                label = self._flow.labels.op(graph_id, op.op_name)
                if label.role == "forward" and label.layer is not None:
                    return False
        return True

    def _calls_at(self, file_path: str, lineno: int) -> Iterator[ast.Call]:
        """Yields the calls in the program's text whose lines include a given line."""
        module = self._stacks.module(file_path)
        for node in () if module is None else ast.walk(module):
            if isinstance(node, ast.Call) and node.lineno <= lineno <= (node.end_lineno or 0):
                yield node


def _tensors_in(call: ast.Call, parameters: tuple[str, ...]) -> list[tuple[str, Path]]:
    """Returns the tensors that a call passes; empty if the text of the call does not show them.

    Each tensor is (parameter, path of the tensor in the parameter's value).
    """
    if any(isinstance(value, ast.Starred) for value in call.args) or any(word.arg is None for word in call.keywords):
        return []
    values = dict(zip(parameters, call.args, strict=False))
    values |= {word.arg: word.value for word in call.keywords if word.arg in parameters}
    tensors: list[tuple[str, Path]] = []
    for parameter in parameters:
        value = values.get(parameter)
        if value is None or (isinstance(value, ast.Constant) and value.value is None):
            continue
        is_nested = isinstance(value, (ast.List, ast.Tuple)) and parameter in ("x", "y")
        if isinstance(value, ast.Dict) and parameter != "class_weight":
            keys = [key.value if isinstance(key, ast.Constant) else None for key in value.keys]
            if not all(isinstance(key, str) for key in keys):
                return []
            tensors += [(parameter, (key,)) for key in sorted(str(key) for key in keys)]
        elif is_nested and isinstance(value, (ast.List, ast.Tuple)):
            tensors += [(parameter, (index,)) for index in range(len(value.elts))]
        else:
            tensors.append((parameter, ()))
    return tensors


def _name_of(tensor: tuple[str, Path]) -> str:
    parameter, path = tensor
    return next((key for key in path if isinstance(key, str)), parameter + "".join(f"[{index}]" for index in path))


def _names_in_step(step: ast.FunctionDef, num_components: int) -> Names:
    """Returns the names of the variables into which a method such as `train_step(self, data)` unpacks its data.

    If the method passes the data on, as in `super().train_step(data)`, returns Keras's names. Otherwise, the name of a
    single component is the name of the parameter. If there are more components, the result is empty.
    """
    nodes = list(ast.walk(step))
    data = next((argument.arg for argument in step.args.args[1:2]), None)
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    if data is None or data in stored:
        return {}
    for node in nodes:
        targets = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(targets, ast.List | ast.Tuple) and _is_whole(node.value, data):
            is_padded = isinstance(node.value, ast.Call)  # Keras's function returns None for missing components
            num_targets = len(targets.elts)
            is_matching = num_targets >= num_components if is_padded else num_targets == num_components
            return dict(_targets(targets, ())) if is_matching else {}
    calls = (node.func for node in nodes if isinstance(node, ast.Call))
    if any(isinstance(function, ast.Attribute) and function.attr == step.name for function in calls):
        return _NAMES_OF_KERAS
    return {(0,): data} if num_components == 1 else {}


def _is_whole(value: ast.expr, data: str) -> bool:
    """Returns whether an expression is a given variable, or Keras's `unpack_x_y_sample_weight` of this variable."""
    if isinstance(value, ast.Call) and len(value.args) == 1:
        function = value.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
        return name == "unpack_x_y_sample_weight" and _is_whole(value.args[0], data)
    return isinstance(value, ast.Name) and value.id == data


def _targets(target: ast.expr, path: Path) -> Iterator[tuple[Path, str]]:
    """Yields (path, name) of each variable in the target of an assignment."""
    if isinstance(target, ast.Name):
        yield path, target.id
    elif isinstance(target, ast.List | ast.Tuple) and not any(isinstance(part, ast.Starred) for part in target.elts):
        for index, part in enumerate(target.elts):
            yield from _targets(part, (*path, index))


def component_name(path: Path, names: Names) -> str:
    """Returns the name of a component of a data set's element, such as `the component age` or `the second component`.

    Args:
        path: The indexes and keys that lead to the tensor.
        names: The program's names for the components.
    """
    keys = [key for key in path if isinstance(key, str)]
    if keys:
        return f"the component {keys[-1]}"
    if any(path[:end] in names for end in range(len(path), 0, -1)):
        return short_name(path, names)
    index, *inner = path
    if isinstance(index, int) and index < len(_ORDINALS) and not inner:
        return f"the {_ORDINALS[index]} component"
    return "the component " + "".join(f"[{key}]" for key in path)


def short_name(path: Path, names: Names) -> str:
    """Returns a shorter name than `component_name`, such as `age`, `x[0]` or `component 1`.

    The arguments are the same.
    """
    keys = [key for key in path if isinstance(key, str)]
    if keys:
        return keys[-1]
    named = next((end for end in range(len(path), 0, -1) if path[:end] in names), 1)
    name = names.get(path[:named], f"component {path[0]}")
    return name + "".join(f"[{key}]" for key in path[named:])
