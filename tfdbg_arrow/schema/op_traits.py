"""What the types of ops do: the facts on which all packages agree.

A trait says what an op does. It does not say what a reader concludes from it. That the output equals an input is one
fact; that the op is at the border of a loop is another fact.
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
        EQUAL: Each output equals the first input; an output of IdentityN equals the input of the same index.
        RESHAPED: The output has the elements of the first input, in another shape or order.
        CARRIES: Each element of the outputs is an element of an input, or of what the op takes from a list or store; or
            it is a constant. The op computes nothing from the elements.
        TESTS: The output says something about the input, such as whether it is finite, or which shape it has. Its
            elements are those of no input, except for an op that is EQUAL too: it raises an error, or writes a text.
        FINDS_BAD: The output says for each element whether it is bad.
        COMPARES: The output says whether elements are equal, so that it shows NaN if an input is compared with itself.
        OF_SHAPE: The output depends only on the shape of the input.
        SHARES_MEMORY: The output can lie in the memory of an input.
        OWN_MEMORY: The output never lies in the memory of an input that something else holds.
        CAN_FAIL: The op is EQUAL unless it fails because of the elements or the shape.
        STANDS_FOR_CALL: TensorFlow puts the op in place of the borders of a call.
        ENTERS: It hands a tensor into a loop.
        EXITS: It hands a tensor out of a loop.
        NEXT: It hands a tensor to the next iteration.
        SWITCHES: It hands a tensor to one of several branches, or into the body of a loop.
        MERGES: It hands on the one of its inputs that was computed.
        DECIDES: It hands on the boolean that decides about the next iteration.
        ARGUMENT, RESULT: It is an argument or a result of the outermost function that TensorFlow runs.
        SENDS: It passes a tensor to another device or process, or takes it from there.
        ORDERS: It has no tensors, and only orders other ops.
        CALLS: It runs a function.
        BRANCHES: It runs one of several functions.
        LOOPS: It runs functions repeatedly.
        FED: A run of a session fails if nobody feeds the output.
        HAS_DEFAULT: The output can be fed, and otherwise equals the input.
        HOLDS_REFERENCE: The output is a reference to the memory of a variable.
        MAKES_HANDLE: The output is the handle of a variable.
        READS: The output is the content of the variable that the op takes.
        READS_PART: The output is a part of that content.
        GETS_ELEMENT: The outputs are the components of an element of a tf.data pipeline.
        KEEPS_FINITE: The output is finite if all inputs are.
        IS_SINGULAR: The op makes bad values of small numbers too. Others, such as Mul, make them of very large ones.
        DIVIDES: The output is the first input divided by the second.
        DIVIDES_ONE: The output is one divided by the input.
        ELEMENTWISE: Each element of the output is computed from the elements at its place in the inputs, after these
            were broadcast to one shape.
        KEEPS_SLICES: Slice i of the output along the first axis is computed from slice i of the first input, and from
            all of the other inputs. Only for tensors with two axes or more; for a product also only if it does not
            transpose the first input.
        MULTIPLIES_MATRICES: The output is the product of matrices, which lie in the last two axes of the two inputs.
        ASKS_RESOURCE: The op takes a resource, but neither its content nor a value to write.
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
    # What an optimized graph adds.
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
    # Elements in another order, some of them, or repeated.
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
    # Which elements of the output are computed from which of the inputs. These rows add to those above.
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
    # Ops with memory of their own, of those whose outputs are often added up. These rows add to those above.
    ("Abs Add AddV2 BatchMatMul BatchMatMulV2 BiasAdd BiasAddGrad Conv2D Conv2DBackpropFilter", _T.OWN_MEMORY),
    ("Conv2DBackpropInput DivNoNan Elu EluGrad Erf Erfc Exp FusedBatchNormGradV3 FusedBatchNormV3", _T.OWN_MEMORY),
    ("LeakyRelu LeakyReluGrad Log LogSoftmax MatMul MaxPool MaxPoolGrad Maximum Minimum Mul Neg Pow", _T.OWN_MEMORY),
    ("RealDiv Reciprocal Relu Relu6 Relu6Grad ReluGrad Rsqrt RsqrtGrad Sigmoid SigmoidGrad Softmax", _T.OWN_MEMORY),
    ("Softplus SoftplusGrad Sqrt SqrtGrad Square SquaredDifference Sub Tanh TanhGrad", _T.OWN_MEMORY),
    ("SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits UnsortedSegmentSum", _T.OWN_MEMORY),
    ("_FusedConv2D _FusedMatMul", _T.OWN_MEMORY),
    # Finite and bad values. These rows add to those above.
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
"""The traits of each type of op that has any."""


_BITS = {op_type: traits.value for op_type, traits in TRAITS.items()}  # the operators of Flag are slow


def types_with(any_of: Trait) -> frozenset[str]:
    """Returns the types of ops that have at least one of the given traits."""
    mask = any_of.value
    return frozenset(op_type for op_type, bits in _BITS.items() if bits & mask)


BORDERS = _T.ENTERS | _T.EXITS | _T.NEXT | _T.SWITCHES | _T.MERGES | _T.DECIDES | _T.ARGUMENT | _T.RESULT
"""The traits of ops at the borders of loops, branches and the outermost function."""

REPEATED: Mapping[str, int] = MappingProxyType({"BroadcastTo": 0, "Fill": 1, "Tile": 0})
"""Types of ops whose output has the elements of one input, each equally often; the value is the index of the input."""


READER = "ReadVariableOp"
"""Type of the op whose output is the content of one resource."""
MOVING = (types_with(_T.CARRIES | _T.READS | _T.READS_PART) | {"Cast", "TensorScatterUpdate"}) - (
    types_with(_T.MERGES) | {"ClipByValue", "EagerPyFunc", "Maximum", "Minimum", "Select", "SelectV2"}
)
"""Types of ops that only move elements or change their dtype. The elements do not decide which of them are moved."""
WRITER = re.compile(
    r"Assign(Add|Sub)?VariableOp|Resource(Sparse)?Apply\w+|ResourceScatter\w+|ResourceStridedSliceAssign|MakeIterator"
)
"""Types of ops that write to the resource that they take. See "Following values" in the specification."""
REPLACING = frozenset({"AssignVariableOp", "MakeIterator"})
"""Types of ops after which the content of the resource does not depend on the content before."""
OPTIMIZERS = ("ResourceApply", "ResourceSparseApply")
"""Prefixes of the types of ops that apply a gradient to a variable. Most compute what they add from a state of their
own, of which only the handle is an input."""


@dataclass(frozen=True, kw_only=True)
class Added:
    """What an op adds to a variable or subtracts from it.

    Attributes:
        value: Index of the input that it adds.
        rate: Index of the scalar input by which it multiplies the value before; None if it adds the value itself.
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
"""Types of ops that add to the variable that is their first input, if their other inputs say how much."""

