// Decides which bad tensors of an optimized graph stop the program, with `on_nonfinite`.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "executed.h"
#include "graph_def.h"
#include "node_kinds.h"
#include "node_matcher.h"
#include "session.h"
#include "session_run.h"

namespace tfdbg_arrow {

// Decides which outputs of one graph stop the program if they are bad. These are the outputs with which an op computes,
// which the graph returns, or which an iteration of a loop passes to the next iteration.
class GraphJudge {
 public:
  GraphJudge(const GraphView& graph, const NodeMatcher& matcher, const SessionRun& run, const Session& session)
      : graph_(graph), matcher_(matcher), run_(run), session_(session) {
    if (!any()) return;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      for (std::string_view text : graph.nodes[i].inputs) {
        if (text.substr(0, 1) != "^") users_[canonical(text)].push_back(i);
      }
    }
  }

  // Returns true if bad values stop the program or call its callable.
  bool any() const { return session_.on_nonfinite != OnNonFinite::kRecord; }

  bool stops(size_t i, size_t slot) const {
    if (!any() || is_harmless(i, slot)) return false;
    if (run_.is_asked(i, slot)) return true;
    const auto users = users_.find(tensor_name(graph_.nodes[i].name, slot));
    return users != users_.end() &&
           std::any_of(users->second.begin(), users->second.end(), [this](size_t user) { return computes(user); });
  }

  // Returns the types of the ops that take an output.
  std::vector<std::string> users_of(size_t i, size_t slot) const {
    std::vector<std::string> types;
    const auto users = users_.find(tensor_name(graph_.nodes[i].name, slot));
    if (users == users_.end()) return types;
    for (size_t user : users->second) types.emplace_back(graph_.nodes[user].op);
    return types;
  }

 private:
  bool is_harmless(size_t i, size_t slot) const {
    const ProgramOp* op = matcher_[i].op;
    return session_.stop_rules.is_harmless(graph_.nodes[i].op, slot) ||
           (op != nullptr && session_.stop_rules.is_harmless(op->op_type, slot));
  }

  bool computes(size_t user) const {
    const std::string_view op = graph_.nodes[user].op;
    const NodeMatcher::Match& match = matcher_[user];
    if (is_result(op)) {
      const auto program = match.graph_id < 0 ? nullptr : session_.executed.find(match.graph_id);
      return program == nullptr || !program->is_used_by_graph;
    }
    // In the loops of TensorFlow 1, an op of the program passes a value on. In other loops, TensorFlow makes this op.
    if (op == "NextIteration") return match.op == nullptr || match.op->op_type != op;
    return session_.stop_rules.computes(op);
  }

  const GraphView& graph_;
  const NodeMatcher& matcher_;
  const SessionRun& run_;
  const Session& session_;
  std::unordered_map<std::string, std::vector<size_t>> users_;  // keyed by the tensor that they take
};

}  // namespace tfdbg_arrow
