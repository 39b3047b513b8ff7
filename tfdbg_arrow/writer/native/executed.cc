#include "executed.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <set>
#include <stdexcept>
#include <unordered_set>

#include "device_summaries.h"
#include "execution_places.h"
#include "graph_def.h"
#include "graph_judge.h"
#include "node_kinds.h"
#include "node_matcher.h"
#include "record_op.h"
#include "session.h"
#include "session_run.h"
#include "tensorflow_api.h"
#include "variable_reads.h"

namespace tfdbg_arrow {
namespace {

// Limits for one graph. A node of a few bytes can claim 65,536 outputs, and TensorFlow cannot read a graph of 2 GB.
constexpr size_t kMaxOutputsInAll = size_t{1} << 20;
constexpr size_t kMaxAddedBytes = size_t{1} << 27;
constexpr size_t kMaxSources = 256;  // nodes to search for the sources of a watched tensor
constexpr size_t kMaxKeptInputs = 64;
constexpr size_t kRecordOpBytes = 192;  // approximate size of a record op without names

// Returns true if TensorFlow chooses the kernel of a node by its input node. It uses the kernel of oneDNN only if the
// node's input comes directly from the forward op.
// Source: tensorflow/core/common_runtime/mkl_layout_pass.cc, MaxpoolGradRewrite and LrnGradRewrite.
bool is_seen_by_a_later_pass(std::string_view op, size_t input_index) {
  if (op == "MaxPoolGrad" || op == "MaxPool3DGrad") return input_index == 1;
  return op == "LRNGrad" && input_index == 2;
}

// Returns true if a node must not wait for the reader of an input. TensorFlow merges Conv2DBackpropFilter with the
// BiasAddGrad that takes the same gradient only if both have the same control edges, and the merged kernel rounds
// differently. The gradient comes after the convolution, which waits for the readers of the other inputs.
// Source: tensorflow/core/common_runtime/mkl_layout_pass.cc, MergeConv2DBackpropFilterWithBiasAddGrad.
bool is_merged_by_a_later_pass(std::string_view op, size_t input_index) {
  constexpr size_t kGradient = 2;
  return op == "Conv2DBackpropFilter" && input_index != kGradient;
}

// The dtypes of TensorFlow's ops. They are read again when an unknown op is found.
class KnownOps {
 public:
  // Sets `may_read` to false when all ops were read. Reading takes milliseconds, and once per graph is enough.
  std::optional<std::vector<int>> output_types(const NodeView& node, bool* may_read) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!table_.knows(node.op) && missing_.insert(std::string(node.op)).second && *may_read) {
      read();
      *may_read = false;
    }
    return table_.output_types(node);
  }

  // For fork(). The child's thread has another id than the owner of the lock, so the child makes a new lock.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  void renew_lock() { new (&mutex_) std::mutex; }

 private:
  void read() {
    const TensorFlowApi& tf = tf_api();
    if (tf.TF_GetAllOpList == nullptr) return;  // TensorFlow is not loaded
    TF_Buffer* buffer = tf.TF_GetAllOpList();
    if (buffer == nullptr) return;
    table_.read(std::string_view(static_cast<const char*>(buffer->data), buffer->length));
    tf.TF_DeleteBuffer(buffer);
  }

  std::mutex mutex_;
  OpTable table_;
  std::unordered_set<std::string> missing_;
};

KnownOps& known_ops() {
  static KnownOps* ops = new KnownOps();
  return *ops;
}

// Returns the key of a tensor that is not in the registry: TensorFlow made its node, or changed the type of the op.
int32_t key_of_node(int64_t graph_id, size_t slot, std::string_view op_type, std::string_view name) {
  const std::string text =
      std::to_string(graph_id) + "\n" + std::to_string(slot) + "\n" + std::string(op_type) + "\n" + std::string(name);
  return -strings().intern(text) - 2;
}

