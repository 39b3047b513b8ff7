// The active recording; a process has at most one. Kernels and eager callbacks enter the session through a
// SessionGuard. stop() unpublishes the session and waits until all kernels and callbacks have left it. Functions with
// record ops can still run later; their kernels find no session and return.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "calls.h"
#include "device_summaries.h"
#include "executed.h"
#include "health.h"
#include "intern.h"
#include "spool.h"
#include "tensorflow_api.h"

namespace tfdbg_arrow {

constexpr int kMaxRank = 254;  // TensorShape::MaxDimensions()

enum class Mode : int {
  kNoTensor = 0,
  kCurtHealth = 1,
  kConciseHealth = 2,
  kFullHealth = 3,
  kShape = 4,
  kFullNumerics = 5,
  kFullTensor = 6,
};

// The kept elements of tensors: an append-only file next to the spool. It is written with pwrite, so that it too
// outlives the process. Any thread may append; the drain reads and releases.
class ValueSpool {
 public:
  explicit ValueSpool(const std::string& path);  // throws std::system_error
  ~ValueSpool();
  // Returns the offset, or kNoValue if the bytes could not be written.
  int64_t append(const void* data, int64_t size);
  // Returns false if the file has fewer bytes. Throws std::system_error if the bytes cannot be read.
  bool read(int64_t offset, int64_t size, void* out) const;
  // Frees the disk blocks before `offset`.
  void release(int64_t offset);
  // Returns the number of failed writes.
  int64_t num_failed() const { return num_failed_.load(std::memory_order_relaxed); }

 private:
  int fd_ = -1;
  std::atomic<int64_t> end_{0};
  std::atomic<int64_t> num_failed_{0};
  int64_t released_ = 0;
};

// The reaction to a bad tensor in a graph, if the tensor is not masked.
enum class OnNonFinite : int { kRecord = 0, kNote = 1, kFail = 2 };

// The bad tensors of graphs that wait for the Python side: one event for each node.
class NonFiniteNotes {
 public:
  void add(int32_t node, int64_t event_index) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!nodes_.insert(node).second) return;
    events_.push_back(event_index);
    any_.store(true, std::memory_order_release);
  }
  std::vector<int64_t> take() {
    if (!any_.load(std::memory_order_acquire)) return {};
    std::lock_guard<std::mutex> lock(mutex_);
    any_.store(false, std::memory_order_relaxed);
    return std::move(events_);
  }

 private:
  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::unordered_set<int32_t> nodes_;
  std::vector<int64_t> events_;
};

// The last bad tensor of each node, with `on_nonfinite`.
class BadEvents {
 public:
  void add(const Record& record, int64_t event_index) {
    std::lock_guard<std::mutex> lock(mutex_);
    events_[record.node] = {record.step_id, event_index};
  }
  // Returns the last event of these nodes in a step; kNoValue if there is no such event.
  int64_t last_of(const std::vector<int64_t>& nodes, int64_t step_id) const {
    std::lock_guard<std::mutex> lock(mutex_);
    int64_t last = kNoValue;
    for (int64_t node : nodes) {
      const auto found = events_.find(static_cast<int32_t>(node));
      if (found != events_.end() && found->second.first == step_id) last = std::max(last, found->second.second);
    }
    return last;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<int32_t, std::pair<int64_t, int64_t>> events_;  // by node: step, event index
};

// A tensor whose elements are on the host.
struct HostTensor {
  int dtype;
  int rank;
  int64_t dims[kMaxRank];
  const void* data;  // may be null if the tensor is empty
};

// Describes a tensor, which must outlive the result.
HostTensor host_tensor(TF_Tensor* tensor);

// Limits the number of bytes of inputs that are kept, and counts the bad values whose inputs are not kept.
class InputBudget {
 public:
  // Returns true if the inputs of a bad value may be kept. The first inputs of each op may use all of the remaining
  // room. Later inputs of an op may use a sixteenth of the limit, so that no op takes the room of other ops.
  bool admit(const Record& bad, int64_t num_bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    const int64_t own = bytes_of_[{bad.kind, bad.node}];
    return admit({bad.kind, bad.node}, num_bytes, own == 0 || own + num_bytes <= kMaxBytes / 16);
  }

  // Returns true if the inputs of another step in which this op made a bad value may be kept.
  bool admits_step(const Record& bad) {
    std::lock_guard<std::mutex> lock(mutex_);
    int64_t& own = bytes_of_[{kStepInput, bad.node}];
    const bool is_admitted = own <= kMaxBytes / 16;
    own += kStepBytes;
    if (!is_admitted) num_refused_.fetch_add(1, std::memory_order_relaxed);
    return is_admitted;
  }

  // Returns true if an input of a step in which an op made a bad value may be kept. `node` is the node of the op.
  bool admit_step_input(int32_t node, int64_t num_bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    return admit({kStepInput, node}, num_bytes, num_bytes <= kMaxBytes / 4);
  }
  int64_t num_refused() const { return num_refused_.load(std::memory_order_relaxed); }

