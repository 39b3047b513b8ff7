// Summarises tensors on the devices where they are, by nodes of TensorFlow's own ops.
//
// The elements of a tensor on an accelerator must not be copied to the host to be counted. So each tensor gets nodes that
// count them on its device. What they count in all tensors of one place of a graph is put into one tensor, which is what
// crosses to the host, and what one TfdbgArrowRecordDevice op records. Only nodes that can end the step with an error wait
// for that op: what was computed before the error is recorded.
//
// Each consumer of a tensor takes it from an Identity behind these nodes: then nobody else holds the tensor, as without
// a recording.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
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

// What the nodes of a SummaryGraph count.
enum class SummaryLayout : int64_t {
  kShapeOnly = 0,
  kCounts = 1,       // one part: what DebugNumericSummaryV2 gives in FULL_HEALTH
  kCountsTwice = 2,  // two such parts, the second of the elements rounded away from zero
  kNumerics = 3,     // one part: the columns of a summary behind those of the shape
};
constexpr int kPartWidth = 11;    // of DebugNumericSummaryV2 in FULL_HEALTH
constexpr int kCountsInPart = 5;  // where the counts begin in it
constexpr int kNumCounts = 6;

// How many numbers a SummaryGraph gives.
inline int width_of(SummaryLayout layout) {
  switch (layout) {
    case SummaryLayout::kCounts:
      return kPartWidth;
    case SummaryLayout::kCountsTwice:
      return 2 * kPartWidth;
    case SummaryLayout::kNumerics:
      return kNumSummaryColumns - kColumnNumNegInf;
    case SummaryLayout::kShapeOnly:
      break;
  }
  return 0;
}

// A graph from a tensor, the node `tensor`, to vectors of double, the nodes `part_0`, `part_1` ...
struct SummaryGraph {
  SummaryLayout layout = SummaryLayout::kShapeOnly;
  std::string bytes;
  GraphView view;
  std::vector<std::string> parts;
};

// How a recording summarises tensors on devices. Filled before the recording starts.
class SummaryGraphs {
 public:
  // Tensors on devices of a type, as `GPU`, are summarised there.
  void add_device_type(const std::string& device_type) { device_types_.insert(device_type); }
  // Throws std::runtime_error if the bytes are no such graph.
  void set(int dtype, SummaryLayout layout, std::string graph_def);
  // Returns the graph for tensors of a dtype; nullptr if there is none.
  const SummaryGraph* find(int dtype) const;
  // Whether tensors on a device, given by its full name, are summarised there.
  bool serve(std::string_view device) const;

 private:
  std::unordered_set<std::string> device_types_;
  std::unordered_map<int, SummaryGraph> graphs_;
};

// Whether the host's memory is the device's.
bool is_host(std::string_view device);

// A tensor to summarise.
struct SummarizedTensor {
  std::string name;    // as an input of other nodes has it
  std::string_view node;
  std::string_view device;
  const SummaryGraph* graph;
  int dtype = 0;
  int32_t key = 0;
  bool stops = false;  // the program, if the tensor is bad
  std::string_view call_site;
  bool has_call_site = false;
  bool is_handed_on = false;  // whether consumers take it from a node behind those that count
};

// Makes the nodes for the tensors of one graph.
class SummaryNodes {
 public:
  // `prefix`: begins the name of each node, and of no other.
  SummaryNodes(std::string prefix, int64_t generation) : prefix_(std::move(prefix)), generation_(generation) {}

  // To be called in an order in which a tensor comes after those that it is computed from.
  void add(const Place& place, SummarizedTensor tensor);
  bool empty() const { return groups_.empty(); }

  // Appends the nodes to a serialized GraphDef.
  // Throws std::runtime_error if they take more than `max_bytes`.
  void build(std::string* graph_def, size_t max_bytes);

  // After build(): the node that hands each tensor on, by the name of the tensor.
  const std::unordered_map<std::string, std::string>& handed_on() const { return handed_on_; }
  // After build(): the record ops, with the places of what they record.
  const std::vector<std::pair<Place, std::string>>& record_ops() const { return record_ops_; }

 private:
  // Device, place, and whether the call sites are known.
  using GroupKey = std::tuple<std::string, Place, bool>;

  void build_group(const GroupKey& key, const std::vector<SummarizedTensor>& tensors, std::string* out, size_t max_bytes);
  void add_graph(const SummarizedTensor& tensor, const std::string& name, const std::string& group_name,
                 std::string_view node_in_loop, std::unordered_set<std::string>* constants, std::string* out,
                 size_t max_bytes);

  const std::string prefix_;
  const int64_t generation_;
  int64_t num_names_ = 0;
  std::map<GroupKey, std::vector<SummarizedTensor>> groups_;
  std::unordered_map<std::string, std::string> handed_on_;
  std::vector<std::pair<Place, std::string>> record_ops_;
};

}  // namespace tfdbg_arrow