ExecutedNode describe(const NodeView& node, const NodeMatcher::Match& match, bool* may_read_ops) {
  ExecutedNode described;
  described.name = node.name;
  described.op_type = node.op;
  described.device = node.device;
  described.graph_id = match.graph_id;
  if (match.op != nullptr) described.op_name = match.op->op_name;
  described.path = match.path;
  described.has_path = match.has_path;
  for (std::string_view text : node.inputs) {
    const std::optional<NodeInput> input = parse_input(text);
    if (!input) throw std::runtime_error("the node " + described.name + " has an input that is none");
    described.inputs.push_back({std::string(input->node), input->slot, input->is_control});
  }
  std::optional<std::vector<int>> types = known_ops().output_types(node, may_read_ops);
  described.has_output_types = types.has_value();
  if (is_argument(node.op) || is_result(node.op)) {
    const std::string_view* index = node.attr("index");
    described.interface_index = (index == nullptr ? std::nullopt : attr_int(*index)).value_or(-1);
  }
  if (types) described.output_types = *std::move(types);
  return described;
}

// Returns true if TensorFlow removed unused outputs of an IdentityN, so that the other outputs have new numbers.
bool has_lost_outputs(const ExecutedNode& node, const ProgramOp* op) {
  return op != nullptr && node.op_type == "IdentityN" && op->op_type == node.op_type && node.has_output_types &&
         node.output_types.size() < op->keys.size();
}

// Returns true for ops that fail the step because of a value.
bool is_check(std::string_view op) {
  return forwards_or_fails(op) || op == "Assert";
}

// Returns true for ops that write to the memory of an input even if another owner holds this memory.
bool writes_to_input(std::string_view op) {
  return op == "InplaceAdd" || op == "InplaceSub" || op == "InplaceUpdate" || op == "_ParallelConcatUpdate";
}

// Returns true for nodes whose inputs do not pass through record ops; these nodes wait for the record ops beside their
// inputs. The reason: on a device, a sum adds its terms in another order if a record op still holds one of the terms.
// Source: tensorflow/core/kernels/aggregate_ops.cc, which begins with the first term whose memory it can reuse.
bool waits_for_records(const NodeView& node) {
  return is_check(node.op) || (node.op == "AddN" && !is_host(node.device));
}

// Adds record ops to one graph.
class Editor {
 public:
  // `number`: the number of the graph. `described`: its nodes, one by one.
  Editor(const GraphView& graph, int64_t number, const std::vector<ExecutedNode>& described, const NodeMatcher& matcher,
         Session& session)
      : graph_(graph),
        number_(number),
        described_(described),
        matcher_(matcher),
        session_(session),
        run_(graph, session.generation),
        judge_(graph, matcher, run_, session),
        name_prefix_(kRecordNodePrefix) {
    if (run_.is_found()) {
      // A session caches kernels by the names of their nodes, across all graphs that it runs.
      static std::atomic<int64_t> next_run{0};
      name_prefix_ += std::to_string(next_run.fetch_add(1)) + "_";
    }
    for (const NodeView& node : graph.nodes) {
      if (node.name.substr(0, kRecordNodePrefix.size()) == kRecordNodePrefix) taken_names_.insert(node.name);
    }
  }

