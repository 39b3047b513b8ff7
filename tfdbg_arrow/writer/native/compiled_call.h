// What functions that XLA compiles for the CPU call to summarise tensors.
#pragma once

#include <string>

namespace tfdbg_arrow {

// Summarises a tensor. Its operands are the tensor and its dimensions as int64; its configuration is the text
// "DataType Mode rank". Its result is a row of TfdbgArrowRecordRows, in no loop.
// With the DataType 0 the first operand is the row of another tensor: the tensor has its elements, each equally often.
constexpr const char* kSummarizeCall = "tfdbg_arrow_summarize";

// Puts matrices below one another. Its configuration is the text of their numbers of rows. XLA's own concatenation of a
// thousand operands takes many seconds to compile.
constexpr const char* kJoinCall = "tfdbg_arrow_join";

// Makes XLA find the calls; a second call does nothing.
//
// Args:
//   cc_path: The path of TensorFlow's runtime library.
//
// Returns whether this version of TensorFlow takes them.
bool register_compiled_calls(const std::string& cc_path);

}  // namespace tfdbg_arrow
