"""The parts of a repro script that are the same in every script."""

LOAD = '''
def load(name):
    """Returns an input. For a dtype that NumPy does not have, the file has the bytes of the elements."""
    dtype, shape = INPUTS[name]
    with np.load(DATA, allow_pickle=False) as arrays:
        array = arrays[name]
    if dtype == "string":  # the end of each string as int64, then the bytes of all of them
        size = int(np.prod(shape))
        ends, texts = array[: 8 * size].view("<i8").tolist(), array[8 * size :].tobytes()
        items = [texts[start:end] for start, end in zip([0, *ends], ends)]
        return tf.constant(items, tf.string, shape) if items else tf.zeros(shape, tf.string)
    wanted = tf.as_dtype(dtype).as_numpy_dtype
    if array.dtype != wanted:
        array = np.ascontiguousarray(array).view(wanted)
    return tf.constant(array.reshape(shape))
'''

COUNT = '''
def count(tensor):
    """Returns the numbers of NaN, -Inf and +Inf in a tensor. A complex element is bad if either part is."""
    array = tensor.numpy()
    if tensor.dtype.is_complex:
        parts = array.real, array.imag
    elif tensor.dtype.is_floating:
        parts = (array.astype(np.float64),)
    else:
        return 0, 0, 0
    nan = np.any([np.isnan(part) for part in parts], axis=0)
    neg_inf = np.any([np.isneginf(part) for part in parts], axis=0) & ~nan
    pos_inf = np.any([np.isposinf(part) for part in parts], axis=0) & ~nan & ~neg_inf
    return int(np.sum(nan)), int(np.sum(neg_inf)), int(np.sum(pos_inf))


def kinds(tensor):
    """Returns the kinds of bad element in a tensor: nan, inf."""
    nan, neg_inf, pos_inf = count(tensor)
    return {kind for kind, number in (("nan", nan), ("inf", neg_inf + pos_inf)) if number}
'''

FITTING = '''
CHOSEN = {}
"""The index of the attributes with which each op gave a result as recorded."""


def first_fitting(name, call, choices, slot, dtype, shape, expected):
    """Returns the result with the first attributes with which the output is as recorded.

    The recording has no attributes of eager ops, and TensorFlow's optimizer can change those of other ops.
    """
    fitting, error = [], None
    for index, attributes in enumerate(choices):
        try:
            result = call(**attributes)
        except (tf.errors.OpError, TypeError, ValueError) as raised:
            error = error or raised
            continue
        output = tf.nest.flatten(result)[slot]
        if dtype in (None, output.dtype.name) and shape in (None, tuple(output.shape)):
            is_equal = expected is None or expected["counts"] in (None, count(output))
            is_alike = expected is None or kinds(output) & set(expected["kinds"])
            fitting.append((not is_equal, not is_alike, index, result))
            if is_equal:
                break
    if not fitting:
        raise error or AssertionError(f"{name}: no attributes give an output of the recorded shape {shape}")
    *_, index, result = min(fitting, key=lambda each: each[:3])
    CHOSEN[name] = index
    return result if tf.is_tensor(result) else tf.nest.flatten(result)
'''

NODE = '''
def run_node(op_type, inputs, **attributes):
    """Runs an op that has no function in tf.raw_ops, as a node of a graph. Returns its first output."""
    graph = tf.compat.v1.GraphDef()
    for index, tensor in enumerate(inputs):
        node = graph.node.add(name=f"x{index}", op="Placeholder")
        node.attr["dtype"].type = tensor.dtype.as_datatype_enum
    node = graph.node.add(name="node", op=op_type, input=[f"x{index}" for index in range(len(inputs))])
    for name, value in attributes.items():
        is_list = isinstance(value, list)
        target = node.attr[name].list if is_list else node.attr[name]
        for each in value if is_list else [value]:
            if isinstance(each, tf.DType):
                field, each = "type", each.as_datatype_enum
            else:
                field = {bool: "b", int: "i", float: "f", str: "s"}[type(each)]
                each = each.encode() if field == "s" else each
            if is_list:
                getattr(target, field).append(each)
            else:
                setattr(target, field, each)
    function = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(graph, name=""), [])
    feeds = [function.graph.get_tensor_by_name(f"x{index}:0") for index in range(len(inputs))]
    fetch = function.graph.get_tensor_by_name("node:0")
    return function.prune(feeds, fetch)(*inputs)
'''

CHECK_RUN = """
    before = set().union(*map(kinds, inputs))
    *earlier, (op_type, result) = run(*inputs)
    for name, tensor in earlier:
        print(f"{name}: {tensor.dtype.name} {tuple(tensor.shape)}, NaN, -Inf, +Inf: {count(tensor)}")
        before |= kinds(tensor)
    got = kinds(result)
    print(f"{op_type}: {result.dtype.name} {tuple(result.shape)}, NaN, -Inf, +Inf: {count(result)}")
    assert got & set(EXPECTED["kinds"]), f"{op_type} returned no {' or '.join(EXPECTED['kinds'])}"
    assert not EXPECTED["is_certain"] or got == set(EXPECTED["kinds"]), f"{op_type} returned {got}"
    assert not EXPECTED["is_origin"] or got - before, f"the value was bad before {op_type}"
    assert EXPECTED["counts"] in (None, count(result)), f"recorded: {EXPECTED['counts']}, now: {count(result)}"
"""

SHOW_GRADIENT = """
    for index, gradient in enumerate(gradients):
        if gradient is not None:
            gradient = tf.convert_to_tensor(gradient)
            print(f"gradient of input {index} of the forward op: NaN, -Inf, +Inf: {count(gradient)}")
"""

CHECK_GRADIENT = (
    SHOW_GRADIENT
    + """
    got = set().union(*(kinds(tf.convert_to_tensor(each)) for each in gradients if each is not None))
    assert got, "the gradients are finite"
"""
)
