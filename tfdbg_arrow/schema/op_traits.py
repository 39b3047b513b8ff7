"""The traits of op types: what an op of each type does. All packages use these facts.

A trait is one fact about an op, such as that the output equals an input, or that the op is at the border of a loop. A
trait does not say what a package concludes from this fact.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, auto
from types import MappingProxyType


class Trait(Flag):
    """What an op does.

    Attributes:
        EQUAL: Each output equals the first input. For IdentityN, each output equals the input with the same index.
        RESHAPED: The output has the elements of the first input, in another shape or order.
        CARRIES: Each element of the outputs is a constant, or an element of an input, or an element of a tensor that
            the op takes from a list or store. The op computes nothing from the elements.
        TESTS: The output says something about the input, such as whether the input is finite, or its shape. The output
            has no elements of an input, unless the op is also EQUAL. Such an op raises an error or writes a text.
        FINDS_BAD: The output says for each element of the input whether the element is bad.
        COMPARES: The output says whether elements are equal. If an input is compared with itself, the output shows
            which elements are NaN.
        OF_SHAPE: The output depends only on the shape of the input.
        SHARES_MEMORY: The output can use the memory of an input.
        OWN_MEMORY: The output never uses the memory of an input that is still in use elsewhere.
        CAN_FAIL: The op is EQUAL, but it fails for some elements or shapes.
        STANDS_FOR_CALL: TensorFlow uses the op to replace the borders of a call.
        ENTERS: The op passes a tensor into a loop.
        EXITS: The op passes a tensor out of a loop.
        NEXT: The op passes a tensor to the next iteration of a loop.
        SWITCHES: The op passes a tensor to one of several branches, or into the body of a loop.
        MERGES: The op passes on the only input that was computed.
        DECIDES: The op passes on the boolean that decides whether a loop has another iteration.
        ARGUMENT, RESULT: The op is an argument or a result of the outermost function that TensorFlow runs.
        SENDS: The op sends a tensor to another device or process, or receives a tensor from there.
        ORDERS: The op has no tensors, and only orders other ops.
        CALLS: The op runs a function.
        BRANCHES: The op runs one of several functions.
        LOOPS: The op runs functions repeatedly.
        FED: The program must feed the output to a run of a session that uses it.
        HAS_DEFAULT: The program can feed the output. Otherwise, the output equals the input.
        HOLDS_REFERENCE: The output is a reference to the memory of a variable.
        MAKES_HANDLE: The output is the handle of a variable.
        READS: The output is the content of the variable that the op takes.
        READS_PART: The output is a part of the content of the variable that the op takes.
        GETS_ELEMENT: The outputs are the components of an element of a tf.data pipeline.
        KEEPS_FINITE: The output is finite if all inputs are finite.
        IS_SINGULAR: The op can make bad values even of small numbers. In contrast, an op such as Mul makes bad values
            only of very large numbers.
        DIVIDES: The output is the first input divided by the second input.
        DIVIDES_ONE: The output is one divided by the input.
        ELEMENTWISE: The inputs are broadcast to one shape. Each element of the output is computed from the elements at
            the same index in the inputs.
        KEEPS_SLICES: Slice i of the output along the first axis is computed from slice i of the first input, and from
            all other inputs. This is only true for tensors with two or more axes. For a product, it is only true if the
            first input is not transposed.
        MULTIPLIES_MATRICES: The output is the product of matrices. The matrices are the last two axes of the two
            inputs.
        ASKS_RESOURCE: The op takes a resource, but neither reads the content of the resource nor writes to it.
    """

    EQUAL = auto()
    RESHAPED = auto()
    CARRIES = auto()
    TESTS = auto()
    FINDS_BAD = auto()
    COMPARES = auto()
    OF_SHAPE = auto()
    SHARES_MEMORY = auto()
    OWN_MEMORY = auto()
    CAN_FAIL = auto()
    STANDS_FOR_CALL = auto()
    ENTERS = auto()
    EXITS = auto()
    NEXT = auto()
    SWITCHES = auto()
    MERGES = auto()
    DECIDES = auto()
    ARGUMENT = auto()
    RESULT = auto()
    SENDS = auto()
    ORDERS = auto()
    CALLS = auto()
    BRANCHES = auto()
    LOOPS = auto()
    FED = auto()
    HAS_DEFAULT = auto()
    HOLDS_REFERENCE = auto()
    MAKES_HANDLE = auto()
    READS = auto()
    READS_PART = auto()
    ASKS_RESOURCE = auto()
    GETS_ELEMENT = auto()
    ELEMENTWISE = auto()
    KEEPS_SLICES = auto()
    MULTIPLIES_MATRICES = auto()
    KEEPS_FINITE = auto()
    IS_SINGULAR = auto()
    DIVIDES = auto()
    DIVIDES_ONE = auto()


_T = Trait
_FORWARDS = _T.EQUAL | _T.CARRIES | _T.SHARES_MEMORY
_ROWS: tuple[tuple[str, Trait], ...] = (
    ("Identity IdentityN", _FORWARDS | _T.STANDS_FOR_CALL),
    ("_EagerConst", _T.EQUAL | _T.STANDS_FOR_CALL),
    ("PreventGradient RefIdentity Snapshot StopGradient", _FORWARDS),
    ("Copy CopyHost DeepCopy", _T.EQUAL | _T.CARRIES),
    ("EnsureShape", _FORWARDS | _T.CAN_FAIL),
    ("CheckNumerics CheckNumericsV2", _T.EQUAL | _T.TESTS | _T.SHARES_MEMORY | _T.CAN_FAIL),
    ("DebugIdentityV2", _T.EQUAL | _T.TESTS | _T.SHARES_MEMORY),
    ("DebugNumericSummaryV2 OnesLike Print PrintV2 StringFormat Where ZerosLike", _T.TESTS),
    ("Greater GreaterEqual Less LessEqual", _T.TESTS),
    ("Equal NotEqual", _T.TESTS | _T.COMPARES),
    ("IsFinite IsInf IsNan", _T.TESTS | _T.FINDS_BAD),
    ("Rank Shape ShapeN Size", _T.TESTS | _T.OF_SHAPE),
    # The borders of loops and branches.
    ("Enter RefEnter", _FORWARDS | _T.ENTERS),
    ("Exit RefExit", _FORWARDS | _T.EXITS),
    ("NextIteration RefNextIteration", _FORWARDS | _T.NEXT),
    ("RefSwitch Switch _SwitchN", _FORWARDS | _T.SWITCHES),
    ("Merge RefMerge", _T.CARRIES | _T.SHARES_MEMORY | _T.MERGES),
    ("LoopCond", _T.EQUAL | _T.DECIDES),
    # Ops that TensorFlow adds when it optimizes a graph.
    ("_Arg _DeviceArg", _T.ARGUMENT),
    ("_DeviceRetval _Retval", _T.RESULT),
    ("_HostRecv _HostSend _Recv _Send", _T.SENDS),
    ("ControlTrigger NoOp", _T.ORDERS),
    # Calls.
    ("For MapDefun PartitionedCall RemoteCall StatefulPartitionedCall SymbolicGradient", _T.CALLS),
    ("Case If StatelessCase StatelessIf _If", _T.BRANCHES),
    ("StatelessWhile While _While", _T.LOOPS),
    ("Placeholder PlaceholderV2", _T.FED),
    ("PlaceholderWithDefault", _T.HAS_DEFAULT | _T.SHARES_MEMORY),
    # Variables and other resources; WRITER matches the ops that write to them.
    ("VarHandleOp", _T.MAKES_HANDLE),
    ("Variable VariableV2", _T.HOLDS_REFERENCE),
    ("ReadVariableOp _ReadVariablesOp", _T.READS),
    ("ResourceGather ResourceGatherNd", _T.READS_PART),
    ("VarIsInitializedOp VariableShape", _T.ASKS_RESOURCE),
    # Pipelines. Keras runs OptionalGetValue for several steps in one function.
    ("IteratorGetNext IteratorGetNextSync", _T.GETS_ELEMENT),
    ("OptionalGetValue", _T.CARRIES | _T.GETS_ELEMENT),
    # Ops that reorder, select or repeat elements.
    ("ExpandDims Reshape Squeeze", _T.RESHAPED | _T.CARRIES | _T.SHARES_MEMORY),
    ("Transpose", _T.RESHAPED | _T.CARRIES),
    ("Bitcast Slice Split SplitV StridedSlice Unpack", _T.CARRIES | _T.SHARES_MEMORY),
    ("RefSelect", _T.SHARES_MEMORY),
    ("BroadcastTo Concat ConcatV2 Fill Pack Stack Tile", _T.CARRIES),
    ("ClipByValue Maximum Minimum Select SelectV2", _T.CARRIES),
    ("DynamicPartition DynamicStitch Gather GatherNd GatherV2 ParallelDynamicStitch StridedSliceGrad", _T.CARRIES),
    ("MirrorPad Pad PadV2 Reverse ReverseSequence ReverseV2 Roll", _T.CARRIES),
    ("BatchToSpace BatchToSpaceND DepthToSpace SpaceToBatch SpaceToBatchND SpaceToDepth", _T.CARRIES),
    ("EagerPyFunc RaggedTensorToTensor RaggedTensorToVariant", _T.CARRIES),
    # Lists and stores of tensors.
    ("EmptyTensorList TensorListConcat TensorListConcatV2 TensorListElementShape TensorListFromTensor", _T.CARRIES),
    ("TensorListGather TensorListGetItem TensorListLength TensorListPopBack TensorListPushBack", _T.CARRIES),
    ("TensorListPushBackBatch TensorListReserve TensorListResize TensorListScatter TensorListScatterV2", _T.CARRIES),
    ("TensorListScatterIntoExistingList TensorListSetItem TensorListSplit TensorListStack", _T.CARRIES),
    ("OptionalFromValue StackPop StackPopV2 StackPush StackPushV2", _T.CARRIES),
    ("TensorArrayConcat TensorArrayConcatV2 TensorArrayConcatV3 TensorArrayGather TensorArrayGatherV2", _T.CARRIES),
    ("TensorArrayGatherV3 TensorArrayRead TensorArrayReadV2 TensorArrayReadV3 TensorArrayScatter", _T.CARRIES),
    ("TensorArrayScatterV2 TensorArrayScatterV3 TensorArraySplit TensorArraySplitV2 TensorArraySplitV3", _T.CARRIES),
    ("TensorArrayWrite TensorArrayWriteV2 TensorArrayWriteV3", _T.CARRIES),
    # These rows say from which input elements each output element is computed. They add traits to the rows above.
    (
        "Abs Acos Acosh Add AddN AddV2 Asin Asinh Atan Atan2 Atanh Cast Ceil ClipByValue Cos Cosh Digamma Div",
        _T.ELEMENTWISE,
    ),
    (
        "DivNoNan Elu EluGrad Equal Erf Erfc Erfinv Exp Expm1 Floor FloorDiv FloorMod Greater GreaterEqual",
        _T.ELEMENTWISE,
    ),
    (
        "Identity Inv InvGrad IsFinite IsInf IsNan LeakyRelu LeakyReluGrad Less LessEqual Lgamma Log Log1p",
        _T.ELEMENTWISE,
    ),
    ("LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan Ndtri Neg NotEqual Pow RealDiv", _T.ELEMENTWISE),
    (
        "Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad Rint Round Rsqrt RsqrtGrad SelectV2 Selu",
        _T.ELEMENTWISE,
    ),
    (
        "SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh Softplus SoftplusGrad Softsign SoftsignGrad Sqrt SqrtGrad",
        _T.ELEMENTWISE,
    ),
    ("Square SquaredDifference StopGradient Sub Tan Tanh TanhGrad TruncateDiv Xdivy Xlog1py Xlogy", _T.ELEMENTWISE),
    ("AvgPool BiasAdd Conv2D Conv3D DepthwiseConv2dNative LogSoftmax MatMul MaxPool Softmax", _T.KEEPS_SLICES),
    ("_FusedConv2D _FusedMatMul", _T.KEEPS_SLICES),
    ("BatchMatMul BatchMatMulV2 BatchMatMulV3 MatMul", _T.MULTIPLIES_MATRICES),
    # Ops whose outputs have their own memory. Only ops whose outputs are often summed are listed. These rows add traits
    # to the rows above.
    ("Abs Add AddV2 BatchMatMul BatchMatMulV2 BiasAdd BiasAddGrad Conv2D Conv2DBackpropFilter", _T.OWN_MEMORY),
    ("Conv2DBackpropInput DivNoNan Elu EluGrad Erf Erfc Exp FusedBatchNormGradV3 FusedBatchNormV3", _T.OWN_MEMORY),
    ("LeakyRelu LeakyReluGrad Log LogSoftmax MatMul MaxPool MaxPoolGrad Maximum Minimum Mul Neg Pow", _T.OWN_MEMORY),
    ("RealDiv Reciprocal Relu Relu6 Relu6Grad ReluGrad Rsqrt RsqrtGrad Sigmoid SigmoidGrad Softmax", _T.OWN_MEMORY),
    ("Softplus SoftplusGrad Sqrt SqrtGrad Square SquaredDifference Sub Tanh TanhGrad", _T.OWN_MEMORY),
    ("SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits UnsortedSegmentSum", _T.OWN_MEMORY),
    ("_FusedConv2D _FusedMatMul", _T.OWN_MEMORY),
    # These rows say which ops make bad values. They add traits to the rows above.
    (
        "Abs BroadcastTo Ceil ConcatV2 Cos Elu Erf ExpandDims Floor GatherV2 LeakyRelu Maximum Minimum Neg",
        _T.KEEPS_FINITE,
    ),
    ("Pack Pad PadV2 Relu Relu6 Reshape Rint Round Selu Sigmoid Sign Sin Slice Softsign Squeeze", _T.KEEPS_FINITE),
    ("StridedSlice Tanh Tile Transpose Unpack", _T.KEEPS_FINITE),
    ("Div RealDiv", _T.IS_SINGULAR | _T.DIVIDES),
    ("Inv Reciprocal", _T.IS_SINGULAR | _T.DIVIDES_ONE),
    ("Acos Acosh Asin Atanh Betainc Cholesky Cosh Digamma Erfinv Exp Expm1 FloorDiv FloorMod Igamma", _T.IS_SINGULAR),
    ("Igammac InvGrad Lgamma Log Log1p LogMatrixDeterminant LogSoftmax MatrixInverse MatrixSolve", _T.IS_SINGULAR),
    ("MatrixTriangularSolve Mod Ndtri Pow ReciprocalGrad Rsqrt RsqrtGrad Sinh Softmax Sqrt SqrtGrad", _T.IS_SINGULAR),
    ("Tan TruncateDiv TruncateMod Xdivy Xlog1py Xlogy Zeta", _T.IS_SINGULAR),
)


def _merged() -> dict[str, Trait]:
    merged: dict[str, Trait] = {}
    for names, traits in _ROWS:
        for op_type in names.split():
            merged[op_type] = merged.get(op_type, Trait(0)) | traits
    return merged


TRAITS: Mapping[str, Trait] = MappingProxyType(_merged())
"""The traits of each op type that has at least one trait."""


# Integers are used because the operators of Flag are slow.
_BITS = {op_type: traits.value for op_type, traits in TRAITS.items()}


def types_with(any_of: Trait) -> frozenset[str]:
    """Returns the types of ops that have at least one of the given traits."""
    mask = any_of.value
    return frozenset(op_type for op_type, bits in _BITS.items() if bits & mask)


BORDERS = _T.ENTERS | _T.EXITS | _T.NEXT | _T.SWITCHES | _T.MERGES | _T.DECIDES | _T.ARGUMENT | _T.RESULT
"""The traits of ops at the borders of loops, branches and the outermost function."""

REPEATED: Mapping[str, int] = MappingProxyType({"BroadcastTo": 0, "Fill": 1, "Tile": 0})
"""Types of ops whose output repeats each element of one input equally often. The value is the index of this input."""


READER = "ReadVariableOp"
"""Type of the op whose output is the content of one resource."""
READERS = types_with(_T.READS | _T.READS_PART)
"""Types of ops whose outputs are the contents of resources, or parts of one."""
MOVING = (types_with(_T.CARRIES | _T.READS | _T.READS_PART) | {"Cast", "TensorScatterUpdate"}) - (
    types_with(_T.MERGES) | {"ClipByValue", "EagerPyFunc", "Maximum", "Minimum", "Select", "SelectV2"}
)
"""Types of ops that only move elements or change their dtype. The values of the elements do not affect the choice."""
WRITER = re.compile(
    r"Assign(Add|Sub)?VariableOp|Resource(Sparse)?Apply\w+|ResourceScatter\w+|ResourceStridedSliceAssign|MakeIterator"
)
"""Matches types of ops that write to the resource that they take. See "Following values" in the specification."""
REPLACING = frozenset({"AssignVariableOp", "MakeIterator"})
"""Types of ops that replace the content of a resource. The new content does not depend on the old content."""
OPTIMIZERS = ("ResourceApply", "ResourceSparseApply")
"""Prefixes of the types of ops that apply a gradient to a variable.

