// Fuzzes the reader and the editor of GraphDefs. Built and started by tools/fuzz_native.py.
#include "graph_def.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

using namespace tfdbg_arrow;

namespace {

void require(bool is_true) {
  if (!is_true) std::abort();
}

bool is_inside(std::string_view part, std::string_view whole) {
  return part.empty() || (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size());
}

// Reads everything that the optimizer reads from a node.
void read(const NodeView& node, std::string_view graph) {
  for (std::string_view part : {node.field, node.bytes, node.name, node.op, node.device}) require(is_inside(part, graph));
  require(is_utf8(node.name) && is_utf8(node.op) && is_utf8(node.device));
  for (std::string_view text : node.inputs) {
    require(is_inside(text, graph) && is_utf8(text));
    const std::optional<NodeInput> input = parse_input(text);
    if (input) require(is_inside(input->node, text) && input->slot >= 0);
  }
  for (const auto& [name, value] : node.attrs) {
    require(is_inside(name, graph) && is_inside(value, graph));
    require(node.attr(name) != nullptr);
    attr_int(value), attr_bool(value), attr_type(value), attr_types(value);
    const std::optional<std::string_view> text = attr_string(value);
    if (text) require(is_inside(*text, graph));
  }
}

// Edits a node as the optimizer does, and reads the result.
void edit(const NodeView& node) {
  const std::vector<std::string> inputs(node.inputs.begin(), node.inputs.end());
  NodeBuilder builder(with_inputs(node, inputs));
  builder.attr_int("number", -7).attr_string("text", "value").attr_types("types", {1, 2}).attr_bool("flag", true);
  std::string graph;
  put_bytes_field(&graph, 1, builder.bytes());
  const std::optional<GraphView> edited = parse_graph(graph);
  require(edited.has_value() && edited->nodes.size() == 1);
  const NodeView& found = edited->nodes[0];
  require(found.name == node.name && found.op == node.op && found.device == node.device);
  require(found.inputs == node.inputs);
  require(attr_int(*found.attr("number")) == -7 && attr_string(*found.attr("text")) == "value");
  require(attr_types(*found.attr("types")) == std::vector<int>({1, 2}) && attr_bool(*found.attr("flag")) == true);
}

}  // namespace

// The input is an OpList and a GraphDef. The first two bytes give the size of the OpList.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  const size_t size_of_ops = std::min<size_t>(bytes.size(), data[0] + 256u * data[1]);
  OpTable table;
  table.read(bytes.substr(0, size_of_ops));
  const std::optional<GraphView> graph = parse_graph(bytes.substr(size_of_ops));
  if (!graph) return 0;
  for (const NodeView& node : graph->nodes) {
    read(node, graph->bytes);
    edit(node);
    table.output_types(node);
    table.knows(node.op);
  }
  return 0;
}
