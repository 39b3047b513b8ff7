#include "device_summaries.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include "record_op.h"

namespace tfdbg_arrow {
namespace {

constexpr std::string_view kInput = "tensor", kPart = "part";
// TF_FLOAT, TF_DOUBLE, TF_INT32, TF_UINT8, TF_INT64
constexpr int kFloat = 1, kDouble = 2, kInt32 = 3, kUint8 = 4, kInt64 = 9;

std::string_view device_type(std::string_view device) {
  constexpr std::string_view kField = "device:";
  const size_t at = device.rfind(kField);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = device.substr(at + kField.size());
  return rest.substr(0, rest.find(':'));
}

void append_node(const NodeBuilder& node, std::string* out, size_t max_bytes) {
  put_bytes_field(out, 1, node.bytes());
  if (out->size() > max_bytes) throw std::runtime_error("the nodes that summarise tensors take too much memory");
}

// Appends the node `<group>/parts`, which concatenates vectors.
void append_all(const std::vector<std::string>& parts, int dtype, const std::string& device, const std::string& group,
                std::string_view node_in_loop, std::string* out, size_t max_bytes) {
  NodeBuilder axis(group + "/axis", "Const", device);
  if (!node_in_loop.empty()) axis.input("^" + std::string(node_in_loop));
  std::string tensor, value;
  put_int_field(&tensor, 1, kInt32);
  put_bytes_field(&tensor, 2, std::string_view());  // the shape of a scalar
  put_bytes_field(&tensor, 7, std::string(1, 0));   // int_val
  put_bytes_field(&value, 8, tensor);
  append_node(axis.attr_type("dtype", kInt32).attr("value", value), out, max_bytes);
  NodeBuilder all(group + "/parts", parts.size() == 1 ? "Identity" : "ConcatV2", device);
  for (const std::string& part : parts) all.input(part);
  all.attr_type("T", dtype);
  if (parts.size() > 1) {
    all.input(group + "/axis").attr_int("N", static_cast<int64_t>(parts.size())).attr_type("Tidx", kInt32);
  }
  append_node(all, out, max_bytes);
}

void read_graph(std::string graph_def, int dtype, SummaryGraph* graph) {
  graph->bytes = std::move(graph_def);
  const std::optional<GraphView> view = parse_graph(graph->bytes);
  const bool has_part = view && std::any_of(view->nodes.begin(), view->nodes.end(),
                                            [](const NodeView& node) { return node.name == kPart; });
  if (!view || has_part != (graph->num_classes + graph->element_bytes > 0)) {
    throw std::runtime_error("the graph that summarizes dtype " + std::to_string(dtype) + " is none");
  }
  graph->view = *view;
}

// Assigns indexes to distinct texts.
class Interned {
 public:
  int32_t add(std::string_view text) {
    const auto [entry, is_new] = places_.try_emplace(std::string(text), static_cast<int32_t>(places_.size()));
    if (is_new) lines_ += (places_.size() == 1 ? "" : "\n") + std::string(text);
    return entry->second;
  }
  const std::string& lines() const { return lines_; }

