// The TensorFlow ops that record tensors inside graphs, registered over the C API.
//
// TfdbgArrowCallToken(execution_index): notes which run of a session the step belongs to.
// TfdbgArrowRecordRows(summaries, arguments...): records what functions that XLA compiles give out, one row of the float64
// matrix for each tensor. Two of the columns are the call site of the tensor, and the loop that it is computed in. Rows of
// branches that were not taken are left out. The memory of the arguments identifies the call.
// TfdbgArrowRecordDevice(parts, shapes...): records tensors of which nodes on their device counted the elements;
// device_summaries.h.
// TfdbgArrowRecordThrough(tensor): records one tensor and hands it on. The optimizer of executed.h puts it into graphs.
// TfdbgArrowRecordConstant(tensor): records one tensor, without output.
#pragma once

#include <string_view>

namespace tfdbg_arrow {

constexpr std::string_view kCallTokenOp = "TfdbgArrowCallToken";
constexpr std::string_view kRecordThroughOp = "TfdbgArrowRecordThrough";
constexpr std::string_view kRecordConstantOp = "TfdbgArrowRecordConstant";
constexpr std::string_view kRecordRowsOp = "TfdbgArrowRecordRows";
constexpr std::string_view kRecordDeviceOp = "TfdbgArrowRecordDevice";
// Begins the name of each node of these ops; a number, a slash and the name of the recorded node follow.
constexpr std::string_view kRecordNodePrefix = "tfdbg_arrow_record_";

// Whether the optimizer of executed.h puts ops of a type into graphs.
inline bool is_record_op(std::string_view op) {
  return op == kRecordThroughOp || op == kRecordConstantOp || op == kRecordDeviceOp;
}

// Registers the ops and their kernels; a second call does nothing.
// Throws std::runtime_error with TensorFlow's message. Needs load_tensorflow_api().
void register_record_ops();

// Columns of a summary, in order.
enum SummaryColumn : int {
  kColumnRank = 0,  // -1: the shape was not measured
  kColumnSize,
  kColumnDim0,  // six dimensions, the last six where the rank is above
  kColumnNumNegInf = kColumnDim0 + 6,
  kColumnNumPosInf,
  kColumnNumNan,
  kColumnNumNegFinite,
  kColumnNumZero,
  kColumnNumPosFinite,
  kColumnNumSubnormal,
  kColumnMin,
  kColumnMax,
  kColumnMean,
  kColumnStddev,
  kColumnMaxAbs,
  kColumnNumFinite,
  kNumSummaryColumns,
  // Of TfdbgArrowRecordRows alone.
  kColumnIteration = kNumSummaryColumns,  // of the innermost loop, then of those around it
  kNumCompiledColumns = kColumnIteration + 6,
};
// The rank in the rows of tensors that were not computed.
constexpr double kNotRun = -2;

}  // namespace tfdbg_arrow