Most of these ops also use a state of the optimizer. Only the handle of the state is an input of the op.
"""


@dataclass(frozen=True, kw_only=True)
class Added:
    """The inputs that determine what an op adds to a variable or subtracts from a variable.

    Attributes:
        value: Index of the input that the op adds or subtracts.
        rate: Index of the scalar input that the op multiplies by `value` first; None if there is no such input.
    """

    value: int
    rate: int | None = None


ADDING: Mapping[str, Added] = MappingProxyType(
    {
        "AssignAddVariableOp": Added(value=1),
        "AssignSubVariableOp": Added(value=1),
        "ResourceApplyGradientDescent": Added(value=2, rate=1),
    }
)
"""Types of ops that add an input to a variable, or subtract an input from it. The variable is the first input."""

REFERENCE_WRITER = re.compile(
    r"Assign(Add|Sub)?|(Sparse)?Apply\w+|Scatter(Nd)?(Update|Add|Sub|Mul|Div|Min|Max)|StridedSliceAssign"
)
"""Matches types of ops that write to a variable of TensorFlow 1 through its reference, and return the reference."""
UPDATER = re.compile(
    r"Assign(Add|Sub)(VariableOp)?|(Resource)?(Sparse)?Apply\w+|(Resource)?Scatter(Nd)?(Add|Sub|Mul|Div)"
)
"""Matches types of ops that compute the new value of a variable from the old value and from their inputs."""

CONTAINERS = ("EmptyTensorList", "Optional", "TensorList")
"""Prefixes of the types of ops whose variant output contains exactly the tensors that the op takes."""
PUSHES, POPS = "TensorListPushBack", "TensorListPopBack"
"""The type of op that appends an element to a list of tensors, and the type of op that removes the last element."""
PUTS_INTO_STORE = re.compile(r"(TensorArray(Write|Scatter|Split)|StackPush)(V\d)?")
"""Matches types of ops that store tensors in a TensorArray or a stack of TensorFlow 1.