 private:
  std::unordered_map<std::string, int32_t> places_;
  std::string lines_;
};

}  // namespace

void SummaryGraphs::set(int dtype, int64_t num_classes, std::string graph_def) {
  graphs_[dtype].num_classes = num_classes;
  read_graph(std::move(graph_def), dtype, &graphs_[dtype]);
}

void SummaryGraphs::set_small(int dtype, int64_t element_bytes, std::string graph_def) {
  small_graphs_[dtype].element_bytes = element_bytes;
  read_graph(std::move(graph_def), dtype, &small_graphs_[dtype]);
}

void SummaryGraphs::add_small(const std::vector<int32_t>& keys) {
  std::lock_guard<std::mutex> lock(mutex_);
  small_keys_.insert(keys.begin(), keys.end());
}

const SummaryGraph* SummaryGraphs::find(int dtype, int32_t key) const {
  const auto small = small_graphs_.find(dtype);
  if (small == small_graphs_.end()) return find(dtype);
  std::lock_guard<std::mutex> lock(mutex_);
  return small_keys_.count(key) != 0 ? &small->second : find(dtype);
}

const SummaryGraph* SummaryGraphs::find(int dtype) const {
  const auto found = graphs_.find(dtype);
  return found == graphs_.end() ? nullptr : &found->second;
}

bool SummaryGraphs::serve(std::string_view device) const {
  return is_allowed_.load(std::memory_order_relaxed) && device_types_.count(std::string(device_type(device))) != 0;
}

bool is_host(std::string_view device) { return device_type(device).empty() || device_type(device) == "CPU"; }

void SummaryNodes::add(const Place& place, SummarizedTensor tensor) {
  GroupKey key(std::string(tensor.device), place, tensor.has_call_site, tensor.graph->element_bytes > 0);
  groups_[std::move(key)].push_back(std::move(tensor));
}

void SummaryNodes::build(std::string* graph_def, size_t max_bytes) {
  for (const auto& [key, tensors] : groups_) build_group(key, tensors, graph_def, max_bytes);
}

void SummaryNodes::build_group(const GroupKey& key, const std::vector<SummarizedTensor>& tensors, std::string* out,
                               size_t max_bytes) {
  const auto& [device, place, has_call_site, is_whole] = key;
  const std::string group_name = prefix_ + std::to_string(num_names_++);
  std::unordered_set<std::string> constants;
  std::vector<std::string> parts, shapes;
  std::vector<int32_t> keys, stops, dtypes, nums_classes, element_bytes, sites;
  Interned call_sites;
  // A node without inputs runs outside of all loops. In a loop, constants wait for the first tensor, which does not
  // depend on the other tensors.
  const std::string_view node_in_loop = place.frame != 0 ? tensors[0].node : std::string_view();
  for (const SummarizedTensor& tensor : tensors) {
    const std::string name = prefix_ + std::to_string(num_names_++) + "/" + std::string(tensor.node);
    add_graph(tensor, name, group_name, node_in_loop, &constants, out, max_bytes);
    NodeBuilder same(name, "Identity", device);
    same.input(tensor.name);
    if (tensor.graph->num_classes > 0 || is_whole) {
      parts.push_back(name + "/" + std::string(kPart));
      same.input("^" + parts.back());
    }
    shapes.push_back(name + "/shape");
    NodeBuilder shape(shapes.back(), "Shape", device);
    shape.input(tensor.name).attr_type("T", tensor.dtype).attr_type("out_type", kInt64);
    append_node(shape, out, max_bytes);
    keys.push_back(tensor.key);
    stops.push_back(tensor.stops ? 1 : 0);
    dtypes.push_back(tensor.dtype);
    nums_classes.push_back(static_cast<int32_t>(tensor.graph->num_classes));
    element_bytes.push_back(static_cast<int32_t>(tensor.graph->element_bytes));
    sites.push_back(call_sites.add(tensor.call_site));
    if (!tensor.is_handed_on) continue;
    append_node(same.input("^" + shapes.back()).attr_type("T", tensor.dtype), out, max_bytes);
    handed_on_.emplace(tensor.name, name);
  }
  const int part_type = is_whole ? kUint8 : has_magnitudes_ ? kDouble : kFloat;
  NodeBuilder record(group_name, kRecordDeviceOp, device);
  if (!parts.empty()) {
    append_all(parts, part_type, device, group_name, node_in_loop, out, max_bytes);
    record.input(group_name + "/parts");
  }
  for (const std::string& shape : shapes) record.input(shape);
  record.attr_int("num_parts", parts.empty() ? 0 : 1)
      .attr_int("num_shapes", static_cast<int64_t>(shapes.size()))
      .attr_ints("nodes", keys)
      .attr_ints("decides", stops)
      .attr_ints("dtypes", dtypes)
      .attr_ints("nums_classes", nums_classes)
      .attr_ints("element_bytes", element_bytes)
      .attr_type("T", part_type)
      .attr_int("generation", generation_)
      .attr_int("executed_graph", executed_graph_)
      .attr_bool("has_call_site", has_call_site)
      .attr_string("call_sites", call_sites.lines())
      .attr_ints("sites", sites);
  append_node(record, out, max_bytes);
  record_ops_.emplace_back(place, group_name);
}

// Appends copies of the nodes of the graph that summarizes a tensor. The tensors of a group share constants.
void SummaryNodes::add_graph(const SummarizedTensor& tensor, const std::string& name, const std::string& group_name,
                             std::string_view node_in_loop, std::unordered_set<std::string>* constants,
                             std::string* out, size_t max_bytes) {
  const std::string constant_scope = group_name + "/" + std::to_string(tensor.dtype) + "/";
  const std::vector<NodeView>& nodes = tensor.graph->view.nodes;
  for (const NodeView& node : nodes) {
    const std::string constant_name = constant_scope + std::string(node.name);
    if (node.op != "Const" || !constants->insert(constant_name).second) continue;
    NodeBuilder constant(constant_name, node.op, tensor.device);
    if (!node_in_loop.empty()) constant.input("^" + std::string(node_in_loop));
    for (const auto& [key, value] : node.attrs) constant.attr(key, value);
    append_node(constant, out, max_bytes);
  }
  for (const NodeView& node : nodes) {
    if (node.name == kInput || node.op == "Const") continue;
    NodeBuilder copy(name + "/" + std::string(node.name), node.op, tensor.device);
    for (std::string_view text : node.inputs) {
      const std::optional<NodeInput> input = parse_input(text);
      if (!input || input->is_control) continue;
      const std::string constant_name = constant_scope + std::string(input->node);
      if (input->node == kInput) {
        copy.input(tensor.name);
      } else if (constants->count(constant_name) != 0) {
        copy.input(constant_name);
      } else {
        copy.input(tensor_name(name + "/" + std::string(input->node), static_cast<size_t>(input->slot)));
      }
    }
    for (const auto& [key, value] : node.attrs) copy.attr(key, value);
    append_node(copy, out, max_bytes);
  }
}

}  // namespace tfdbg_arrow
