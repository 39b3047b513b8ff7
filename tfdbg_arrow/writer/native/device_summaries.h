// Summarizes tensors on their devices, with nodes of TensorFlow's own ops.
//
// Copying the elements of a large tensor from an accelerator to the host to count them would be too slow. So each large
// tensor gets nodes that count on its device. The counts of all tensors of one place in a graph are put into one tensor.
// Only this tensor is copied to the host, where one TfdbgArrowRecordDevice op records it. The elements of small tensors
// are put together in the same way, and counted on the host: counting one of them on a GPU would take longer. Nodes that can end the step with an
// error wait for that op, so that the tensors computed before the error are recorded. Other nodes do not wait.
//
// Each consumer of a tensor takes it from an Identity after these nodes. Then no other node holds the tensor, as
// without a recording.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "execution_places.h"
#include "graph_def.h"
#include "record_op.h"

namespace tfdbg_arrow {

// The classes of a floating-point number are the values of its upper bits: sign, exponent and the first bit of the
// mantissa. So an infinity and a quiet NaN, which is what computations make, are in different classes. A zero and a
// subnormal number share their class.
constexpr int kNumCounts = 6;
constexpr int kNumMagnitudes = kColumnMaxAbs - kColumnNumSubnormal + 1;

// Writes the six counts of a summary, from kColumnNumNegInf on, given how many elements are in each class.
template <typename Number>
void count_kinds(const Number* classes, int64_t num_classes, double* counts) {
  const int64_t half = num_classes / 2;  // the second half has the negative numbers
  auto sum = [&](int64_t begin, int64_t end) {
    double total = 0;
    for (int64_t i = begin; i < end; ++i) total += static_cast<double>(classes[i]);
    return total;
  };
  counts[0] = sum(num_classes - 2, num_classes - 1);
  counts[1] = sum(half - 2, half - 1);
  counts[2] = sum(half - 1, half) + sum(num_classes - 1, num_classes);
  counts[3] = sum(half + 2, num_classes - 2);
  counts[4] = sum(0, 2) + sum(half, half + 2);
  counts[5] = sum(2, half - 2);
}

// A graph that computes one vector, the node `part`, from a tensor, the node `tensor`.
struct SummaryGraph {
  // 0: the graph computes nothing, and only the shape is recorded. Otherwise, the vector has the number of elements in
  // each class: the bits of int32 numbers as floats, or in FULL_NUMERICS doubles, followed by the magnitudes.
  int64_t num_classes = 0;
  // Not 0: the vector has the bytes of the elements, as uint8, and this is how many bytes an element has.
  int64_t element_bytes = 0;
  std::string bytes;
  GraphView view;
};

// How a recording summarizes tensors on devices. Call set(), set_small() and add_device_type() before the recording
// starts.
class SummaryGraphs {
 public:
  // Makes tensors on devices of a type, such as `GPU`, be summarized there.
  void add_device_type(const std::string& device_type) { device_types_.insert(device_type); }
  // Throws std::runtime_error if the bytes are not such a graph.
  void set(int dtype, int64_t num_classes, std::string graph_def);
  // Sets the graph for small tensors of a dtype, which makes the bytes of the elements. Throws as set() does.
  void set_small(int dtype, int64_t element_bytes, std::string graph_def);
  // Notes which tensors are small, by key. May be called while graphs are optimized.
  void add_small(const std::vector<int32_t>& keys);
  // Sets whether tensors are summarized on their devices. May be called while graphs are optimized.
  void allow(bool is_allowed) { is_allowed_.store(is_allowed, std::memory_order_relaxed); }
  // Returns the graph for large tensors of a dtype; nullptr if there is none.
  const SummaryGraph* find(int dtype) const;
  // Returns the graph for a tensor of a graph, given its key; nullptr if there is none.
  const SummaryGraph* find(int dtype, int32_t key) const;
  // Returns true if tensors on the device with this full name are summarized there.
  bool serve(std::string_view device) const;

 private:
  std::atomic<bool> is_allowed_{true};
  std::unordered_set<std::string> device_types_;
  std::unordered_map<int, SummaryGraph> graphs_, small_graphs_;
  mutable std::mutex mutex_;  // for the keys
  std::unordered_set<int32_t> small_keys_;
};

// Returns true if the device uses the memory of the host.
bool is_host(std::string_view device);

// A tensor to summarize.
struct SummarizedTensor {
  std::string name;    // as in the inputs of other nodes
  std::string_view node;
  std::string_view device;
  const SummaryGraph* graph;
  int dtype = 0;
  int32_t key = 0;
  bool stops = false;  // whether the tensor stops the program if it is bad
  std::string_view call_site;
  bool has_call_site = false;
  bool is_handed_on = false;  // whether consumers take it from a node after those that count
};

// Makes the nodes for the tensors of one graph.
class SummaryNodes {
 public:
  // `prefix`: the prefix of the names of these nodes; no other name may begin with it.
  // `has_magnitudes`: whether the vectors of the graphs are doubles that end with the magnitudes.
  SummaryNodes(std::string prefix, int64_t generation, int64_t executed_graph, bool has_magnitudes)
      : prefix_(std::move(prefix)),
        generation_(generation),
        executed_graph_(executed_graph),
        has_magnitudes_(has_magnitudes) {}

  // Call it in topological order: a tensor comes after those that it is computed from.
  void add(const Place& place, SummarizedTensor tensor);
  bool empty() const { return groups_.empty(); }

  // Appends the nodes to a serialized GraphDef.
  // Throws std::runtime_error if they take more than `max_bytes`.
  void build(std::string* graph_def, size_t max_bytes);

  // After build(): the node that passes each tensor on, by the name of the tensor.
  const std::unordered_map<std::string, std::string>& handed_on() const { return handed_on_; }
  // After build(): the record ops, with the places of the tensors that they record.
  const std::vector<std::pair<Place, std::string>>& record_ops() const { return record_ops_; }

 private:
  // Device, place, whether the call sites are known, and whether the elements are counted on the host.
  using GroupKey = std::tuple<std::string, Place, bool, bool>;

  void build_group(const GroupKey& key, const std::vector<SummarizedTensor>& tensors, std::string* out, size_t max_bytes);
  void add_graph(const SummarizedTensor& tensor, const std::string& name, const std::string& group_name,
                 std::string_view node_in_loop, std::unordered_set<std::string>* constants, std::string* out,
                 size_t max_bytes);

  const std::string prefix_;
  const int64_t generation_;
  const int64_t executed_graph_;
  const bool has_magnitudes_;
  int64_t num_names_ = 0;
  std::map<GroupKey, std::vector<SummarizedTensor>> groups_;
  std::unordered_map<std::string, std::string> handed_on_;
  std::vector<std::pair<Place, std::string>> record_ops_;
};

}  // namespace tfdbg_arrow