The recording does not show which op takes a stored tensor.
"""
TAKES_FROM_STORE = re.compile(r"(TensorArray(Read|Gather|Concat)|StackPop)(V\d)?")
"""Matches types of ops that take a tensor from a TensorArray or a stack of TensorFlow 1.

The recording does not show which op stored the tensor.
"""
PIPELINE_ENDS = ("Iterator", "MultiDeviceIterator", "OptionalGetValue", "DatasetToSingleElement")
"""Prefixes of the types of ops that return elements of a tf.data pipeline."""
POLES: Mapping[str, int] = MappingProxyType(
    {
        "Div": 1,
        "RealDiv": 1,
        "Xdivy": 1,
        "Inv": 0,
        "Log": 0,
        "Pow": 0,
        "Reciprocal": 0,
        "Rsqrt": 0,
        "SqrtGrad": 0,
    }
)
"""Types of ops that make an infinity from a zero. The value is the index of the input that has the zero."""


class Bad(Flag):
    """A kind of bad value."""

    NAN = auto()
    NEG_INF = auto()
    POS_INF = auto()


ANY_BAD = Bad.NAN | Bad.NEG_INF | Bad.POS_INF
_INFINITE = Bad.NEG_INF | Bad.POS_INF
MADE_OF_FINITE: Mapping[str, Bad] = MappingProxyType(
    {
        **dict.fromkeys(types_with(_T.KEEPS_FINITE), Bad(0)),
        **dict.fromkeys(("Cosh", "Exp", "Expm1", "Softplus", "Square"), Bad.POS_INF),
        **dict.fromkeys(("Add", "AddV2", "Inv", "Mul", "Reciprocal", "Sinh", "Sub"), _INFINITE),
        **dict.fromkeys(("Log", "Log1p"), Bad.NEG_INF | Bad.NAN),
        "Rsqrt": Bad.POS_INF | Bad.NAN,
        "Sqrt": Bad.NAN,
    }
)
"""The kinds of bad values that an op can make from finite inputs. Ops of other types can make every kind."""
_MADE_OF_INFINITY: Mapping[str, tuple[Bad, Bad]] = MappingProxyType(
    {
        **dict.fromkeys(("Abs", "Cosh", "Square"), (Bad.POS_INF, Bad.POS_INF)),
        **dict.fromkeys(("Add", "AddV2", "Sub"), (_INFINITE, _INFINITE)),
        **dict.fromkeys(("Exp", "Expm1", "Relu", "Softplus"), (Bad(0), Bad.POS_INF)),
        **dict.fromkeys(("Log", "Log1p", "Sqrt"), (Bad.NAN, Bad.POS_INF)),
        **dict.fromkeys(("Inv", "Reciprocal"), (Bad(0), Bad(0))),
        "Neg": (Bad.POS_INF, Bad.NEG_INF),
    }
)
"""The kinds of bad values that an op can make from -Inf, and those that it can make from +Inf.

