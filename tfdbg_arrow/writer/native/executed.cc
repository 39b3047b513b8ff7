#include "executed.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>
#include <stdexcept>
#include <unordered_set>

#include "graph_def.h"
#include "record_op.h"
#include "session.h"
#include "tensorflow_api.h"

namespace tfdbg_arrow {
namespace {

// TensorFlow's own passes run twice; record ops that the first round added would hinder the second.
constexpr int kNumRounds = 2;
// A smaller graph has one round.
constexpr size_t kMinNodes = 4;

// At most so many components of a name, from its end, and so many original names are compared with names of ops. Each
// comparison costs the length of the name, so without this bound a long name would take quadratic time.
constexpr size_t kMaxLooks = 256;

// For one graph. A node of a few bytes can claim 65,536 outputs, and TensorFlow reads no graph of 2 GB.
constexpr size_t kMaxOutputsInAll = size_t{1} << 20;
constexpr size_t kMaxAddedBytes = size_t{1} << 27;
constexpr size_t kRecordOpBytes = 192;  // of a record op, without names: about

// Nodes that steer loops, branches and calls, or that pass tensors between devices and functions.
bool is_plumbing(std::string_view op) {
  static const std::unordered_set<std::string_view> plumbing = {
      "Enter",     "Exit",       "Merge",      "NextIteration", "Switch",         "LoopCond",   "RefEnter",
      "RefExit",   "RefMerge",   "RefSwitch",  "RefNextIteration", "_SwitchN",    "ControlTrigger",
      "_Retval",   "_DeviceRetval", "_Send",   "_Recv",         "_HostSend",      "_HostRecv",  "NoOp"};
  return plumbing.count(op) != 0;
}

bool is_argument(std::string_view op) { return op == "_Arg" || op == "_DeviceArg"; }
bool is_result(std::string_view op) { return op == "_Retval" || op == "_DeviceRetval"; }

// Nodes that TensorFlow puts where a call was: their output is their input.
bool passes_on(std::string_view op) { return op == "Identity" || op == "IdentityN" || op == "_EagerConst"; }

// Whether TensorFlow chooses the kernel of a node by the node that an input comes from: it uses oneDNN's only where the
// forward op is right before it.
// Source: tensorflow/core/common_runtime/mkl_layout_pass.cc, MaxpoolGradRewrite and LrnGradRewrite.
bool is_seen_by_a_later_pass(std::string_view op, size_t input_index) {
  if (op == "MaxPoolGrad" || op == "MaxPool3DGrad") return input_index == 1;
  return op == "LRNGrad" && input_index == 2;
}

// Ops that fail the step because of a value. They wait until a constant that they take is recorded: another tensor is
// recorded on its way to them.
bool is_check(std::string_view op) {
  return op == "CheckNumerics" || op == "CheckNumericsV2" || op == "Assert" || op == "EnsureShape";
}

// Names that TensorFlow's passes give to their own nodes: the part before the op's name is not a path of calls.
bool is_made_by_a_pass(std::string_view path) {
  return path.find("ConstantFolding") != std::string_view::npos || path.find("Optimizer") != std::string_view::npos;
}

// Ops that Python added to a graph: they begin or end runs of sessions, or record what was not optimized.
bool is_own(const NodeView& node) {
  constexpr std::string_view kOpPrefix = "TfdbgArrow", kNamePrefix = "tfdbg_arrow_", kInnerPrefix = "/tfdbg_arrow_";
  return node.op.substr(0, kOpPrefix.size()) == kOpPrefix || node.name.substr(0, kNamePrefix.size()) == kNamePrefix ||
         node.name.find(kInnerPrefix) != std::string_view::npos;
}

// Returns the last components of a name, at most kMaxLooks.
std::string_view last_components(std::string_view name) {
  size_t begin = name.size();
  for (size_t i = 0; i < kMaxLooks && begin != 0; ++i) {
    const size_t at = name.rfind('/', begin - 1);
    if (at == std::string_view::npos) return name;
    begin = at;
  }
  return name.substr(begin);
}

bool ends_with_component(std::string_view text, std::string_view end) {
  return text.size() > end.size() && text.substr(text.size() - end.size()) == end &&
         text[text.size() - end.size() - 1] == '/';
}

using Graphs = std::unordered_map<int64_t, std::shared_ptr<const ProgramGraph>>;

// Finds the op of the program that a node stands for.
class Matcher {
 public:
  Matcher(const GraphView& graph, Session& session) : graph_(graph), session_(session), found_(graph.nodes.size()) {
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

  // Whether a node is of a graph that this recording knows.
  bool is_ours() const { return is_ours_; }
  const Match& operator[](size_t i) const { return found_[i]; }

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
      // Inlining removes the arguments of called functions, so this one is of the outermost function.
      place(graph_id, std::string_view());
      return;
    }
    for (size_t k = 0; k < std::min(node.original_names.size(), kMaxLooks); ++k) {
      const std::string_view original = node.original_names[k];
      if (original == node.name || ends_with_component(node.name, original)) {
        if (try_name(i, graph_id, *program, original)) return;
      }
    }
    // The longest name that is an op's: what is before it is the path.
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

