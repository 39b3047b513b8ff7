// What functions that XLA compiles for the CPU call to summarise a tensor.
#pragma once

#include <string>

namespace tfdbg_arrow {

// The name of the call. Its operands are the tensor and int64 numbers: DataType, Mode, rank, and the dimensions. Its
// result is a row of TfdbgArrowRecordCompiled, in no loop.
constexpr const char* kSummarizeCall = "tfdbg_arrow_summarize";

// Makes XLA find the call; a second call does nothing.
//
// Args:
//   cc_path: The path of TensorFlow's runtime library.
//
// Returns whether this version of TensorFlow takes it.
bool register_compiled_call(const std::string& cc_path);

}  // namespace tfdbg_arrow
