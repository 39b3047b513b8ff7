// Finds for each node of an optimized graph the op of the program that the node stands for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "executed.h"
#include "graph_def.h"
#include "node_kinds.h"
#include "session.h"

namespace tfdbg_arrow {

// Maximum number of components at the end of a name, and of original names, that are compared with names of ops. The
// time of a comparison is proportional to the length of the name, so a long name would take quadratic time without this
// limit.
constexpr size_t kMaxLooks = 256;

// Returns true if the part of a name before the op's name is not a path of calls, because a pass of TensorFlow named
// the node.
inline bool is_made_by_a_pass(std::string_view path) {
  return path.find("ConstantFolding") != std::string_view::npos || path.find("Optimizer") != std::string_view::npos;
}

// Returns the last components of a name, at most kMaxLooks.
inline std::string_view last_components(std::string_view name) {
  size_t begin = name.size();
  for (size_t i = 0; i < kMaxLooks && begin != 0; ++i) {
    const size_t at = name.rfind('/', begin - 1);
    if (at == std::string_view::npos) return name;
    begin = at;
  }
  return name.substr(begin);
}

inline bool ends_with_component(std::string_view text, std::string_view end) {
  return text.size() > end.size() && text.substr(text.size() - end.size()) == end &&
         text[text.size() - end.size() - 1] == '/';
}

using Graphs = std::unordered_map<int64_t, std::shared_ptr<const ProgramGraph>>;

// Finds the op of the program that a node stands for.
class NodeMatcher {
 public:
  NodeMatcher(const GraphView& graph, Session& session) : graph_(graph), session_(session), found_(graph.nodes.size()) {
    for (size_t i = 0; i < graph.nodes.size(); ++i) match_marked(i);
    if (!is_ours_) return;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      if (found_[i].op != nullptr || is_own(graph.nodes[i])) continue;
      match_by_name(i);
      if (found_[i].op == nullptr && found_[i].has_path) follow_calls(i);
    }
  }

  struct Match {
    int64_t graph_id = -1;
    const ProgramOp* op = nullptr;
    std::string_view path;
    bool has_path = false;
    int64_t argument = -1;
  };

  // Returns true if a node belongs to a graph of this recording.
  bool is_ours() const { return is_ours_; }
  const Match& operator[](size_t i) const { return found_[i]; }
  // Makes a node stand for no op.
  void forget_op(size_t i) { found_[i].op = nullptr; }

 private:
  const ProgramGraph* program_graph(int64_t graph_id) {
    auto [entry, is_new] = graphs_.try_emplace(graph_id);
    if (is_new) entry->second = session_.executed.find(graph_id);
    return entry->second.get();
  }

  void take(size_t i, int64_t graph_id, const ProgramOp* op, std::string_view path) {
    found_[i].graph_id = graph_id;
    found_[i].op = op;
    found_[i].path = path;
    found_[i].has_path = true;
  }

  void match_marked(size_t i) {
    const NodeView& node = graph_.nodes[i];
    const std::string_view* mark = node.attr(kGraphAttr);
    if (mark == nullptr) return;
    const std::optional<int64_t> value = attr_int(*mark);
    if (!value || *value >> 32 != session_.generation) return;
    const int64_t graph_id = *value & 0xffffffff;
    const ProgramGraph* program = program_graph(graph_id);
    if (program == nullptr) return;
    is_ours_ = true;
    if (is_own(node)) {  // a run of a session, whose own nodes have no marks
      place(graph_id, std::string_view());
      return;
    }
    found_[i].graph_id = graph_id;
    if (is_argument(node.op)) {
      // Inlining removes the arguments of called functions, so this argument belongs to the outermost function.
      place(graph_id, std::string_view());
      return;
    }
    for (size_t k = 0; k < std::min(node.original_names.size(), kMaxLooks); ++k) {
      const std::string_view original = node.original_names[k];
      if (original == node.name || ends_with_component(node.name, original)) {
        if (try_name(i, graph_id, *program, original)) return;
      }
    }
    // Take the longest name of an op; the part before it is the path.
    if (try_name(i, graph_id, *program, node.name)) return;
    const std::string_view name = last_components(node.name);
    for (size_t at = name.find('/'); at != std::string_view::npos; at = name.find('/', at + 1)) {
      if (try_name(i, graph_id, *program, name.substr(at + 1))) return;
    }
  }