  // A node that TensorFlow's passes made has no mark: a fused node has the name of the last op that it stands for.
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

  // No node of a called graph has a mark if all of its ops were fused: the name of the node leads there through the calls.
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
    const std::optional<int64_t> index = value == nullptr ? std::nullopt : attr_int(*value);
    if (ids == graphs_at_.end() || ids->second.size() != 1 || !index || *index < 0) return;
    const int64_t graph_id = ids->second[0];
    const ProgramGraph* program = program_graph(graph_id);
    if (static_cast<size_t>(*index) >= program->arguments.size()) return;
    const auto op = program->ops.find(program->arguments[static_cast<size_t>(*index)]);
    if (op == program->ops.end()) return;
    take(i, graph_id, &op->second, std::string_view());
    found_[i].argument = *index;
  }

  const GraphView& graph_;
  Session& session_;
  std::vector<Match> found_;
  Graphs graphs_;
  std::unordered_map<std::string_view, std::vector<int64_t>> graphs_at_;  // which graphs were inlined at a path
  bool is_ours_ = false;
};

// The dtypes of TensorFlow's ops. They are read again when an unknown op is found.
class KnownOps {
 public:
  // `may_read` is set to false when all ops were read: that takes milliseconds, and once is enough for a graph.
  std::optional<std::vector<int>> output_types(const NodeView& node, bool* may_read) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!table_.knows(node.op) && missing_.insert(std::string(node.op)).second && *may_read) {
      read();
      *may_read = false;
    }
    return table_.output_types(node);
  }

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

// The key of a tensor that the registry does not have: TensorFlow made its node, or changed the type of the op.
int32_t key_of_node(int64_t graph_id, size_t slot, std::string_view op_type, std::string_view name) {
  const std::string text =
      std::to_string(graph_id) + "\n" + std::to_string(slot) + "\n" + std::string(op_type) + "\n" + std::string(name);
  return -strings().intern(text) - 2;
}

ExecutedNode describe(const NodeView& node, const Matcher::Match& match, bool* may_read_ops) {
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

bool has_op(const GraphView& graph, std::string_view op) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [op](const NodeView& node) { return node.op == op; });
}

// What a run of a session computes. TensorFlow removes all that its fetches and targets do not need, after the optimizer:
// a record op that no node needs stays only if the run's own op waits for it.
class SessionRun {
 public:
  // `generation`: of the recording.
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
  // The node that stands for the run.
  size_t index() const { return index_; }
  // Whether a node runs whenever the graph does: it is in no loop, and behind no branch.
  bool is_unconditional(size_t i) const { return unconditional_[i]; }
  // Whether the run is asked for an output.
  bool is_asked(size_t i, size_t slot) const {
    return is_found() && asked_.count(with_slot(graph_.nodes[i].name, static_cast<int32_t>(slot))) != 0;
  }
  // Whether the run surely computes an output: it is asked for it, or the output is of an unconditional node.
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

  // A fed Placeholder does not run, so that nothing waits for it either.
  bool is_fed(const NodeInput& input) const {
    return fed_.count(with_slot(input.node, input.is_control ? 0 : input.slot)) != 0 &&
           (!input.is_control || is_placeholder(input.node));
  }

  bool is_placeholder(std::string_view name) const {
    const auto found = index_of_.find(name);
    if (found == index_of_.end()) return false;
    const std::string_view op = graph_.nodes[found->second].op;
    return op == "Placeholder" || op == "PlaceholderV2";
  }

