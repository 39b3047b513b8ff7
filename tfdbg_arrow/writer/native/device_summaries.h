// Summarizes tensors on their devices, with nodes of TensorFlow's own ops.
//
// It would be too slow to copy the elements of a large tensor from an accelerator to the host and count them there. So
// each large tensor gets nodes that count its elements on its device. The consumers of such a tensor run after the last
// of these nodes, so that these nodes do not hold the tensor's memory longer than its consumers.
//
// A small tensor is counted on the host, because counting it on a GPU would take longer. The small tensor is held until
// all small tensors are computed. A sum begins with the first term whose memory it can reuse. If a term were held, the
// order of the terms would change. So such a tensor is copied on its device, and the copy is held.
//
// A tensor with the same elements as another tensor, such as the output of a Reshape, gets no nodes. Its row is made
// from the counts of the other tensor. The counts and the small tensors of one place in a graph are put into one
// tensor. Only this tensor is copied to the host, where one TfdbgArrowRecordDevice op records it. Nodes that can end
// the step with an error wait for that op, so that the tensors computed before the error are recorded. Other nodes do
// not wait for the host.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "execution_places.h"
#include "graph_def.h"
#include "record.h"
#include "record_op.h"

namespace tfdbg_arrow {

// The class of a floating-point number is the value of its upper bits: sign, exponent and the first bit of the
// mantissa. So an infinity and a quiet NaN are in different classes; computations make only quiet NaNs. A zero and a
// subnormal number of the same sign are in the same class.
constexpr int kNumKinds = 6;
// In CURT_HEALTH there are only three classes: -infinity, infinity and NaN. A number other than 0 means that the tensor
// has an element of the class.
constexpr int64_t kNumBadKinds = 3;
constexpr int kNumDeviceMagnitudes = 6;

// Fills the rest of the numbers of a row, from number `begin` to before number `end`, which TensorFlow's ops do not
// measure.
inline void set_not_measured(int begin, int end, double* numbers) {
  for (int i = begin; i < end; ++i) {
    numbers[i] = kIsCount[i] ? static_cast<double>(kNoValue) : std::numeric_limits<double>::quiet_NaN();
  }
}

// Writes the counts of a summary, from kColumnHealth on, given the number of elements in each class. The classes
// determine the first kNumKinds counts.
template <typename Number>
void count_kinds(const Number* classes, int64_t num_classes, double* counts) {
  set_not_measured(kNumKinds, kNumCounts, counts);
  if (num_classes == kNumBadKinds) {
    for (int64_t i = 0; i < kNumBadKinds; ++i) counts[i] = classes[i] != 0 ? 1 : 0;
    return;
  }
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

// The graph that summarizes one tensor. It computes the node `part` from the node `tensor`, a view of the tensor with
// the shape [1, n].
struct SummaryGraph {
  // Not 0: the vector holds the number of elements in each class, as int32. In FULL_NUMERICS, it holds doubles, and the
  // magnitudes follow. If this is kNumBadKinds, the vector holds floats.
  int64_t num_classes = 0;
  // Not 0: there is no graph; the elements are copied to the host, and this is the size of an element in bytes. If both
  // numbers are 0, only the shape is recorded.
  int64_t element_bytes = 0;
  int view_type = 0;        // the dtype of `tensor`
  std::string last_reader;  // the last node that holds the tensor
  std::string bytes;
  GraphView view;
};

// Ops whose outputs have the same elements as their first input.
struct SameElements {
  std::unordered_set<std::string> same_tensor;  // the output also has the same shape
  std::unordered_set<std::string> reshaped;
};

// The graphs and rules by which a recording summarizes tensors on devices. Call set(), set_small(), set_same_elements()
// and add_device_type() before the recording starts.
class SummaryGraphs {
 public:
  // From then on, tensors on devices of this type, such as `GPU`, are summarized on their device.
  void add_device_type(const std::string& device_type) { device_types_.insert(device_type); }
  // Throws std::runtime_error if the bytes are not such a graph.
  void set(int dtype, int64_t num_classes, std::string graph_def);
  // From then on, small tensors of this dtype are copied to the host with all elements.
  void set_small(int dtype, int64_t element_bytes) { small_graphs_[dtype].element_bytes = element_bytes; }
  void set_same_elements(std::unordered_set<std::string> same_tensor, std::unordered_set<std::string> reshaped) {
    same_elements_ = {std::move(same_tensor), std::move(reshaped)};
  }
  const SameElements& same_elements() const { return same_elements_; }
  // Notes which tensors are small, by key. May be called while graphs are optimized.
  void add_small(const std::vector<int32_t>& keys);
  // Notes the shapes of tensors, by key. May be called while graphs are optimized.
  void add_shapes(const std::unordered_map<int32_t, std::vector<int64_t>>& shapes);
  // Returns the shape of a tensor, given its key; nullopt if the shape is not known.
  std::optional<std::vector<int64_t>> shape_of(int32_t key) const;
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
  SameElements same_elements_;
  mutable std::mutex mutex_;  // for the keys and the shapes
  std::unordered_set<int32_t> small_keys_;
  std::unordered_map<int32_t, std::vector<int64_t>> shapes_;
};

// Returns true if the device uses the memory of the host.
bool is_host(std::string_view device);

// The source of a tensor's shape for the record op. For each tensor, the op's attribute `dims` holds one of these
// numbers, or the rank followed by the dimensions.
constexpr int kShapeIsInput = -1;   // its next input
constexpr int kShapeOfSource = -2;  // the tensor with the same elements
constexpr int kShapeOfPart = -3;    // its first input of shapes, with the shapes of all parts in order

// An earlier tensor that has the same elements as another tensor.
struct SameTensor {
  std::string name;
  bool has_same_shape = false;
};

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
  bool is_constant = false;  // whether its memory is never used for other tensors
  bool is_held = true;       // whether the record op may hold its memory
  std::vector<SameTensor> same_tensors;  // the nearest one first
  std::optional<std::vector<int64_t>> shape;
};

// The last node that reads a tensor to summarize it.
struct Reader {
  std::string node;
  std::string device;
  int dtype;
  std::string prefix;  // of the names of the nodes that were added for the tensor
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