  bool try_name(size_t i, int64_t graph_id, const ProgramGraph& program, std::string_view own_name) {
    const auto op = program.ops.find(std::string(own_name));
    if (op == program.ops.end()) return false;
    const std::string_view name = graph_.nodes[i].name;
    const std::string_view path = name.substr(0, name.size() - std::min(name.size(), own_name.size() + 1));
    if (is_made_by_a_pass(path)) return false;
    take(i, graph_id, &op->second, path);
    place(graph_id, path);
    return true;
  }

  // Notes that a graph was inlined at a path.
  void place(int64_t graph_id, std::string_view path) {
    auto& ids = graphs_at_[path];
    if (std::find(ids.begin(), ids.end(), graph_id) == ids.end()) ids.push_back(graph_id);
  }

  // A node that TensorFlow's passes made has no mark. A fused node has the name of the last op for which it stands.
  void match_by_name(size_t i) {
    const NodeView& node = graph_.nodes[i];
    if (is_argument(node.op)) {
      match_argument(i);
      return;
    }
    std::string_view name = node.name;
    size_t at = name.rfind('/');
    for (size_t look = 0; look < kMaxLooks; ++look, at = name.rfind('/', at - 1)) {
      const bool is_whole = at == std::string_view::npos;
      const std::string_view path = is_whole ? std::string_view() : name.substr(0, at);
      const auto ids = graphs_at_.find(path);
      if (ids != graphs_at_.end()) {
        for (int64_t graph_id : ids->second) {
          const ProgramGraph* program = program_graph(graph_id);
          const auto op = program->ops.find(std::string(is_whole ? name : name.substr(at + 1)));
          if (op != program->ops.end()) {
            take(i, graph_id, &op->second, path);
            return;
          }
          if (found_[i].graph_id < 0) found_[i].graph_id = graph_id;
          if (found_[i].graph_id == graph_id && !found_[i].has_path) {
            found_[i].path = path;
            found_[i].has_path = true;
          }
        }
      }
      if (is_whole || at == 0) return;
    }
  }

  // If all ops of a called graph were fused, no node has its mark. Then the path in the node's name leads to the graph.
  void follow_calls(size_t i) {
    const std::string_view name = graph_.nodes[i].name;
    size_t begin = found_[i].path.empty() ? 0 : found_[i].path.size() + 1;
    size_t at = name.find('/', begin);
    for (size_t look = 0; look < kMaxLooks && at != std::string_view::npos; ++look) {
      const auto& calls = program_graph(found_[i].graph_id)->calls;
      const auto call = calls.find(std::string(name.substr(begin, at - begin)));
      if (call != calls.end() && program_graph(call->second) != nullptr) {
        at = end_of_number(name, at);
        found_[i].graph_id = call->second;
        found_[i].path = name.substr(0, at);
        if (at == name.size()) return;
        begin = at + 1;
        const ProgramGraph* program = program_graph(call->second);
        const auto op = program->ops.find(std::string(name.substr(begin)));
        if (op != program->ops.end()) {
          found_[i].op = &op->second;
          return;
        }
        at = begin - 1;
      }
      at = name.find('/', at + 1);
    }
  }

  // TensorFlow numbers the bodies of loops and branches that it inlines: `while/body/_12/`.
  static size_t end_of_number(std::string_view name, size_t at) {
    if (name.substr(at, 2) != "/_") return at;
    const size_t end = std::min(name.find('/', at + 2), name.size());
    const std::string_view number = name.substr(at + 2, end - at - 2);
    const bool is_number = !number.empty() && number.find_first_not_of("0123456789") == std::string_view::npos;
    return is_number ? end : at;
  }

  void match_argument(size_t i) {
    const auto ids = graphs_at_.find(std::string_view());
    const std::string_view* value = graph_.nodes[i].attr("index");
    const int64_t index = value == nullptr ? -1 : attr_int(*value).value_or(-1);
    if (ids == graphs_at_.end() || ids->second.size() != 1 || index < 0) return;
    const int64_t graph_id = ids->second[0];
    const ProgramGraph* program = program_graph(graph_id);
    if (static_cast<size_t>(index) >= program->arguments.size()) return;
    const auto op = program->ops.find(program->arguments[static_cast<size_t>(index)]);
    if (op == program->ops.end()) return;
    take(i, graph_id, &op->second, std::string_view());
    found_[i].argument = index;
  }

  const GraphView& graph_;
  Session& session_;
  std::vector<Match> found_;
  Graphs graphs_;
  std::unordered_map<std::string_view, std::vector<int64_t>> graphs_at_;  // the graphs that were inlined at a path
  bool is_ours_ = false;
};

}  // namespace tfdbg_arrow