  std::string edited() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) index_of_.emplace(graph_.nodes[i].name, i);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) record(i);
    if (judge_.any()) {
      for (size_t i = 0; i < graph_.nodes.size(); ++i) watch(i);
    }
    session_.executed.note_masked(std::move(masked_));
    if (!summarised_.empty()) summarise();
    if (added_.empty()) return {};
    std::string bytes = rewired();
    bytes.append(added_);
    return bytes;
  }

 private:
  void record(size_t i) {
    const NodeView& node = graph_.nodes[i];
    const NodeMatcher::Match& match = matcher_[i];
    if (match.graph_id < 0 || is_own(node) || is_remote(node.device)) return;
    if (!is_recorded_op(node, match)) return;
    if (!can_be_an_input(node)) return;
    const std::vector<int>& types = described_[i].output_types;
    for (size_t slot = 0; slot < types.size(); ++slot) {
      const bool is_reference = types[slot] < 0;
      const int type = std::abs(types[slot]);
      const bool keep = match.op != nullptr && match.op->keep;
      const bool is_component = session_.keeps_inputs && type > 0 && !is_reference && Session::has_elements(type) &&
                                ((match.op != nullptr && match.op->is_element) ||
                                 session_.element_ops.count(std::string(node.op)) != 0);
      if (type == 0 || (!session_.covers(type, keep) && !is_component)) continue;
      // A consumer of a reference must get the reference directly from its op. Python selects the references to record.
      if (is_reference && (match.op == nullptr || !run_.is_found() || !run_.computes(i, slot))) continue;
      check_room(node);
      std::optional<int32_t> key = key_of(node, match, slot);
      if (!key && is_component) key = key_of_node(match.graph_id, slot, node.op, match.op->op_name);
      if (!key) continue;
      const bool stops = judge_.stops(i, slot);
      // A run of a session can only wait for tensors that it always computes.
      const bool can_wait = !run_.is_found() || run_.computes(i, slot);
      const bool is_on_host = !can_wait || is_component;
      if (const SummaryGraph* summary = is_on_host ? nullptr : summary_graph(node, type, *key, keep)) {
        summarised_.push_back({i, slot, type, *key, stops, summary});
      } else {
        add_record_op(i, slot, {*key, type, keep, is_reference, stops, false, is_component, {}});
      }
      if (judge_.any()) keys_.emplace(tensor_name(node.name, slot), *key);
      if (judge_.any() && !stops) note_masked(i, slot, *key);
    }
  }

  // Returns the graph that summarizes a tensor on its device; nullptr if the tensor is summarized on the host.
  const SummaryGraph* summary_graph(const NodeView& node, int type, int32_t key, bool keep) const {
    if (keep || session_.mode == Mode::kFullTensor || !session_.summaries.serve(node.device)) return nullptr;
    return session_.summaries.find(type, key);
  }

  void summarise() {
    std::string prefix;
    do {
      prefix = name_prefix_ + "on_device_" + std::to_string(num_added_++) + "_";
    } while (std::any_of(taken_names_.begin(), taken_names_.end(),
                         [&](std::string_view name) { return name.substr(0, prefix.size()) == prefix; }));
    ExecutionPlaces places(graph_, failing_nodes());
    SummaryNodes nodes(prefix, session_.generation, number_, session_.mode == Mode::kFullNumerics);
    std::stable_sort(summarised_.begin(), summarised_.end(), [&](const Summarised& a, const Summarised& b) {
      return places.order_of(a.node) < places.order_of(b.node);
    });
    VariableReads reads(graph_, index_of_);
    const std::unordered_set<std::string> summed = summed_tensors();
    // An op that takes a variable by reference can write to the variable's memory even if another owner holds it.
    const bool has_references = std::any_of(described_.begin(), described_.end(), [](const ExecutedNode& node) {
      return std::any_of(node.output_types.begin(), node.output_types.end(), [](int type) { return type < 0; });
    });
    for (const Summarised& each : summarised_) {
      const NodeView& node = graph_.nodes[each.node];
      const NodeMatcher::Match& match = matcher_[each.node];
      const std::optional<Place> place = places.of(each.node, each.slot);
      if (!place) throw std::runtime_error("the node " + std::string(node.name) + " is in a cycle");
      // The iterations of a loop can run at the same time, so the order of reads and writes is not known there.
      const bool is_in_order = place->frame == 0;
      nodes.add(*place, {tensor_name(node.name, each.slot), node.name, node.device, each.graph, each.type, each.key,
                         each.stops, match.path, match.has_path, node.op == "Const",
                         node.op == "Const" || (!has_references && summed.count(tensor_name(node.name, each.slot)) == 0),
                         same_tensors(each.node, is_in_order ? &reads : nullptr), session_.summaries.shape_of(each.key)});
    }
    nodes.build(&added_, kMaxAddedBytes);
    readers_ = nodes.readers();
    hand_on();
    if (run_.is_found()) {
      for (const auto& [recorded, name] : nodes.record_ops()) waited_for_.push_back("^" + name);
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const std::optional<Place> place = places.can_fail(i) ? places.of_node(i) : std::nullopt;
      if (!place) continue;
      for (const auto& [recorded, name] : nodes.record_ops()) {
        if (places.can_wait(*place, recorded)) waits_for_[i].push_back("^" + name);
      }
    }
  }

  // Returns the tensors whose memory may hold a term of a sum, or a tensor to which another op writes. The sum may also
  // be in a called function.
  std::unordered_set<std::string> summed_tensors() const {
    std::unordered_set<std::string> summed;
    std::vector<size_t> waiting;
    auto add_inputs = [&](const NodeView& node) {
      for (std::string_view text : node.inputs) {
        const std::optional<NodeInput> input = parse_input(text);
        if (!input || input->is_control || !summed.insert(canonical(text)).second) continue;
        const auto source = index_of_.find(input->node);
        if (source != index_of_.end() && !has_own_memory(graph_.nodes[source->second].op)) waiting.push_back(source->second);
      }
    };
    for (const NodeView& node : graph_.nodes) {
      if (node.op == "AddN" || writes_to_input(node.op) || is_call(node.op)) add_inputs(node);
    }
    while (!waiting.empty()) {
      const NodeView& node = graph_.nodes[waiting.back()];
      waiting.pop_back();
      add_inputs(node);
    }
    return summed;
  }

  // Returns the tensors that have the same elements as the output of a node, from the nearest to the farthest.
  std::vector<SameTensor> same_tensors(size_t i, VariableReads* reads) const {
    const SameElements& ops = session_.summaries.same_elements();
    std::vector<SameTensor> found;
    bool has_same_shape = true;
    for (auto at = index_of_.find(graph_.nodes[i].name); at != index_of_.end() && found.size() < kMaxSources;) {
      const NodeView& node = graph_.nodes[at->second];
      for (size_t read : reads == nullptr ? std::vector<size_t>() : reads->same_as(at->second)) {
        found.push_back({std::string(graph_.nodes[read].name), has_same_shape});
      }
      const bool is_same = ops.same_tensor.count(std::string(node.op)) != 0;
      if (!is_same && ops.reshaped.count(std::string(node.op)) == 0) break;
      const std::optional<NodeInput> input = node.inputs.empty() ? std::nullopt : parse_input(node.inputs[0]);
      if (!input || input->is_control) break;
      has_same_shape = has_same_shape && is_same;
      found.push_back({tensor_name(input->node, static_cast<size_t>(input->slot)), has_same_shape});
      at = index_of_.find(input->node);
    }
    return found;
  }

  // Returns true if a node cannot wait for the last reader of its input, but must take the input from a forwarding
  // node. A Merge waits for only one of its inputs. On another device, the control edge would cause an additional copy.
  static bool takes_handed_on(const NodeView& node, const Reader& reader) {
    return is_merge(node.op) || node.device != reader.device;
  }

  // Adds the nodes that forward tensors to such nodes.
  void hand_on() {
    for (const NodeView& node : graph_.nodes) {
      if (is_result(node.op)) continue;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const std::string tensor = canonical(node.inputs[i]);
        const auto reader = readers_.find(tensor);
        if (reader == readers_.end() || !takes_handed_on(node, reader->second) || handed_on_.count(tensor) != 0) continue;
        std::string name;
        put_bytes_field(&added_, 1, handing_on(tensor, reader->second, &name));
        handed_on_.emplace(tensor, std::move(name));
      }
    }
  }

  // Returns for each node whether it can end the step with an error.
  std::vector<bool> failing_nodes() const {
    std::vector<bool> failing;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const NodeView& node = graph_.nodes[i];
      const ProgramOp* op = matcher_[i].op;
      const Fails fails = op == nullptr || node.op != op->op_type ? Fails::kNever : op->fails;
      failing.push_back(watched_.count(i) != 0 || is_check(node.op) || fails == Fails::kEverywhere || (fails == Fails::kOnHost && is_host(node.device)));
    }
    return failing;
  }

  // A branch or a called function takes its arguments from nodes without rows. If an op computes with a bad argument,
  // the program stops at this op, and the error names the tensor from which the argument came.
  void watch(size_t i) {
    const NodeView& node = graph_.nodes[i];
    const NodeMatcher::Match& match = matcher_[i];
    if (match.graph_id < 0 || is_own(node) || is_remote(node.device) || is_recorded_op(node, match)) return;
    if (!passes_on_a_value(node.op) || !can_be_an_input(node)) return;
    // Tensors that are counted on a device must be recorded first, but a Merge or an Exit cannot wait for them.
    if (!summarised_.empty() && (node.op == "Merge" || node.op == "Exit")) return;
    const std::vector<int>& types = described_[i].output_types;
    for (size_t slot = 0; slot < types.size(); ++slot) {
      if (types[slot] <= 0 || !session_.covers(types[slot], false) || !judge_.stops(i, slot)) continue;
      std::vector<int32_t> sources = sources_of(i, slot);
      if (sources.empty() && !session_.executed.records_others()) continue;  // the user excluded the source
      check_room(node);
      const int32_t key = key_of_node(match.graph_id, slot, node.op, node.name);
      add_record_op(i, slot, {key, types[slot], false, false, true, true, false, std::move(sources)});
      watched_.insert(i);
    }
  }

  // A node whose name looks like an output of another node, or like a control edge, cannot be an input.
  static bool can_be_an_input(const NodeView& node) {
    const std::optional<NodeInput> as_input = parse_input(node.name);
    return as_input && as_input->node == node.name;
  }

  void check_room(const NodeView& node) const {
    if (added_.size() + kRecordOpBytes + 4 * node.name.size() > kMaxAddedBytes) {
      throw std::runtime_error("the record ops take too much memory");
    }
  }

  // No node may be inserted between a Merge and the NextIteration that leads back to this Merge.
  static bool passes_on_a_value(std::string_view op) {
    return passes_on(op) || op == "Switch" || op == "_SwitchN" || op == "Merge" || op == "Enter" || op == "Exit";
  }

  // Returns the keys of the recorded tensors that an output of a node may be.
  std::vector<int32_t> sources_of(size_t i, size_t slot) const {
    std::vector<int32_t> keys;
    std::vector<std::pair<size_t, size_t>> waiting{{i, slot}};
    std::set<std::pair<size_t, size_t>> seen(waiting.begin(), waiting.end());
    while (!waiting.empty() && seen.size() < kMaxSources) {
      const auto [at, out] = waiting.back();
      waiting.pop_back();
      const NodeView& node = graph_.nodes[at];
      const auto key = keys_.find(tensor_name(node.name, out));
      if (key != keys_.end()) {
        keys.push_back(key->second);
      } else if (passes_on_a_value(node.op) || node.op == "NextIteration") {
        for (size_t k = 0; k < node.inputs.size(); ++k) {
          const std::optional<NodeInput> input = parse_input(node.inputs[k]);
          const bool is_value = node.op == "Merge" || k == (node.op == "IdentityN" ? out : 0);
          if (!input || input->is_control || !is_value) continue;
          const auto source = index_of_.find(input->node);
          if (source == index_of_.end()) continue;
          const std::pair<size_t, size_t> next{source->second, static_cast<size_t>(input->slot)};
          if (seen.insert(next).second) waiting.push_back(next);
        }
      }
    }
    return keys;
  }

  static bool passes_through(const NodeView& node, const NodeMatcher::Match& match) {
    return match.op == nullptr && (passes_on(node.op) || is_argument(node.op));
  }

  // Returns true if each value of a node gets a row.
  bool is_recorded_op(const NodeView& node, const NodeMatcher::Match& match) const {
    if (is_plumbing(node.op)) return match.op != nullptr && is_programs_own(node, *match.op);
    return match.op != nullptr || (!passes_through(node, match) && session_.executed.records_others());
  }

  void note_masked(size_t i, size_t slot, int32_t key) {
    const ProgramOp* op = matcher_[i].op;
    MaskedOutput output{key, op == nullptr ? std::string(graph_.nodes[i].name) : op->op_name,
                        op == nullptr ? std::string(graph_.nodes[i].op) : op->op_type, static_cast<int64_t>(slot),
                        judge_.users_of(i, slot)};
    masked_.push_back(std::move(output));
  }

  // A loop or branch of TensorFlow 1 consists of ops of the program. TensorFlow finds the back edge of a loop's Merge
  // by the type of the node, so no other node may be inserted into this edge.
  static bool is_programs_own(const NodeView& node, const ProgramOp& op) {
    return node.op == op.op_type && !is_next(node.op);
  }

  std::optional<int32_t> key_of(const NodeView& node, const NodeMatcher::Match& match, size_t slot) const {
    if (match.op == nullptr) return key_of_node(match.graph_id, slot, node.op, node.name);
    if (slot >= match.op->keys.size() || match.op->keys[slot] < 0) return std::nullopt;
    if (node.op == match.op->op_type || is_argument(node.op)) return match.op->keys[slot];
    return key_of_node(match.graph_id, slot, node.op, match.op->op_name);
  }

  // A tensor that is summarized on its device.
  struct Summarised {
    size_t node;
    size_t slot;
    int type;
    int32_t key;
    bool stops;
    const SummaryGraph* graph;
  };

  struct RecordOp {
    int32_t key;
    int type;
    bool keep;
    bool is_reference;
    bool stops;                    // whether the value stops the program if it is bad
    bool is_watch;                 // whether only bad values become rows
    bool is_component;             // whether it is held as an input of its step
    std::vector<int32_t> sources;  // for a watch: keys of the tensors that the value may come from
  };

  void add_record_op(size_t i, size_t slot, const RecordOp& how) {
    const NodeView& node = graph_.nodes[i];
    const NodeMatcher::Match& match = matcher_[i];
    std::string source = tensor_name(node.name, slot);
    // A consumer may treat a constant differently from a computed tensor, so the consumer keeps the constant as its
    // input. In a branch of a session's graph, no node could wait for the record op of a constant, and TensorFlow would
    // remove the op.
    const bool is_constant = node.op == "Const" && (!run_.is_found() || run_.is_unconditional(i));
    // A tensor on another device that is not summarized on its device is copied to the host. The consumers do not get
    // this copy.
    const bool is_aside = is_constant || how.is_reference || !is_host(node.device);
    std::string name;
    do {
      name = name_prefix_ + std::to_string(num_added_++) + "/" + std::string(node.name);
    } while (taken_names_.count(name) != 0);
    NodeBuilder builder(name, is_aside ? kRecordConstantOp : kRecordThroughOp, node.device);
    builder.input(source)
        .attr_type("T", how.type)
        .attr_int("node", how.key)
        .attr_int("generation", session_.generation)
        .attr_int("executed_graph", number_)
        .attr_int("argument", match.argument)
        .attr_bool("keep", how.keep)
        .attr_bool("decides", how.stops)
        .attr_bool("is_watch", how.is_watch)
        .attr_bool("is_component", how.is_component)
        .attr_ints("sources", how.sources)
        .attr_bool("has_call_site", match.has_path)
        .attr_string("call_site", match.path);
    if (session_.keeps_inputs && !how.is_watch && !is_aside) add_kept_inputs(i, &builder);
    put_bytes_field(&added_, 1, builder.bytes());
    if (run_.is_found() && run_.computes(i, slot)) waited_for_.push_back("^" + name);
    if (how.is_reference) return;
    (is_aside ? beside_ : record_ops_).emplace(std::move(source), name);
  }

  // Gives a record op the inputs of its node, so that these inputs still exist when the op sees a bad value.
  void add_kept_inputs(size_t i, NodeBuilder* builder) const {
    const NodeView& node = graph_.nodes[i];
    if (is_plumbing(node.op) || is_call(node.op) || node.inputs.size() > kMaxKeptInputs) return;
    std::vector<int> types;
    std::vector<int32_t> indexes;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      const std::optional<NodeInput> input = parse_input(node.inputs[k]);
      if (!input || input->is_control) continue;
      const auto source = index_of_.find(input->node);
      if (source == index_of_.end()) continue;
      const std::vector<int>& produced = described_[source->second].output_types;
      const auto slot = static_cast<size_t>(input->slot);
      // The elements of a reference can change before the record op runs.
      if (slot >= produced.size() || produced[slot] <= 0 || !Session::has_elements(produced[slot])) continue;
      builder->input(tensor_name(input->node, slot));
      types.push_back(produced[slot]);
      indexes.push_back(static_cast<int32_t>(k));
    }
    builder->attr_types("input_types", types).attr_ints("kept_inputs", indexes);
  }

  // Returns the graph, in which each consumer of a recorded tensor comes after the record op.
  std::string rewired() const {
    std::string bytes;
    bytes.reserve(graph_.bytes.size() * 5 / 4 + added_.size());
    std::string_view rest = graph_.bytes;
    for (const NodeView& node : graph_.nodes) {
      bool is_changed = false;
      std::vector<std::string> inputs, waited_for;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const std::string_view text = node.inputs[i];
        const std::string tensor = canonical(text);
        const bool may_change = !is_seen_by_a_later_pass(node.op, i);
        const auto found = may_change ? record_ops_.find(tensor) : record_ops_.end();
        const auto reader = readers_.find(tensor);
        inputs.emplace_back(found == record_ops_.end() ? std::string(text) : found->second);
        is_changed = is_changed || found != record_ops_.end();
        // The results of a function leave it after all of its nodes have run.
        if (reader == readers_.end() || is_result(node.op)) continue;
        is_changed = true;
        if (!takes_handed_on(node, reader->second)) {
          const std::string control = "^" + reader->second.node;
          const bool is_new = std::find(waited_for.begin(), waited_for.end(), control) == waited_for.end();
          if (is_new && !is_merged_by_a_later_pass(node.op, i)) waited_for.push_back(control);
        } else if (may_change) {
          inputs.back() = handed_on_.at(tensor);
        }
      }
      inputs.insert(inputs.end(), waited_for.begin(), waited_for.end());
      if (waits_for_records(node)) {
        for (std::string_view text : node.inputs) {
          const auto found = beside_.find(canonical(text));
          if (found == beside_.end()) continue;
          is_changed = true;
          inputs.push_back("^" + found->second);
        }
      }
      const auto waits_for = waits_for_.find(static_cast<size_t>(&node - graph_.nodes.data()));
      if (waits_for != waits_for_.end()) {
        is_changed = true;
        inputs.insert(inputs.end(), waits_for->second.begin(), waits_for->second.end());
      }
      if (run_.is_found() && &node == &graph_.nodes[run_.index()] && !waited_for_.empty()) {
        is_changed = true;
        inputs.insert(inputs.end(), waited_for_.begin(), waited_for_.end());
      }
      // Iterations of a loop run one after the other, because each of them may stop the program.
      const bool is_entry = is_enter(node.op);
      const bool waits = is_entry && session_.on_nonfinite == OnNonFinite::kFail;
      if (!is_changed && !waits) continue;
      NodeBuilder changed(with_inputs(node, inputs));
      if (waits) changed.attr_int("parallel_iterations", 1);
      const size_t begin = static_cast<size_t>(node.field.data() - rest.data());
      bytes.append(rest.substr(0, begin));
      put_bytes_field(&bytes, 1, changed.bytes());
      rest.remove_prefix(begin + node.field.size());
    }
    bytes.append(rest);
    return bytes;
  }

  const GraphView& graph_;
  const int64_t number_;
  const std::vector<ExecutedNode>& described_;
  const NodeMatcher& matcher_;
  Session& session_;
  const SessionRun run_;
  const GraphJudge judge_;
  std::vector<MaskedOutput> masked_;
  std::unordered_map<std::string, int32_t> keys_;             // of the recorded tensors, by name
  std::unordered_map<std::string_view, size_t> index_of_;     // of the nodes, by name
  std::vector<std::string> waited_for_;  // control inputs of the node that stands for a run of a session
  std::string name_prefix_;  // of the record ops
  std::unordered_set<std::string_view> taken_names_;  // names that a record op could have
  std::string added_;
  std::unordered_map<std::string, std::string> record_ops_;  // by the tensor that they pass through
  std::unordered_map<std::string, std::string> beside_;      // record ops without outputs, by recorded tensor
  std::vector<Summarised> summarised_;
  std::unordered_map<std::string, Reader> readers_;          // of tensors that are summarized on their devices, by name
  std::unordered_map<std::string, std::string> handed_on_;   // nodes that forward such tensors, by name of the tensor
  std::unordered_set<size_t> watched_;  // nodes with a watched output
  std::unordered_map<size_t, std::vector<std::string>> waits_for_;  // control inputs of nodes that can fail
  int64_t num_added_ = 0;
};

}  // namespace