The other inputs of the op are finite. Ops of other types can make every kind.
"""


def made_of_bad(op_type: str, kinds: Bad) -> Bad:
    """Returns the kinds of bad values that an op can make from the given kinds, if its other inputs are finite."""
    of_neg_inf, of_pos_inf = _MADE_OF_INFINITY.get(op_type, (ANY_BAD, ANY_BAD))
    made = kinds & Bad.NAN
    if Bad.NEG_INF in kinds:
        made |= of_neg_inf
    if Bad.POS_INF in kinds:
        made |= of_pos_inf
    return made


RANDOM = re.compile(
    r"(Multinomial|ParameterizedTruncatedNormal|Random(?!Dataset$)|Stateful(?!PartitionedCall$)|StatelessRandom"
    r"|TruncatedNormal)\w*|StatelessMultinomial|StatelessTruncatedNormalV2"
)
"""Matches types of ops that generate random numbers from a seed or a state."""
RANDOM_KEYS = frozenset(
    {
        *("StatelessRandomGetAlg", "StatelessRandomGetKeyCounter", "StatelessRandomGetKeyCounterAlg"),
    }
)
"""Types of ops that match RANDOM, but only turn a seed into a key for other ops that generate random numbers."""
DIVISIONS = types_with(_T.DIVIDES | _T.DIVIDES_ONE) | {"DivNoNan", "Rsqrt"}
"""Types of ops that divide: they return 0 for a finite number divided by an infinity."""
WITH_WEIGHTS = types_with(_T.MULTIPLIES_MATRICES) | {"BiasAdd", "_FusedConv2D", "_FusedMatMul"}
"""Types of ops that combine a tensor with the weights of a layer."""
COLLECTIVES = ("Collective", "Nccl")
"""Prefixes of the types of ops whose output depends on the inputs of the same op in other replicas or other runs."""
