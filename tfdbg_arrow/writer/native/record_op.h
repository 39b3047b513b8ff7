// The TensorFlow ops that record tensors inside graphs, registered over the C API.
//
// TfdbgArrowCallToken(execution_index): notes the run of a session to which the step belongs.
// TfdbgArrowRecordRows(summaries, arguments...): records the tensors of functions that XLA compiles. `summaries` is a
// float64 matrix with one row for each tensor. The last columns are the iterations of the loops in which the tensor is
// computed. Rows of branches that were not taken are omitted. The memory of the arguments identifies the call.
// TfdbgArrowRecordDevice(parts, shapes...): records tensors whose elements were counted on their device; see
// device_summaries.h.
// TfdbgArrowView(tensors...): returns views of tensors as another dtype, in the same memory, and the shapes of the
// tensors on the host. The op copies no elements, even on a device.
// TfdbgArrowRecordThrough(tensor): records one tensor and passes it on. The optimizer of executed.h adds it to graphs.
// TfdbgArrowRecordConstant(tensor): records one tensor, and has no output.
#pragma once

#include <string_view>

#include "measures.h"

namespace tfdbg_arrow {

constexpr std::string_view kCallTokenOp = "TfdbgArrowCallToken";
constexpr std::string_view kRecordThroughOp = "TfdbgArrowRecordThrough";
constexpr std::string_view kRecordConstantOp = "TfdbgArrowRecordConstant";
constexpr std::string_view kRecordRowsOp = "TfdbgArrowRecordRows";
constexpr std::string_view kRecordDeviceOp = "TfdbgArrowRecordDevice";
constexpr std::string_view kViewOp = "TfdbgArrowView";
// Prefix of the names of these ops. A number, a slash and the name of the recorded node follow the prefix.
constexpr std::string_view kRecordNodePrefix = "tfdbg_arrow_record_";

// Returns true if the optimizer of executed.h adds ops of this type to graphs.
inline bool is_record_op(std::string_view op) {
  return op == kRecordThroughOp || op == kRecordConstantOp || op == kRecordDeviceOp;
}

// Registers the ops and their kernels; a second call does nothing.
// Throws std::runtime_error with TensorFlow's message. Needs load_tensorflow_api().
void register_record_ops();

// Number of dimensions in a summary.
constexpr int kNumSummaryDims = 6;

// Columns of a summary, in order.
enum SummaryColumn : int {
  kColumnRank = 0,  // -1: the shape was not measured
  kColumnSize,
  kColumnDim0,  // the last dimensions if the rank is higher
  kColumnHealth = kColumnDim0 + kNumSummaryDims,
  kColumnMagnitudes = kColumnHealth + kNumCounts,
  kColumnNumFinite = kColumnMagnitudes + kNumMagnitudes,
  kColumnFirstBad,      // the index of the first bad element, plus 1; 0 if it is not known
  kColumnNumBadSlices,  // the number of bad slices, plus 1; 0 for a scalar, or if the number is not known
  kNumSummaryColumns,
  // Only for TfdbgArrowRecordRows.
  kColumnIteration = kNumSummaryColumns,  // the iteration of the innermost loop, then of the outer loops
  kNumCompiledColumns = kColumnIteration + 6,
};
// The rank in the rows of tensors that were not computed.
constexpr double kNotRun = -2;

}  // namespace tfdbg_arrow