void lock_known_ops() { known_ops().lock(); }

void unlock_known_ops() { known_ops().unlock(); }

void renew_lock_of_known_ops() { known_ops().renew_lock(); }

void ExecutedGraphs::add(int64_t graph_id, ProgramGraph graph) {
  auto added = std::make_shared<const ProgramGraph>(std::move(graph));
  std::lock_guard<std::mutex> lock(mutex_);
  graphs_[graph_id] = std::move(added);
}

std::shared_ptr<const ProgramGraph> ExecutedGraphs::find(int64_t graph_id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = graphs_.find(graph_id);
  return found == graphs_.end() ? nullptr : found->second;
}

void ExecutedGraphs::note(int64_t number, std::vector<ExecutedNode> nodes) {
  std::lock_guard<std::mutex> lock(mutex_);
  noted_.emplace_back(number, std::move(nodes));
}

std::vector<std::pair<int64_t, std::vector<ExecutedNode>>> ExecutedGraphs::take() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::move(noted_);
}

void ExecutedGraphs::note_masked(std::vector<MaskedOutput> masked) {
  if (masked.empty()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  for (MaskedOutput& output : masked) masked_.push_back(std::move(output));
}

std::vector<MaskedOutput> ExecutedGraphs::take_masked() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::move(masked_);
}