  // In the order of the edges. A node of a loop never comes up: each cycle has a Merge.
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
        if (num_waited_for[user] != kNone && --num_waited_for[user] == 0) ready.push_back(user);
      }
    }
  }

  const GraphView& graph_;
  size_t index_ = kNone;
  std::unordered_set<std::string> fed_, asked_;
  std::unordered_map<std::string_view, size_t> index_of_;
  std::vector<bool> reached_, unconditional_;
};

std::string tensor_name(std::string_view node, size_t slot) {
  return slot == 0 ? std::string(node) : std::string(node) + ":" + std::to_string(slot);
}

// "name:0", "name:00" and "name" are the same tensor.
std::string canonical(std::string_view text) {
  const std::optional<NodeInput> input = parse_input(text);
  if (!input || input->is_control) return std::string(text);
  return tensor_name(input->node, static_cast<size_t>(input->slot));
}

// Says of the outputs of one graph which ones stop the program if they are bad: those that an op computes with, that the
// graph returns, or that an iteration of a loop hands to the next.
class GraphJudge {
 public:
  GraphJudge(const GraphView& graph, const Matcher& matcher, const SessionRun& run, const Session& session)
      : graph_(graph), matcher_(matcher), run_(run), session_(session) {
    if (!any()) return;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      for (std::string_view text : graph.nodes[i].inputs) {
        if (text.substr(0, 1) != "^") users_[canonical(text)].push_back(i);
      }
    }
  }

  // Whether anything stops the program, or calls its callable.
  bool any() const { return session_.on_nonfinite != OnNonFinite::kRecord; }

  bool stops(size_t i, size_t slot) const {
    if (!any() || is_harmless(i, slot)) return false;
    if (run_.is_asked(i, slot)) return true;
    const auto users = users_.find(tensor_name(graph_.nodes[i].name, slot));
    return users != users_.end() &&
           std::any_of(users->second.begin(), users->second.end(), [this](size_t user) { return computes(user); });
  }

  // The types of the ops that take an output.
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
    const Matcher::Match& match = matcher_[user];
    if (is_result(op)) {
      const auto program = match.graph_id < 0 ? nullptr : session_.executed.find(match.graph_id);
      return program == nullptr || !program->is_used_by_graph;
    }
    // The loops of TensorFlow 1 hand a value on by an op of the program; of others TensorFlow makes the op.
    if (op == "NextIteration") return match.op == nullptr || match.op->op_type != op;
    return session_.stop_rules.computes(op);
  }

  const GraphView& graph_;
  const Matcher& matcher_;
  const SessionRun& run_;
  const Session& session_;
  std::unordered_map<std::string, std::vector<size_t>> users_;  // by the tensor that they take
};

// Puts record ops into one graph.
class Editor {
 public:
  // `described`: the nodes of the graph, one by one.
  Editor(const GraphView& graph, const std::vector<ExecutedNode>& described, const Matcher& matcher, Session& session)
      : graph_(graph),
        described_(described),
        matcher_(matcher),
        session_(session),
        run_(graph, session.generation),
        judge_(graph, matcher, run_, session),
        has_sums_(has_op(graph, "AddN")),
        name_prefix_(kRecordNodePrefix) {
    if (run_.is_found()) {
      // A session keeps kernels by the names of their nodes, for all graphs that it runs.
      static std::atomic<int64_t> next_run{0};
      name_prefix_ += std::to_string(next_run.fetch_add(1)) + "_";
    }
    for (const NodeView& node : graph.nodes) {
      if (node.name.substr(0, kRecordNodePrefix.size()) == kRecordNodePrefix) taken_names_.insert(node.name);
    }
  }

