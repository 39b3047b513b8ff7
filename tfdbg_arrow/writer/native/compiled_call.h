// Custom calls that summarize tensors in functions that XLA compiles for the CPU.
#pragma once

#include <string>

namespace tfdbg_arrow {

// Summarizes a tensor. Its operands are the tensor and its dimensions as int64. Its configuration is the text
// "DataType Mode rank". Its result is a row of TfdbgArrowRecordRows outside of loops.
// With the DataType 0, the first operand is the row of another tensor. Each element of that tensor occurs equally often
// in the tensor to summarize.
constexpr const char* kSummarizeCall = "tfdbg_arrow_summarize";

// Concatenates matrices. Its configuration is a text with the number of rows of each matrix. XLA's own concatenation of
// a thousand operands takes many seconds to compile.
constexpr const char* kJoinCall = "tfdbg_arrow_join";

// Registers the calls with XLA; a second call does nothing.
//
// Args:
//   cc_path: The path of TensorFlow's runtime library.
//
// Returns true if this version of TensorFlow accepts them.
bool register_compiled_calls(const std::string& cc_path);

}  // namespace tfdbg_arrow
