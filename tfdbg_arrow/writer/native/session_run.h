// Finds the nodes of a graph that a run of a `tf.compat.v1.Session` computes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "executed.h"
#include "graph_def.h"
#include "node_kinds.h"

namespace tfdbg_arrow {

// The nodes that a run of a session computes. After the optimizer, TensorFlow removes all nodes that the fetches and
// targets do not need. So if no node needs a record op, the record op stays only if the run's own op waits for it.
class SessionRun {
 public:
  // `generation`: the number of the recording.
  SessionRun(const GraphView& graph, int64_t generation) : graph_(graph) {
    for (size_t i = 0; i < graph.nodes.size() && !is_found(); ++i) {
      const NodeView& node = graph.nodes[i];
      if (node.op != "NoOp") continue;
      const std::string_view* mark = node.attr(kGraphAttr);
      const std::string_view* needs = node.attr(kNeedsAttr);
      const std::string_view* feeds = node.attr(kFeedsAttr);
      if (mark == nullptr || needs == nullptr || feeds == nullptr) continue;
      if (attr_int(*mark).value_or(-1) >> 32 == generation) {
        index_ = i;
        read(attr_string(*needs).value_or(""), attr_string(*feeds).value_or(""));
      }
    }
  }

  bool is_found() const { return index_ != kNone; }
  // Returns the index of the node that stands for the run.
  size_t index() const { return index_; }
  // Returns true if a node always runs when the graph runs: it is outside of loops and branches.
  bool is_unconditional(size_t i) const { return unconditional_[i]; }
  // Returns true if an output is a fetch of the run.
  bool is_asked(size_t i, size_t slot) const {
    return is_found() && asked_.count(with_slot(graph_.nodes[i].name, static_cast<int32_t>(slot))) != 0;
  }
  // Returns true if the run always computes an output: it is a fetch, or belongs to an unconditional node.
  bool computes(size_t i, size_t slot) const {
    const std::string name = with_slot(graph_.nodes[i].name, static_cast<int32_t>(slot));
    return asked_.count(name) != 0 || (reached_[i] && unconditional_[i] && fed_.count(name) == 0);
  }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);

  static std::string with_slot(std::string_view node, int32_t slot) {
    return std::string(node) + ":" + std::to_string(slot);
  }

  static std::vector<std::string_view> lines_of(std::string_view text) {
    std::vector<std::string_view> lines;
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      lines.push_back(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    return lines;
  }

  void read(std::string_view needs, std::string_view feeds) {
    for (std::string_view feed : lines_of(feeds)) fed_.emplace(feed);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) index_of_.emplace(graph_.nodes[i].name, i);
    reached_.assign(graph_.nodes.size(), false);
    std::vector<size_t> waiting;
    for (std::string_view need : lines_of(needs)) {
      asked_.emplace(need);
      const std::optional<NodeInput> input = parse_input(need);
      if (input && fed_.count(std::string(need)) == 0) reach(input->node, &waiting);
    }
    while (!waiting.empty()) {
      const size_t i = waiting.back();
      waiting.pop_back();
      for (std::string_view text : graph_.nodes[i].inputs) {
        const std::optional<NodeInput> input = parse_input(text);
        if (input && !is_fed(*input)) reach(input->node, &waiting);
      }
    }
    find_unconditional();
  }

  void reach(std::string_view name, std::vector<size_t>* waiting) {
    const auto found = index_of_.find(name);
    if (found == index_of_.end() || reached_[found->second]) return;
    reached_[found->second] = true;
    waiting->push_back(found->second);
  }

  // A fed Placeholder does not run, so no node waits for it.
  bool is_fed(const NodeInput& input) const {
    return fed_.count(with_slot(input.node, input.is_control ? 0 : input.slot)) != 0 &&
           (!input.is_control || is_placeholder(input.node));
  }

  bool is_placeholder(std::string_view name) const {
    const auto found = index_of_.find(name);
    if (found == index_of_.end()) return false;
    return has_to_be_fed(graph_.nodes[found->second].op);
  }

  // Visits nodes in topological order. Nodes in a loop are never reached, because each cycle has a Merge.
  void find_unconditional() {
    const size_t num_nodes = graph_.nodes.size();
    unconditional_.assign(num_nodes, false);
    std::vector<size_t> num_waited_for(num_nodes, 0);
    std::vector<std::vector<size_t>> users(num_nodes);
    std::vector<size_t> ready;
    for (size_t i = 0; i < num_nodes; ++i) {
      const NodeView& node = graph_.nodes[i];
      bool is_known = !is_plumbing(node.op) || node.op == "NoOp";
      for (std::string_view text : node.inputs) {
        const std::optional<NodeInput> input = parse_input(text);
        const auto found = input ? index_of_.find(input->node) : index_of_.end();
        if (found == index_of_.end()) {
          is_known = false;
        } else if (!is_fed(*input)) {
          users[found->second].push_back(i);
          ++num_waited_for[i];
        }
      }
      if (!is_known) {
        num_waited_for[i] = kNone;
      } else if (num_waited_for[i] == 0) {
        ready.push_back(i);
      }
    }
    while (!ready.empty()) {
      const size_t i = ready.back();
      ready.pop_back();
      unconditional_[i] = true;
      for (size_t user : users[i]) {
        if (num_waited_for[user] == kNone) continue;
        --num_waited_for[user];
        if (num_waited_for[user] == 0) ready.push_back(user);
      }
    }
  }

  const GraphView& graph_;
  size_t index_ = kNone;
  std::unordered_set<std::string> fed_, asked_;
  std::unordered_map<std::string_view, size_t> index_of_;
  std::vector<bool> reached_, unconditional_;
};

}  // namespace tfdbg_arrow
