// Records the graphs that TensorFlow runs: adds record ops to the graphs that TensorFlow has optimized.
//
// optimizer_plugin.cc gets each graph that TensorFlow is about to run, after TensorFlow's own passes. node_matcher.h
// finds for each node the op of the program that the node stands for. Each record op passes its input to all consumers,
// so that the tensor and its reference count are the same as without a recording.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tfdbg_arrow {

// The attribute that marks the ops of a graph of the program: `generation << 32 | graph_id`.
constexpr std::string_view kGraphAttr = "_tfdbg_arrow_graph";

// Attributes of the op that stands for a run of a session: the ops and tensors that the run needs, and the tensors that
// are fed to the run, one per line. An op is written as its name, and a tensor as `name:slot`.
constexpr std::string_view kNeedsAttr = "_tfdbg_arrow_needs";
constexpr std::string_view kFeedsAttr = "_tfdbg_arrow_feeds";

// The devices on which an op can end the step with an error because of a value.
enum class Fails { kNever, kOnHost, kEverywhere };

// An op of a graph of the program, under the name that it has in the runtime function.
struct ProgramOp {
  std::string op_name;
  std::string op_type;
  std::vector<int32_t> keys;  // of each output in the Python registry; -1 for an output that is not recorded
  bool keep = false;          // whether the elements are kept
  Fails fails = Fails::kNever;
  bool is_element = false;    // whether it is an argument that holds a component of an element of a data set
};

struct ProgramGraph {
  std::unordered_map<std::string, ProgramOp> ops;  // by node name
  std::vector<std::string> arguments;              // node name of each argument
  std::unordered_map<std::string, int64_t> calls;  // called graph, by the path that inlining gives its nodes
  bool is_used_by_graph = false;  // whether its results go to another graph, which judges bad results
};

struct ExecutedInput {
  std::string node;
  int32_t slot = 0;
  bool is_control = false;
};

// A node that TensorFlow runs, and the op of the program that the node stands for.
struct ExecutedNode {
  std::string name;
  std::string op_type;
  std::string device;
  int64_t graph_id = -1;  // -1: unknown
  std::string op_name;    // empty if it stands for no op
  std::string path;       // the path of calls, as node names
  bool has_path = false;
  std::vector<ExecutedInput> inputs;
  std::vector<int> output_types;  // dtype numbers, negative for references
  bool has_output_types = false;
  int64_t interface_index = -1;  // index of the graph's argument or result that the node stands for; -1: none
};

// An output that does not stop the program if it is bad, because the ops that take it are harmless.
struct MaskedOutput {
  int32_t key = 0;
  std::string op_name;
  std::string op_type;
  int64_t slot = 0;
  std::vector<std::string> users;  // types of the ops that take it
};

// The graphs of the program, and the graphs that ran, for one recording.
class ExecutedGraphs {
 public:
  // Whether to record nodes that correspond to no op of the program.
  void set_records_others(bool records_others) { records_others_ = records_others; }
  void add(int64_t graph_id, ProgramGraph graph);
  std::shared_ptr<const ProgramGraph> find(int64_t graph_id) const;
  bool records_others() const { return records_others_; }

  // Returns the number of the next optimized graph, from 0.
  int64_t new_number() { return next_number_.fetch_add(1, std::memory_order_relaxed); }
  // Notes the nodes of an optimized graph, given its number.
  void note(int64_t number, std::vector<ExecutedNode> nodes);
  // Returns the graphs that were noted since the last call, with their numbers.
  std::vector<std::pair<int64_t, std::vector<ExecutedNode>>> take();
  void note_masked(std::vector<MaskedOutput> masked);
  // Returns the outputs that were noted as masked since the last call.
  std::vector<MaskedOutput> take_masked();
  // Counts a graph that is not recorded because it could not be read, unless the calling thread only tries to optimize.
  void count_unreadable();
  // Sets whether the calling thread only tries to optimize. Graphs that TensorFlow optimizes meanwhile may never run.
  static void set_trying(bool is_trying);
  // Returns how many graphs were not recorded since the last call because they could not be read.
  int64_t take_unreadable();

 private:
  std::atomic<int64_t> next_number_{0};
  mutable std::mutex mutex_;
  bool records_others_ = true;
  std::unordered_map<int64_t, std::shared_ptr<const ProgramGraph>> graphs_;
  std::vector<std::pair<int64_t, std::vector<ExecutedNode>>> noted_;
  std::vector<MaskedOutput> masked_;
  int64_t num_unreadable_ = 0;
};

struct Session;

// Returns the bytes of a graph with record ops for the session; empty if there is nothing to record.
// Throws std::runtime_error if the bytes cannot be parsed.
std::string with_record_ops(std::string_view graph_def, Session& session);

// For fork(): lock and unlock the table of TensorFlow's ops, and renew its lock in the child.
void lock_known_ops();
void unlock_known_ops();
void renew_lock_of_known_ops();

}  // namespace tfdbg_arrow
