// Finds the nodes of a graph that run whenever another node runs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph_def.h"
#include "node_kinds.h"

namespace tfdbg_arrow {

// The place where a tensor is computed. In a step, either all tensors of one place are computed, or no tensor of it.
struct Place {
  int frame = 0;       // the loop; 0: outside of loops
  int conditions = 0;  // ID of the set of branches that must be taken; 0: none
  int stage = 0;       // length of the longest chain of earlier nodes that can fail

  bool operator<(const Place& other) const {
    return std::tie(frame, conditions, stage) < std::tie(other.frame, other.conditions, other.stage);
  }
};

// The places of the outputs of a graph's nodes.
//
// TensorFlow marks the tensors of a branch that is not taken as dead, from node to node up to a Merge. So the set of
// Switch outputs that a tensor depends on determines when it is computed. If a Merge joins both sides of one condition,
// its output does not depend on a branch. Any other Merge is a condition of its own for the nodes that depend on it.
class ExecutionPlaces {
 public:
  // `can_fail`: for each node whether it can end the step with an error. A loop with such a node can fail as a whole.
  // Then the nodes that pass values into the loop count as nodes that can fail.
  ExecutionPlaces(const GraphView& graph, std::vector<bool> can_fail) : graph_(graph), can_fail_(std::move(can_fail)) {
    for (size_t i = 0; i < graph.nodes.size(); ++i) index_of_.emplace(graph.nodes[i].name, i);
    visit_all();
    if (add_loops_that_can_fail()) visit_all();
  }

  // Returns true if a node can end the step with an error, or begins a loop that can do so.
  bool can_fail(size_t i) const { return can_fail_[i]; }

  // Returns the place where a node runs; nullopt as for of().
  const std::optional<Place>& of_node(size_t i) const { return found_[i]; }
  // Returns the place of an output; nullopt if its node is in a cycle that is not a loop of TensorFlow.
  std::optional<Place> of(size_t i, size_t slot) {
    if (!found_[i]) return std::nullopt;
    return output_place(i, slot);
  }

  // Returns the index of a node in topological order.
  size_t order_of(size_t i) const { return order_[i]; }

  // Returns true if a node that runs at one place can wait for tensors that are computed at another place. These
  // tensors must not depend on a node that can fail and that comes as late as the waiting node.
  bool can_wait(const Place& waiting, const Place& waited_for) const {
    const Set& all = sets_[static_cast<size_t>(waiting.conditions)];
    const Set& some = sets_[static_cast<size_t>(waited_for.conditions)];
    return waiting.frame == waited_for.frame && waited_for.stage <= waiting.stage &&
           std::includes(all.begin(), all.end(), some.begin(), some.end());
  }

 private:
  using Set = std::vector<int>;  // sorted conditions
  static constexpr size_t kMaxConditions = 64;  // per node; a node with more has a place of its own

  struct Edge {
    size_t node;
    int32_t slot;  // -1: a control edge
  };

  // Returns the edges to a node, without the back edges of loops and without unknown sources.
  std::vector<Edge> edges_to(size_t i) const {
    std::vector<Edge> edges;
    for (std::string_view text : graph_.nodes[i].inputs) {
      const std::optional<NodeInput> input = parse_input(text);
      const auto source = input ? index_of_.find(input->node) : index_of_.end();
      if (source == index_of_.end()) continue;
      if (is_merge(graph_.nodes[i].op) && is_next(graph_.nodes[source->second].op)) continue;
      edges.push_back({source->second, input->is_control ? -1 : input->slot});
    }
    return edges;
  }