 private:
  static constexpr int64_t kMaxBytes = int64_t{256} << 20;
  static constexpr int64_t kStepBytes = int64_t{16} << 10;  // a step counts as this many bytes, even if it has no inputs

  bool admit(std::pair<uint8_t, int32_t> op, int64_t num_bytes, bool has_room_of_op) {
    const bool is_admitted = has_room_of_op && num_bytes <= kMaxBytes - num_bytes_;
    if (is_admitted) {
      num_bytes_ += num_bytes;
      bytes_of_[op] += std::max<int64_t>(num_bytes, 1);
    } else {
      num_refused_.fetch_add(1, std::memory_order_relaxed);
    }
    return is_admitted;
  }

  std::mutex mutex_;
  int64_t num_bytes_ = 0;
  std::map<std::pair<uint8_t, int32_t>, int64_t> bytes_of_;  // by kind of the record and its node
  std::atomic<int64_t> num_refused_{0};
};

struct Session;

// The components of data sets' elements that graphs took: for each node, the tensors of its last runs in a step. They are
// kept if a bad value comes up in the same step.
class StepComponents {
 public:
  StepComponents() = default;
  ~StepComponents() { clear(); }
  StepComponents(const StepComponents&) = delete;
  StepComponents& operator=(const StepComponents&) = delete;

  // Holds a tensor, in place of those that the same node made in other steps. Takes the tensor over.
  void hold(Session& session, const Record& where, TF_Tensor* tensor);
  // Keeps the tensors of a step in which an op, given by its node, made a bad value.
  void keep(Session& session, int64_t step_id, int32_t bad_node);
  // Frees the tensors. No step may run any more.
  void clear();

 private:
  struct Held {
    Record where;
    TF_Tensor* tensor = nullptr;
  };
  struct BadStep {
    int64_t step_id;
    int32_t bad_node;
  };
  static constexpr size_t kMaxBadSteps = 64;  // steps that may still run
  // TensorFlow takes elements for later iterations of a loop before it has computed everything from the element of an
  // earlier one. It runs at most ten iterations at once, and rarely more than two.
  static constexpr size_t kMaxRuns = 4;

  static void keep(Session& session, Held* held, int32_t bad_node);
  static void release(Held* held);

  std::mutex mutex_;
  std::map<int32_t, std::deque<Held>> by_node_;
  std::deque<BadStep> bad_steps_;
};

// The nodes of the ops whose bad values had the inputs of their steps kept, in the order of these values.
class BadSteps {
 public:
  void add(int32_t node) {
    std::lock_guard<std::mutex> lock(mutex_);
    nodes_.push_back(node);
  }
  size_t size() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return nodes_.size();
  }
  // Returns the first node that was added after the first `begin` ones; kNoNode if there is none.
  int32_t first_from(size_t begin) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return begin < nodes_.size() ? nodes_[begin] : kNoNode;
  }
  static constexpr int32_t kNoNode = INT32_MIN;

 private:
  mutable std::mutex mutex_;
  std::vector<int32_t> nodes_;
};

// The bad values of graphs that do not stop the program, as declared in masking.py.
struct StopRules {
  std::unordered_set<std::string> harmless_users;                // types of ops that do not compute with their inputs
  std::set<std::pair<std::string, int64_t>> harmless_outputs;    // type of the op, and index of the output

  bool computes(std::string_view op_type) const {
    return harmless_users.count(std::string(op_type)) == 0 && op_type.find("Dataset") == std::string_view::npos;
  }
  bool is_harmless(std::string_view op_type, size_t slot) const {
    return harmless_outputs.count({std::string(op_type), static_cast<int64_t>(slot)}) != 0;
  }
};

struct Session {
  Session(const std::string& spool_path, const std::string& value_path, uint64_t capacity, Mode mode,
          uint64_t covered_dtypes, int64_t generation, bool waits)
      : spool(spool_path, capacity, waits),
        values(value_path),
        mode(mode),
        covered_dtypes(covered_dtypes),
        generation(generation) {}

  bool covers(int dtype) const { return dtype >= 0 && dtype < 64 && ((covered_dtypes >> dtype) & 1) != 0; }
  // Returns true if a tensor is measured. Ops that the user chose (`keep`) are not subject to the filter.
  bool covers(int dtype, bool keep) const { return covers(dtype) || (keep && has_elements(dtype)); }
  static bool has_elements(int dtype);
  // Returns true if the mode needs the elements of tensors.
  bool reads_elements() const { return mode != Mode::kNoTensor && mode != Mode::kShape; }
  // Returns true if the elements of a tensor are read, and not kept.
  bool only_counts(bool keep) const { return !keep && reads_elements() && mode != Mode::kFullTensor; }