REFERENCE_WRITER = re.compile(
    r"Assign(Add|Sub)?|(Sparse)?Apply\w+|Scatter(Nd)?(Update|Add|Sub|Mul|Div|Min|Max)|StridedSliceAssign"
)
"""Types of ops that write to a variable of TensorFlow 1 by its reference, which they return."""
UPDATER = re.compile(
    r"Assign(Add|Sub)(VariableOp)?|(Resource)?(Sparse)?Apply\w+|(Resource)?Scatter(Nd)?(Add|Sub|Mul|Div)"
)
"""Types of ops that compute the new value of a variable from its old value and from what they take."""

CONTAINERS = ("EmptyTensorList", "Optional", "TensorList")
"""Prefixes of the types of ops whose variant output holds exactly the tensors that they take."""
PUSHES, POPS = "TensorListPushBack", "TensorListPopBack"
"""Types of ops that append an element to a list of tensors, and that take the last one."""
PUTS_INTO_STORE = re.compile(r"(TensorArray(Write|Scatter|Split)|StackPush)(V\d)?")
"""Types of ops that put tensors into a TensorArray or a stack of TensorFlow 1. Which op takes them out is unknown."""
TAKES_FROM_STORE = re.compile(r"(TensorArray(Read|Gather|Concat)|StackPop)(V\d)?")
"""Types of ops that return a tensor from a TensorFlow 1 TensorArray or stack. The op that stored it is not recorded."""
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
"""Types of ops that make an infinity of a zero; the value is the index of the input that is zero."""


class Bad(Flag):
    """A kind of bad element."""

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
"""The kinds of bad elements that an op can make of finite ones. An op of another type can make each kind."""
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
"""What an op can make of -Inf and of +Inf, if its other inputs are finite. An op of another type can make each kind."""


def made_of_bad(op_type: str, kinds: Bad) -> Bad:
    """Returns the kinds of bad elements that an op can make of some kinds, if its other inputs are finite."""
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
"""Types of ops that draw random numbers, from a seed or a state."""
RANDOM_KEYS = frozenset(
    {
        *("StatelessRandomGetAlg", "StatelessRandomGetKeyCounter", "StatelessRandomGetKeyCounterAlg"),
    }
)
"""Types of these ops that only turn a seed into the key with which others draw."""
DIVISIONS = types_with(_T.DIVIDES | _T.DIVIDES_ONE) | {"DivNoNan", "Rsqrt"}
"""Types of ops that return 0 where they divide a finite number by an infinity."""
WITH_WEIGHTS = types_with(_T.MULTIPLIES_MATRICES) | {"BiasAdd", "_FusedConv2D", "_FusedMatMul"}
"""Types of ops that combine a tensor with the weights of a layer."""
COLLECTIVES = ("Collective", "Nccl")
"""Prefixes of the types of ops whose output depends on the inputs of the same op in other replicas or other runs."""