  // Marks the nodes that pass values into a loop that can fail; returns true if there are any.
  bool add_loops_that_can_fail() {
    std::vector<bool> is_failing(parents_.size(), false);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      int frame = can_fail_[i] && found_[i] ? found_[i]->frame : 0;
      for (; frame != 0; frame = parents_[static_cast<size_t>(frame)]) is_failing[static_cast<size_t>(frame)] = true;
    }
    bool is_changed = false;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!found_[i] || !is_enter(graph_.nodes[i].op)) continue;
      if (!is_failing[static_cast<size_t>(output_place(i, 0).frame)]) continue;
      can_fail_[i] = true;
      is_changed = true;
    }
    return is_changed;
  }

  void visit_all() {
    const size_t num_nodes = graph_.nodes.size();
    found_.assign(num_nodes, std::nullopt);
    order_.assign(num_nodes, 0);
    parents_ = {0};
    frame_ids_.clear();
    conditions_.clear();
    condition_ids_.clear();
    sets_ = {{}};
    set_ids_ = {{Set(), 0}};
    switched_.clear();
    entered_.clear();
    std::vector<size_t> num_waited_for(num_nodes, 0);
    std::vector<std::vector<size_t>> users(num_nodes);
    std::vector<size_t> ready;
    size_t num_seen = 0;
    for (size_t i = 0; i < num_nodes; ++i) {
      const std::vector<Edge> edges = edges_to(i);
      for (const Edge& edge : edges) users[edge.node].push_back(i);
      num_waited_for[i] = edges.size();
      if (edges.empty()) ready.push_back(i);
    }
    while (!ready.empty()) {
      const size_t i = ready.back();
      ready.pop_back();
      order_[i] = num_seen++;
      found_[i] = place_of(i);
      for (size_t user : users[i]) {
        if (--num_waited_for[user] == 0) ready.push_back(user);
      }
    }
  }

  Place place_of(size_t i) {
    const NodeView& node = graph_.nodes[i];
    const std::vector<Edge> edges = edges_to(i);
    Place place;
    Set conditions;
    std::vector<Set> sides;
    for (const Edge& edge : edges) {
      const Place source = output_place(edge.node, static_cast<size_t>(std::max(edge.slot, 0)), edge.slot < 0);
      const Set& set = sets_[static_cast<size_t>(source.conditions)];
      place.frame = std::max(place.frame, source.frame);
      place.stage = std::max(place.stage, source.stage);
      sides.push_back(set);
      conditions = united(conditions, set);
    }
    const std::string own = "of " + std::string(node.name);
    if (is_merge(node.op)) {
      conditions = joined(sides).value_or(Set{condition(own)});
    } else if (is_exit(node.op)) {
      // All values leave a loop at the same time.
      const bool is_switched = edges.size() == 1 && is_switch(graph_.nodes[edges[0].node].op);
      conditions = {condition(is_switched ? "behind " + predicate(edges[0].node) : own)};
      place.frame = place.frame == 0 ? 0 : parents_[static_cast<size_t>(place.frame)];
    }
    if (conditions.size() > kMaxConditions) conditions = {condition(own)};
    place.conditions = id_of(conditions);
    return place;
  }

  // Returns the place of an Enter's output, without the stage.
  Place entered(size_t i) {
    const NodeView& node = graph_.nodes[i];
    const std::string own = "of " + std::string(node.name);
    const std::string_view* name = node.attr("frame_name");
    const std::string_view* constant = node.attr("is_constant");
    Place place = *found_[i];
    place.frame = frame(place.frame, name == nullptr ? own : std::string(attr_string(*name).value_or(own)));
    // The output of an Enter exists only in the first iteration, unless it is a constant of the loop.
    if (constant == nullptr || !attr_bool(*constant).value_or(false)) {
      place.conditions = id_of(united(sets_[static_cast<size_t>(place.conditions)], {condition(own)}));
    }
    return place;
  }

  Place output_place(size_t i, size_t slot, bool is_control = false) {
    Place place = *found_[i];
    if (is_enter(graph_.nodes[i].op)) {
      auto known = entered_.find(i);
      if (known == entered_.end()) known = entered_.emplace(i, entered(i)).first;
      place = known->second;
    }
    if (can_fail_[i]) ++place.stage;
    if (is_control || !is_switch(graph_.nodes[i].op)) return place;
    const auto known = switched_.find({i, slot});
    if (known != switched_.end()) {
      place.conditions = known->second;
      return place;
    }
    const Set side = {condition(predicate(i) + " is " + std::to_string(slot))};
    place.conditions = id_of(united(sets_[static_cast<size_t>(place.conditions)], side));
    switched_.emplace(std::pair<size_t, size_t>(i, slot), place.conditions);
    return place;
  }

  // Returns the common conditions of two sides of one condition; nullopt if they are not such sides.
  std::optional<Set> joined(const std::vector<Set>& sides) const {
    if (sides.size() != 2) return std::nullopt;
    Set first, second, common;
    std::set_difference(sides[0].begin(), sides[0].end(), sides[1].begin(), sides[1].end(), std::back_inserter(first));
    std::set_difference(sides[1].begin(), sides[1].end(), sides[0].begin(), sides[0].end(), std::back_inserter(second));
    if (first.size() != 1 || second.size() != 1) return std::nullopt;
    const std::string &one = conditions_[static_cast<size_t>(first[0])], &other = conditions_[static_cast<size_t>(second[0])];
    auto is_other_side = [](const std::string& a, const std::string& b) {
      return a.size() == b.size() && a.size() > 5 && a.substr(a.size() - 5) == " is 0" && b.substr(b.size() - 5) == " is 1" &&
             a.compare(0, a.size() - 5, b, 0, b.size() - 5) == 0;
    };
    if (!is_other_side(one, other) && !is_other_side(other, one)) return std::nullopt;
    std::set_intersection(sides[0].begin(), sides[0].end(), sides[1].begin(), sides[1].end(), std::back_inserter(common));
    return common;
  }

  // Returns the tensor that decides which output of a Switch is computed.
  std::string predicate(size_t i) const {
    const NodeView& node = graph_.nodes[i];
    return node.inputs.size() < 2 ? std::string(node.name) : canonical(node.inputs[1]);
  }

  static Set united(const Set& a, const Set& b) {
    Set both;
    std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
    return both;
  }

  int condition(const std::string& text) {
    const auto [entry, is_new] = condition_ids_.try_emplace(text, static_cast<int>(conditions_.size()));
    if (is_new) conditions_.push_back(text);
    return entry->second;
  }

  int frame(int parent, const std::string& name) {
    const auto [entry, is_new] = frame_ids_.try_emplace({parent, name}, static_cast<int>(parents_.size()));
    if (is_new) parents_.push_back(parent);
    return entry->second;
  }

  int id_of(const Set& set) {
    const auto [entry, is_new] = set_ids_.try_emplace(set, static_cast<int>(sets_.size()));
    if (is_new) sets_.push_back(set);
    return entry->second;
  }

  const GraphView& graph_;
  std::vector<bool> can_fail_;
  std::unordered_map<std::string_view, size_t> index_of_;
  std::vector<std::optional<Place>> found_;
  std::vector<size_t> order_;
  std::vector<int> parents_;  // the parents of the frames
  std::map<std::pair<int, std::string>, int> frame_ids_;
  std::vector<std::string> conditions_;
  std::unordered_map<std::string, int> condition_ids_;
  std::vector<Set> sets_;
  std::map<Set, int> set_ids_;
  std::map<std::pair<size_t, size_t>, int> switched_;
  std::unordered_map<size_t, Place> entered_;
};

}  // namespace tfdbg_arrow