  // Call it in topological order: a tensor comes after the tensors from which it is computed.
  void add(const Place& place, SummarizedTensor tensor);

  // Appends the nodes to a serialized GraphDef.
  // Throws std::runtime_error if they take more than `max_bytes`.
  void build(std::string* graph_def, size_t max_bytes);

  // After build(): the last readers, by the names of the tensors. Constants and tensors without nodes have no last
  // reader.
  const std::unordered_map<std::string, Reader>& readers() const { return readers_; }
  // After build(): the record ops, with the places of the tensors that they record.
  const std::vector<std::pair<Place, std::string>>& record_ops() const { return record_ops_; }

 private:
  struct Grouped {
    SummarizedTensor tensor;
    int32_t source = -1;  // index of the tensor with the same elements in the group
    bool has_shape_of_source = false;
  };
  struct Group {
    std::vector<Grouped> tensors;
    std::unordered_map<std::string, int32_t> indexes;  // by the names of the tensors
  };
  using GroupKey = std::pair<std::string, Place>;  // device, place

  void build_group(const GroupKey& key, const Group& group, std::string* out, size_t max_bytes);
  void add_graph(const SummarizedTensor& tensor, const std::string& name, const std::string& group_name,
                 std::string_view node_in_loop, std::unordered_set<std::string>* constants, std::string* out,
                 size_t max_bytes);

  const std::string prefix_;
  const int64_t generation_;
  const int64_t executed_graph_;
  const bool has_magnitudes_;
  int64_t num_names_ = 0;
  std::map<GroupKey, Group> groups_;
  std::unordered_map<std::string, Reader> readers_;
  std::vector<std::pair<Place, std::string>> record_ops_;
};

// Returns the bytes of a node that forwards a tensor after the tensor's last reader.
std::string handing_on(const std::string& tensor, const Reader& reader, std::string* name);

}  // namespace tfdbg_arrow
