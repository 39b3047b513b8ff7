// Finds reads of variables that return the same value.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph_def.h"
#include "node_kinds.h"

namespace tfdbg_arrow {

// The ReadVariableOps of one graph. Two reads of a variable return the same value if each write to the variable runs
// before both reads, or after both reads. Writes by other graphs at the same time are not considered.
class VariableReads {
 public:
  // `index_of`: the index of each node, by name. Both must outlive this object.
  VariableReads(const GraphView& graph, const std::unordered_map<std::string_view, size_t>& index_of)
      : graph_(graph), index_of_(index_of) {
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      const NodeView& node = graph.nodes[i];
      if (is_read(node)) variables_[canonical(node.inputs[0])].reads.push_back(i);
    }
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      const NodeView& node = graph.nodes[i];
      if (is_read(node) || node.op == "VariableShape" || node.op == "VarIsInitializedOp") continue;
      for (std::string_view text : node.inputs) {
        const auto variable = variables_.find(canonical(text));
        if (variable != variables_.end()) variable->second.others.push_back(i);
      }
    }
  }

  // Returns the other reads that return the same value as the node.
  std::vector<size_t> same_as(size_t i) {
    std::vector<size_t> same;
    if (!is_read(graph_.nodes[i])) return same;
    const Variable& variable = variables_.at(canonical(graph_.nodes[i].inputs[0]));
    for (size_t read : variable.reads) {
      if (read != i && has_same_type(i, read) && are_equal(i, read, variable)) same.push_back(read);
    }
    return same;
  }

 private:
  struct Variable {
    std::vector<size_t> reads;
    std::vector<size_t> others;  // nodes that may write to the variable
  };

  static bool is_read(const NodeView& node) { return node.op == "ReadVariableOp" && !node.inputs.empty(); }

  bool has_same_type(size_t a, size_t b) const {
    const std::string_view *one = graph_.nodes[a].attr("dtype"), *other = graph_.nodes[b].attr("dtype");
    return one != nullptr && other != nullptr && *one == *other;
  }

  bool are_equal(size_t a, size_t b, const Variable& variable) {
    for (size_t other : variable.others) {
      if (runs_before(a, other) && runs_before(b, other)) continue;
      // A node that forwards the variable runs before the write.
      const NodeView& node = graph_.nodes[other];
      const bool writes_itself = !is_plumbing(node.op) && !passes_on(node.op);
      if (!writes_itself || !runs_before(other, a) || !runs_before(other, b)) return false;
    }
    return true;
  }

  // Returns true if node `second` depends on node `first`. A path through a Merge does not count, because a Merge runs
  // when one of its inputs is computed.
  bool runs_before(size_t first, size_t second) {
    const auto [entry, is_new] = before_.try_emplace(second);
    std::vector<bool>& before = entry->second;
    if (!is_new) return before[first];
    before.assign(graph_.nodes.size(), false);
    std::vector<size_t> waiting{second};
    while (!waiting.empty()) {
      const NodeView& node = graph_.nodes[waiting.back()];
      waiting.pop_back();
      if (is_merge(node.op)) continue;
      for (std::string_view text : node.inputs) {
        const std::optional<NodeInput> input = parse_input(text);
        const auto source = input ? index_of_.find(input->node) : index_of_.end();
        if (source == index_of_.end() || before[source->second]) continue;
        before[source->second] = true;
        waiting.push_back(source->second);
      }
    }
    return before[first];
  }

  const GraphView& graph_;
  const std::unordered_map<std::string_view, size_t>& index_of_;
  std::unordered_map<std::string, Variable> variables_;      // by the name of the handle
  std::unordered_map<size_t, std::vector<bool>> before_;     // the nodes that run before a node
};

}  // namespace tfdbg_arrow