namespace {
thread_local bool t_is_trying = false;
}  // namespace

void ExecutedGraphs::set_trying(bool is_trying) { t_is_trying = is_trying; }

void ExecutedGraphs::count_unreadable() {
  if (t_is_trying) return;
  std::lock_guard<std::mutex> lock(mutex_);
  ++num_unreadable_;
}

int64_t ExecutedGraphs::take_unreadable() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(num_unreadable_, 0);
}

std::string with_record_ops(std::string_view graph_def, Session& session) {
  const std::optional<GraphView> graph = parse_graph(graph_def);
  if (!graph) throw std::runtime_error("the bytes are no GraphDef");
  // If TensorFlow optimizes a graph a second time, it already has record ops.
  const bool is_done = std::any_of(graph->nodes.begin(), graph->nodes.end(),
                                   [](const NodeView& node) { return is_record_op(node.op); });
  if (is_done) return {};
  NodeMatcher matcher(*graph, session);
  if (!matcher.is_ours()) return {};
  std::vector<ExecutedNode> nodes;
  bool may_read_ops = true;
  size_t num_outputs = 0;
  for (size_t i = 0; i < graph->nodes.size(); ++i) {
    nodes.push_back(describe(graph->nodes[i], matcher[i], &may_read_ops));
    if (has_lost_outputs(nodes.back(), matcher[i].op)) {
      matcher.forget_op(i);
      nodes.back().op_name.clear();
    }
    num_outputs += nodes.back().output_types.size();
    if (num_outputs > kMaxOutputsInAll) throw std::runtime_error("the graph has too many outputs");
  }
  const int64_t number = session.executed.new_number();
  std::string edited = Editor(*graph, number, nodes, matcher, session).edited();
  session.executed.note(number, std::move(nodes));
  return edited;
}

}  // namespace tfdbg_arrow