  std::string edited() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) record(i);
    if (judge_.any()) {
      for (size_t i = 0; i < graph_.nodes.size(); ++i) index_of_.emplace(graph_.nodes[i].name, i);
      for (size_t i = 0; i < graph_.nodes.size(); ++i) watch(i);
    }
    session_.executed.note_masked(std::move(masked_));
    if (added_.empty()) return {};
    std::string bytes = rewired();
    bytes.append(added_);
    return bytes;
  }

 private:
  void record(size_t i) {
    const NodeView& node = graph_.nodes[i];
    const Matcher::Match& match = matcher_[i];
    if (match.graph_id < 0 || is_own(node) || is_remote(node.device)) return;
    if (!is_recorded_op(node, match)) return;
    if (!can_be_an_input(node)) return;
    const std::vector<int>& types = described_[i].output_types;
    for (size_t slot = 0; slot < types.size(); ++slot) {
      const bool is_reference = types[slot] < 0;
      const int type = std::abs(types[slot]);
      const bool keep = match.op != nullptr && match.op->keep;
      if (type == 0 || !session_.covers(type, keep)) continue;
      // What takes a reference must get it from its op. Python names the references that it wants to be recorded.
      if (is_reference && (match.op == nullptr || !run_.is_found() || !run_.computes(i, slot))) continue;
      check_room(node);
      const std::optional<int32_t> key = key_of(node, match, slot);
      if (!key) continue;
      const bool stops = judge_.stops(i, slot);
      add_record_op(i, slot, {*key, type, keep, is_reference, stops, false, {}});
      if (judge_.any()) keys_.emplace(tensor_name(node.name, slot), *key);
      if (judge_.any() && !stops) note_masked(i, slot, *key);
    }
  }

  // A branch or a called function takes its arguments from nodes that get no rows. If an op computes with a bad one, the
  // program stops there; the error names the tensor that it came from.
  void watch(size_t i) {
    const NodeView& node = graph_.nodes[i];
    const Matcher::Match& match = matcher_[i];
    if (match.graph_id < 0 || is_own(node) || is_remote(node.device) || is_recorded_op(node, match)) return;
    if (!passes_on_a_value(node.op) || !can_be_an_input(node)) return;
    const std::vector<int>& types = described_[i].output_types;
    for (size_t slot = 0; slot < types.size(); ++slot) {
      if (types[slot] <= 0 || !session_.covers(types[slot], false) || !judge_.stops(i, slot)) continue;
      std::vector<int32_t> sources = sources_of(i, slot);
      if (sources.empty() && !session_.executed.records_others()) continue;  // the user left the source out
      check_room(node);
      const int32_t key = key_of_node(match.graph_id, slot, node.op, node.name);
      add_record_op(i, slot, {key, types[slot], false, false, true, true, std::move(sources)});
    }
  }

  // What looks like another node's output, or like a control edge, cannot be an input.
  static bool can_be_an_input(const NodeView& node) {
    const std::optional<NodeInput> as_input = parse_input(node.name);
    return as_input && as_input->node == node.name;
  }

  void check_room(const NodeView& node) const {
    if (added_.size() + kRecordOpBytes + 4 * node.name.size() > kMaxAddedBytes) {
      throw std::runtime_error("the record ops take too much memory");
    }
  }

  // Nothing may come between a Merge and the NextIteration that goes back to it.
  static bool passes_on_a_value(std::string_view op) {
    return passes_on(op) || op == "Switch" || op == "_SwitchN" || op == "Merge" || op == "Enter" || op == "Exit";
  }

  // Returns the keys of the recorded tensors that an output of a node may be.
  std::vector<int32_t> sources_of(size_t i, size_t slot) const {
    std::vector<int32_t> keys;
    std::vector<std::pair<size_t, size_t>> waiting{{i, slot}};
    std::set<std::pair<size_t, size_t>> seen(waiting.begin(), waiting.end());
    while (!waiting.empty() && seen.size() < kMaxLooks) {
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

  static bool passes_through(const NodeView& node, const Matcher::Match& match) {
    return match.op == nullptr && (passes_on(node.op) || is_argument(node.op));
  }

  // Whether each value of a node gets a row.
  bool is_recorded_op(const NodeView& node, const Matcher::Match& match) const {
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

  // A loop or branch of TensorFlow 1 is made of ops of the program. TensorFlow reads what goes back to a loop's Merge by
  // the type of the node: nothing may come between.
  static bool is_programs_own(const NodeView& node, const ProgramOp& op) {
    return node.op == op.op_type && node.op != "NextIteration" && node.op != "RefNextIteration";
  }

  std::optional<int32_t> key_of(const NodeView& node, const Matcher::Match& match, size_t slot) const {
    if (match.op == nullptr) return key_of_node(match.graph_id, slot, node.op, node.name);
    if (slot >= match.op->keys.size() || match.op->keys[slot] < 0) return std::nullopt;
    if (node.op == match.op->op_type || is_argument(node.op)) return match.op->keys[slot];
    return key_of_node(match.graph_id, slot, node.op, match.op->op_name);
  }

  struct RecordOp {
    int32_t key;
    int type;
    bool keep;
    bool is_reference;
    bool stops;                    // the program, if the value is bad
    bool is_watch;                 // whether a value that is not bad becomes no row
    std::vector<int32_t> sources;  // of a watch: keys of the tensors that the value may be
  };

  void add_record_op(size_t i, size_t slot, const RecordOp& how) {
    const NodeView& node = graph_.nodes[i];
    const Matcher::Match& match = matcher_[i];
    std::string source = tensor_name(node.name, slot);
    // What takes a constant may treat it otherwise than a computed tensor. In a branch of a session's graph nothing
    // could wait for the record op of a constant, and it would be removed.
    const bool is_constant = node.op == "Const" && (!run_.is_found() || run_.is_unconditional(i));
    const bool is_aside = is_constant || how.is_reference;
    std::string name;
    do {
      name = name_prefix_ + std::to_string(num_added_++) + "/" + std::string(node.name);
    } while (taken_names_.count(name) != 0);
    NodeBuilder builder(name, is_aside ? kRecordConstantOp : kRecordThroughOp, node.device);
    builder.input(source)
        .attr_type("T", how.type)
        .attr_int("node", how.key)
        .attr_int("generation", session_.generation)
        .attr_int("argument", match.argument)
        .attr_bool("may_hold", !has_sums_)
        .attr_bool("keep", how.keep)
        .attr_bool("decides", how.stops)
        .attr_bool("is_watch", how.is_watch)
        .attr_ints("sources", how.sources)
        .attr_bool("has_call_site", match.has_path)
        .attr_string("call_site", match.path);
    put_bytes_field(&added_, 1, builder.bytes());
    if (run_.is_found() && run_.computes(i, slot)) waited_for_.push_back("^" + name);
    if (how.is_reference) return;
    (is_constant ? constants_ : record_ops_).emplace(std::move(source), name);
  }

  // Returns the graph, with each consumer of a recorded tensor behind the record op.
  std::string rewired() const {
    std::string bytes;
    bytes.reserve(graph_.bytes.size() * 5 / 4 + added_.size());
    std::string_view rest = graph_.bytes;
    for (const NodeView& node : graph_.nodes) {
      bool is_changed = false;
      std::vector<std::string> inputs;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const std::string_view text = node.inputs[i];
        const auto found = is_seen_by_a_later_pass(node.op, i) ? record_ops_.end() : record_ops_.find(canonical(text));
        is_changed = is_changed || found != record_ops_.end();
        inputs.emplace_back(found == record_ops_.end() ? std::string(text) : found->second);
      }
      if (is_check(node.op)) {
        for (std::string_view text : node.inputs) {
          const auto found = constants_.find(canonical(text));
          if (found == constants_.end()) continue;
          is_changed = true;
          inputs.push_back("^" + found->second);
        }
      }
      if (run_.is_found() && &node == &graph_.nodes[run_.index()] && !waited_for_.empty()) {
        is_changed = true;
        inputs.insert(inputs.end(), waited_for_.begin(), waited_for_.end());
      }
      // No iteration of a loop begins before the last one has run: it may stop the program.
      const bool is_entry = node.op == "Enter" || node.op == "RefEnter";
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
  const std::vector<ExecutedNode>& described_;
  const Matcher& matcher_;
  Session& session_;
  const SessionRun run_;
  const GraphJudge judge_;
  std::vector<MaskedOutput> masked_;
  std::unordered_map<std::string, int32_t> keys_;             // of the recorded tensors, by name
  std::unordered_map<std::string_view, size_t> index_of_;     // of the nodes, by name
  std::vector<std::string> waited_for_;  // control inputs of the node that stands for a run of a session
  const bool has_sums_;  // AddN adds in another order where somebody else holds one of its terms
  std::string name_prefix_;  // of the record ops
  std::unordered_set<std::string_view> taken_names_;  // that a record op could have
  std::string added_;
  std::unordered_map<std::string, std::string> record_ops_;  // by the tensor that they hand through
  std::unordered_map<std::string, std::string> constants_;   // record ops by the constant that they record
  int64_t num_added_ = 0;
};

}  // namespace

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

void ExecutedGraphs::note(std::vector<ExecutedNode> nodes) {
  std::lock_guard<std::mutex> lock(mutex_);
  noted_.push_back(std::move(nodes));
}

std::vector<std::vector<ExecutedNode>> ExecutedGraphs::take() {
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

void ExecutedGraphs::count_unreadable() {
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
  // A graph that TensorFlow optimizes once more is recorded already.
  if (has_op(*graph, kRecordThroughOp) || has_op(*graph, kRecordConstantOp)) return {};
  const Matcher matcher(*graph, session);
  if (!matcher.is_ours()) return {};
  std::vector<ExecutedNode> nodes;
  bool may_read_ops = true;
  size_t num_outputs = 0;
  for (size_t i = 0; i < graph->nodes.size(); ++i) {
    nodes.push_back(describe(graph->nodes[i], matcher[i], &may_read_ops));
    num_outputs += nodes.back().output_types.size();
    if (num_outputs > kMaxOutputsInAll) throw std::runtime_error("the graph has too many outputs");
  }
  std::string edited = Editor(*graph, nodes, matcher, session).edited();
  session.executed.note(std::move(nodes));
  return edited;
}

namespace {

void* create_optimizer() { return std::calloc(1, sizeof(int)); }
void destroy_optimizer(void* optimizer) { std::free(optimizer); }
void free_buffer(void* data, size_t) { std::free(data); }

void hand_back(std::string_view bytes, TF_Buffer* out, TF_Status* status) {
  void* copy = std::malloc(std::max<size_t>(bytes.size(), 1));
  if (copy == nullptr) {
    constexpr int kResourceExhausted = 8;
    tf_api().TF_SetStatus(status, kResourceExhausted, "tfdbg_arrow has no memory for a copy of the graph");
    return;
  }
  std::memcpy(copy, bytes.data(), bytes.size());
  out->data = copy;
  out->length = bytes.size();
  out->data_deallocator = free_buffer;
}

// TensorFlow calls this in any thread, which may hold locks of TensorFlow's: it must not wait for Python.
void optimize(void* optimizer, const TF_Buffer* in, const void*, TF_Buffer* out, TF_Status* status) {
  const std::string_view bytes(static_cast<const char*>(in->data), in->length);
  const int round = optimizer == nullptr ? kNumRounds : ++*static_cast<int*>(optimizer);
  std::string edited;
  SessionGuard session;
  if (session && bytes.find(kGraphAttr) != std::string_view::npos) {
    try {
      bool is_last = round >= kNumRounds;
      if (!is_last) {
        const std::optional<GraphView> graph = parse_graph(bytes);
        is_last = graph && graph->nodes.size() < kMinNodes;
      }
      if (is_last) edited = with_record_ops(bytes, *session);
    } catch (...) {
      edited.clear();
      session->executed.count_unreadable();
    }
  }
  hand_back(edited.empty() ? bytes : std::string_view(edited), out, status);
}

// Whether TensorFlow's passes are on or off: 0 leaves them as the program has them.
struct OptimizerConfigs {
  size_t struct_size;
  void* ext;
  int switches[19];
};
struct Optimizer {
  size_t struct_size;
  void* ext;
  void* (*create_func)();
  void (*optimize_func)(void*, const TF_Buffer*, const void*, TF_Buffer*, TF_Status*);
  void (*destroy_func)(void*);
};
struct RegistrationParams {
  size_t struct_size;
  void* ext;
  int32_t major_version;
  int32_t minor_version;
  int32_t patch_version;
  const char* device_type;
  OptimizerConfigs* optimizer_configs;
  Optimizer* optimizer;
};

}  // namespace
}  // namespace tfdbg_arrow

// TensorFlow calls it when it loads this library as a plugin.
extern "C" __attribute__((visibility("default"))) void TF_InitGraph(void* opaque, tfdbg_arrow::TF_Status* status) {
  using namespace tfdbg_arrow;
  auto* params = static_cast<RegistrationParams*>(opaque);
  if (params->major_version != 0 || params->minor_version != 0 || params->struct_size != sizeof(RegistrationParams)) {
    constexpr int kUnimplemented = 12;
    tf_api().TF_SetStatus(status, kUnimplemented, "tfdbg_arrow does not know this version of TensorFlow's optimizers");
    return;
  }
  params->struct_size = sizeof(RegistrationParams);
  params->device_type = "CPU";
  params->optimizer_configs->struct_size = offsetof(OptimizerConfigs, switches) + 19 * sizeof(int);
  params->optimizer->struct_size = sizeof(Optimizer);
  params->optimizer->create_func = create_optimizer;
  params->optimizer->optimize_func = optimize;
  params->optimizer->destroy_func = destroy_optimizer;
}
