#include "device_summaries.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include "record_op.h"

namespace tfdbg_arrow {
namespace {

constexpr std::string_view kInput = "tensor", kPart = "part";
// TF_FLOAT, TF_DOUBLE, TF_INT32, TF_UINT8
constexpr int kFloat = 1, kDouble = 2, kInt32 = 3, kUint8 = 4;

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

// Returns a node that makes views of tensors as another dtype. The views have the shape [1, n] if `is_row`, and [n]
// otherwise. The node also makes the shapes of the tensors if `has_shapes`.
NodeBuilder view_of(const std::vector<std::string>& tensors, const std::vector<int>& types, int view_type, bool has_shapes,
                    bool is_row, const std::string& name, std::string_view device) {
  NodeBuilder view(name, kViewOp, device);
  for (const std::string& tensor : tensors) view.input(tensor);
  const auto num_tensors = static_cast<int64_t>(tensors.size());
  view.attr_types("types", types)
      .attr_int("num_views", view_type == 0 ? 0 : num_tensors)
      .attr_int("num_shapes", has_shapes ? 1 : 0)
      .attr_bool("is_row", is_row)
      .attr_type("T", view_type == 0 ? kUint8 : view_type);
  return view;
}

// Appends nodes that concatenate the bytes of tensors. The shapes of the tensors are a further output of
// `<group>/bytes`. Returns the name of the node with all bytes.
std::string append_all(const std::vector<std::string>& parts, const std::vector<int>& types, bool has_shapes,
                       const std::string& device, const std::string& group, std::string_view node_in_loop,
                       std::string* out, size_t max_bytes) {
  const std::string bytes = group + "/bytes";
  append_node(view_of(parts, types, kUint8, has_shapes, false, bytes, device), out, max_bytes);
  if (parts.size() == 1) return bytes;
  NodeBuilder axis(group + "/axis", "Const", device);
  if (!node_in_loop.empty()) axis.input("^" + std::string(node_in_loop));
  std::string tensor, value;
  put_int_field(&tensor, 1, kInt32);
  put_bytes_field(&tensor, 2, std::string_view());  // the shape of a scalar
  put_bytes_field(&tensor, 7, std::string(1, 0));   // int_val
  put_bytes_field(&value, 8, tensor);
  append_node(axis.attr_type("dtype", kInt32).attr("value", value), out, max_bytes);
  NodeBuilder all(group + "/parts", "ConcatV2", device);
  for (size_t i = 0; i < parts.size(); ++i) all.input(tensor_name(bytes, i));
  all.input(group + "/axis")
      .attr_type("T", kUint8)
      .attr_int("N", static_cast<int64_t>(parts.size()))
      .attr_type("Tidx", kInt32);
  append_node(all, out, max_bytes);
  return group + "/parts";
}

// Returns the last node of a graph that holds the graph's input.
std::string last_reader_in(const GraphView& graph) {
  std::vector<const NodeView*> readers;
  for (const NodeView& node : graph.nodes) {
    if (std::any_of(node.inputs.begin(), node.inputs.end(), [](std::string_view text) {
          const std::optional<NodeInput> input = parse_input(text);
          return input && input->node == kInput;
        })) {
      readers.push_back(&node);
    }
  }
  // The outputs of these ops share the memory of their input.
  auto holds = [](const NodeView& node) { return node.op == "Bitcast" || node.op == "Reshape" || node.op == "Identity"; };
  return std::string(readers.size() == 1 && !holds(*readers[0]) ? readers[0]->name : kPart);
}

void read_graph(std::string graph_def, int dtype, SummaryGraph* graph) {
  graph->bytes = std::move(graph_def);
  const std::optional<GraphView> view = parse_graph(graph->bytes);
  const bool has_part = view && std::any_of(view->nodes.begin(), view->nodes.end(),
                                            [](const NodeView& node) { return node.name == kPart; });
  if (!view || has_part != (graph->num_classes > 0)) {
    throw std::runtime_error("the graph that summarizes dtype " + std::to_string(dtype) + " is none");
  }
  graph->view = *view;
  graph->last_reader = last_reader_in(*view);
  for (const NodeView& node : view->nodes) {
    const std::string_view* type = node.name == kInput ? node.attr("dtype") : nullptr;
    if (type != nullptr) graph->view_type = attr_type(*type).value_or(0);
  }
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

void SummaryGraphs::add_small(const std::vector<int32_t>& keys) {
  std::lock_guard<std::mutex> lock(mutex_);
  small_keys_.insert(keys.begin(), keys.end());
}

void SummaryGraphs::add_shapes(const std::unordered_map<int32_t, std::vector<int64_t>>& shapes) {
  std::lock_guard<std::mutex> lock(mutex_);
  shapes_.insert(shapes.begin(), shapes.end());
}

std::optional<std::vector<int64_t>> SummaryGraphs::shape_of(int32_t key) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = shapes_.find(key);
  return found == shapes_.end() ? std::nullopt : std::optional(found->second);
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
  Group& group = groups_[{std::string(tensor.device), place}];
  Grouped grouped;
  for (const SameTensor& same : tensor.same_tensors) {
    const auto source = group.indexes.find(same.name);
    if (source == group.indexes.end()) continue;
    grouped.source = source->second;
    grouped.has_shape_of_source = same.has_same_shape;
    tensor.graph = group.tensors[static_cast<size_t>(source->second)].tensor.graph;
    break;
  }
  group.indexes.emplace(tensor.name, static_cast<int32_t>(group.tensors.size()));
  grouped.tensor = std::move(tensor);
  group.tensors.push_back(std::move(grouped));
}

void SummaryNodes::build(std::string* graph_def, size_t max_bytes) {
  for (const auto& [key, group] : groups_) build_group(key, group, graph_def, max_bytes);
}

void SummaryNodes::build_group(const GroupKey& key, const Group& group, std::string* out, size_t max_bytes) {
  const auto& [device, place] = key;
  const std::string group_name = prefix_ + std::to_string(num_names_++);
  std::unordered_set<std::string> constants;
  std::vector<std::string> parts, shapes;
  std::vector<int> part_types;
  bool has_shapes_of_parts = false;
  std::vector<std::string> computed;  // nodes whose tensors are recorded without further nodes
  std::vector<int32_t> keys, stops, dtypes, nums_classes, element_bytes, same_as, dims, sites, has_call_site;
  Interned call_sites;
  // A node without inputs runs outside of all loops. So in a loop, constants wait for the first tensor, which does not
  // depend on the other tensors.
  const std::string_view node_in_loop = place.frame != 0 ? group.tensors[0].tensor.node : std::string_view();
  for (const Grouped& grouped : group.tensors) {
    const SummarizedTensor& tensor = grouped.tensor;
    const std::string name = prefix_ + std::to_string(num_names_++) + "/" + std::string(tensor.node);
    auto read_last_by = [&, device = device](const std::string& node) {
      if (!tensor.is_constant) readers_.emplace(tensor.name, Reader{node, device, tensor.dtype, name});
    };
    const bool has_source = grouped.source >= 0, is_whole = tensor.graph->element_bytes > 0;
    if (has_source) computed.push_back(std::string(tensor.node));
    if (has_source && grouped.has_shape_of_source) {
      dims.push_back(kShapeOfSource);
    } else if (has_source && tensor.shape) {
      dims.push_back(static_cast<int32_t>(tensor.shape->size()));
      for (int64_t dim : *tensor.shape) dims.push_back(static_cast<int32_t>(dim));
    } else if (!has_source && is_whole) {
      dims.push_back(kShapeOfPart);
      has_shapes_of_parts = true;
      part_types.push_back(tensor.dtype);
      if (tensor.is_held) {
        parts.push_back(tensor.name);
      } else {
        append_node(NodeBuilder(name, "Snapshot", device).input(tensor.name).attr_type("T", tensor.dtype), out, max_bytes);
        parts.push_back(name);
        read_last_by(name);
      }
    } else {
      const bool is_counted = !has_source && tensor.graph->num_classes > 0;
      const int view_type = is_counted ? tensor.graph->view_type : 0;
      append_node(view_of({tensor.name}, {tensor.dtype}, view_type, true, true, name, device), out, max_bytes);
      dims.push_back(kShapeIsInput);
      shapes.push_back(tensor_name(name, is_counted ? 1 : 0));
      if (is_counted) {
        add_graph(tensor, name, group_name, node_in_loop, &constants, out, max_bytes);
        parts.push_back(name + "/" + std::string(kPart));
        part_types.push_back(has_magnitudes_ ? kDouble : tensor.graph->num_classes == kNumBadKinds ? kFloat : kInt32);
      }
      read_last_by(is_counted ? name + "/" + tensor.graph->last_reader : name);
    }
    keys.push_back(tensor.key);
    stops.push_back(tensor.stops ? 1 : 0);
    dtypes.push_back(tensor.dtype);
    nums_classes.push_back(static_cast<int32_t>(tensor.graph->num_classes));
    element_bytes.push_back(static_cast<int32_t>(tensor.graph->element_bytes));
    same_as.push_back(grouped.source);
    sites.push_back(call_sites.add(tensor.call_site));
    has_call_site.push_back(tensor.has_call_site ? 1 : 0);
  }
  NodeBuilder record(group_name, kRecordDeviceOp, device);
  if (!parts.empty()) {
    record.input(
        append_all(parts, part_types, has_shapes_of_parts, device, group_name, node_in_loop, out, max_bytes));
  }
  if (has_shapes_of_parts) record.input(tensor_name(group_name + "/bytes", parts.size()));
  for (const std::string& shape : shapes) record.input(shape);
  for (const std::string& node : computed) record.input("^" + node);
  record.attr_int("num_parts", parts.empty() ? 0 : 1)
      .attr_int("num_shapes", static_cast<int64_t>(shapes.size()) + (has_shapes_of_parts ? 1 : 0))
      .attr_ints("nodes", keys)
      .attr_ints("decides", stops)
      .attr_ints("dtypes", dtypes)
      .attr_ints("nums_classes", nums_classes)
      .attr_ints("element_bytes", element_bytes)
      .attr_ints("same_as", same_as)
      .attr_ints("dims", dims)
      .attr_int("generation", generation_)
      .attr_int("executed_graph", executed_graph_)
      .attr_ints("has_call_site", has_call_site)
      .attr_string("call_sites", call_sites.lines())
      .attr_ints("sites", sites);
  append_node(record, out, max_bytes);
  record_ops_.emplace_back(place, group_name);
}

std::string handing_on(const std::string& tensor, const Reader& reader, std::string* name) {
  *name = reader.prefix + "/same";
  NodeBuilder same(*name, "Identity", reader.device);
  same.input(tensor).input("^" + reader.node).attr_type("T", reader.dtype);
  return same.bytes();
}

// Appends copies of the nodes of a tensor's summary graph. The tensors of a group share constants.
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
        copy.input(name);  // the view
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