  Spool spool;
  ValueSpool values;
  CallsInFlight calls;
  ExecutedGraphs executed;
  NonFiniteNotes nonfinite_notes;
  BadEvents bad_events;
  OnNonFinite on_nonfinite = OnNonFinite::kRecord;  // set before the session is published
  std::string run_id;                               // set before too; only used to fail the step
  StopRules stop_rules;                             // set before too
  bool keeps_inputs = false;                        // set before too
  bool histograms = false;                          // set before too
  std::unordered_set<std::string> element_ops;      // set before too; types of ops that take elements of data sets
  InputBudget input_budget;
  StepComponents step_components;
  BadSteps bad_steps;
  std::atomic<int64_t> num_known_arguments{0};      // calls in which a large argument was not measured again
  SummaryGraphs summaries;                          // set before too
  const Mode mode;
  const uint64_t covered_dtypes;  // bit i: tensors of TensorFlow's DataType i are measured
  const int64_t generation;       // number of the recording in this process
  std::atomic<int64_t> next_execution_index{0};
  std::atomic<int64_t> step{kNoStep};
};

class SessionGuard {
 public:
  SessionGuard();
  ~SessionGuard();
  SessionGuard(const SessionGuard&) = delete;
  SessionGuard& operator=(const SessionGuard&) = delete;
  explicit operator bool() const { return session_ != nullptr; }
  Session* operator->() const { return session_; }
  Session& operator*() const { return *session_; }

 private:
  Session* session_;
};

// Sets the address of this process in its cluster, such as `/job:chief/replica:0/task:0`; empty if the process is not
// connected. Other processes have no kernels for our ops, and tensors on their devices are not fetched.
void set_local_task(const std::string& task);
bool is_connected();
// Returns true if the device with this full name belongs to another process.
bool is_remote(std::string_view device);

// True while the schedule leaves a training step out. Kernels and callbacks check this first.
inline std::atomic<bool> g_is_paused{false};
inline bool is_paused() { return g_is_paused.load(std::memory_order_relaxed); }

// Returns true if the calling thread holds a guard, so that it must not wait in retract_session().
bool is_in_session();

// Publishes a session; the caller still owns it.
void publish_session(Session* session);
// Unpublishes the session, and waits until no thread uses it. The calling thread must not hold a guard.
void retract_session();
// For a forked child: forgets the session without touching its memory, which the parent uses.
void forget_session();
bool has_session();

// The process-wide names to which the IDs in records refer.
StringTable& strings();

int64_t wall_time_ns();

int64_t num_elements(int rank, const int64_t* dims);

// Keeps the elements of the inputs of an op that made a bad value. Does nothing if the inputs are as bad as the value.
// This is the case if they hold a NaN, or if they hold an infinity and the value holds no NaN. Call it without the GIL.
//
// Args:
//   bad: the record of the value.
//   event_index: the event index of that record.
//   inputs: the inputs whose elements are on the host.
//   indexes: the index of each of these inputs among all inputs of the op.
void keep_inputs(Session& session, const Record& bad, int64_t event_index, const std::vector<HostTensor>& inputs,
                 const std::vector<int64_t>& indexes);

// Keeps the inputs of the step in which a bad value came up: the components that graphs took from data sets now, and
// the arguments of the running calls when these calls end. Does nothing if enough inputs were kept for the same op.
void keep_step_inputs(Session& session, const Record& bad);
// Keeps the elements of one input of a step. Call it without the GIL.
//
// Args:
//   where: a blank record with the tensor's ID, or with its node and context.
//   bad_node: the node of the op that made the bad value.
void keep_step_input(Session& session, const Record& where, const HostTensor& input, int32_t bad_node);

// Fills the counts and magnitudes that a mode has, and the flags that state which are filled. `numerics` may be null.
void set_health(Mode mode, const Health& health, const Numerics* numerics, Record* record);

// Measures a tensor in the session's mode, and fills dtype, shape, flags, counts and magnitudes. `data` may be null
// only if size is 0 or the mode reads no elements. Keeps the elements in mode FULL_TENSOR, or if `keep` is true. With
// the setting `histograms`, the calling thread holds the histogram of the tensor until the thread appends the record or
// describes another tensor.
void describe_tensor(Session& session, int dtype, int rank, const int64_t* dims, const void* data, bool keep,
                     Record* record);

// Returns how many records a tensor needs: one, DIMS records for a rank above kNumInlineDims, and HISTOGRAM records.
uint64_t num_records(const Record& record, int rank);
// Writes a tensor's record, its DIMS records and its HISTOGRAM records. The histogram is the one that the calling
// thread counted last. Returns false if the spool has no room.
bool append_tensor(Session& session, const Record& record, int rank, const int64_t* dims);
// Returns the event index of the tensor that the calling thread appended last; kNoValue if there was no room.
int64_t last_event_index();
void set_last_event_index(int64_t event_index);
// Like append_tensor, for a thread without the GIL: waits for room, and counts the records that it drops.
void append_tensor_waiting(Session& session, const Record& record, int rank, const int64_t* dims);

}  // namespace tfdbg_arrow
