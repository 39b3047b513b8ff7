// The kinds of nodes in an optimized graph, and the names of tensors.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "graph_def.h"
#include "op_traits.h"

namespace tfdbg_arrow {

// Ops that Python added to a graph: they belong to runs of sessions, or record functions that XLA compiles.
inline bool is_own_op(std::string_view op, std::string_view name) {
  constexpr std::string_view kOpPrefix = "TfdbgArrow", kNamePrefix = "tfdbg_arrow_";
  return op.substr(0, kOpPrefix.size()) == kOpPrefix || name.substr(0, kNamePrefix.size()) == kNamePrefix;
}

// Like is_own_op(), but in an optimized graph, where a path of calls can precede the name.
inline bool is_own(const NodeView& node) {
  return is_own_op(node.op, node.name) || node.name.find("/tfdbg_arrow_") != std::string_view::npos;
}

inline std::string tensor_name(std::string_view node, size_t slot) {
  return slot == 0 ? std::string(node) : std::string(node) + ":" + std::to_string(slot);
}

// "name:0", "name:00" and "name" are the same tensor.
inline std::string canonical(std::string_view text) {
  const std::optional<NodeInput> input = parse_input(text);
  if (!input || input->is_control) return std::string(text);
  return tensor_name(input->node, static_cast<size_t>(input->slot));
}

}  // namespace tfdbg_arrow
