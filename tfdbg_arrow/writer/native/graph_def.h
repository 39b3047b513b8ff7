// Reads and edits a serialized GraphDef without a protobuf library. Nodes are views into the bytes. Bytes that are not
// edited are copied unchanged.
//
// Source of the field numbers: tensorflow/core/framework/{graph,node_def,attr_value,op_def}.proto.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tfdbg_arrow {

// One input of a node: an output of another node, or a control edge.
struct NodeInput {
  std::string_view node;
  int32_t slot = 0;
  bool is_control = false;
};

struct NodeView {
  std::string_view field;  // the field in the graph: tag, size and the serialized NodeDef
  std::string_view bytes;  // the serialized NodeDef
  std::string_view name;
  std::string_view op;
  std::string_view device;
  std::vector<std::string_view> inputs;
  std::vector<std::pair<std::string_view, std::string_view>> attrs;  // name, serialized AttrValue
  std::vector<std::string_view> original_names;                      // of experimental_debug_info

  // Returns the serialized AttrValue of an attribute (the last one if there are several); nullptr if there is none.
  const std::string_view* attr(std::string_view name) const;
};

struct GraphView {
  std::vector<NodeView> nodes;
  std::string_view bytes;  // the serialized GraphDef
};

// Returns nullopt for bytes that are not a GraphDef, or whose texts are not UTF-8; protobuf rejects both. The views
// point into `bytes`.
std::optional<GraphView> parse_graph(std::string_view bytes);

// Returns true if bytes are UTF-8 by the rules of protobuf and Python: no overlong forms, no surrogates.
bool is_utf8(std::string_view text);

// Reads "name", "name:slot" and "^name".
std::optional<NodeInput> parse_input(std::string_view text);

// Return the values of attributes; nullopt if the attribute holds another kind of value.
std::optional<int64_t> attr_int(std::string_view attr_value);
std::optional<bool> attr_bool(std::string_view attr_value);
std::optional<int> attr_type(std::string_view attr_value);
std::optional<std::vector<int>> attr_types(std::string_view attr_value);
std::optional<std::string_view> attr_string(std::string_view attr_value);

// Returns the names of the functions in an attribute; empty if it holds another kind of value.
std::vector<std::string_view> attr_functions(std::string_view attr_value);

// Appends a field of a protocol buffer.
void put_bytes_field(std::string* out, uint32_t field, std::string_view value);
void put_int_field(std::string* out, uint32_t field, uint64_t value);

// Builds the bytes of a NodeDef.
class NodeBuilder {
 public:
  NodeBuilder(std::string_view name, std::string_view op, std::string_view device);
  // Adds to an existing NodeDef. If the NodeDef already has an attribute, the attribute gets the new value.
  explicit NodeBuilder(std::string node_def) : bytes_(std::move(node_def)) {}
  NodeBuilder& input(std::string_view text);
  NodeBuilder& attr_int(std::string_view name, int64_t value);
  NodeBuilder& attr_ints(std::string_view name, const std::vector<int32_t>& values);
  NodeBuilder& attr_types(std::string_view name, const std::vector<int>& types);
  NodeBuilder& attr_bool(std::string_view name, bool value);
  NodeBuilder& attr_type(std::string_view name, int type);
  NodeBuilder& attr_string(std::string_view name, std::string_view value);
  // `attr_value`: a serialized AttrValue.
  NodeBuilder& attr(std::string_view name, std::string_view attr_value);
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Returns the bytes of a NodeDef with its inputs replaced, in their order.
std::string with_inputs(const NodeView& node, const std::vector<std::string>& inputs);

// The dtypes of the outputs of ops, read from a serialized OpList.
class OpTable {
 public:
  // Returns false for bytes that are not an OpList; the table is then empty.
  bool read(std::string_view op_list);
  bool knows(std::string_view op) const { return ops_.find(std::string(op)) != ops_.end(); }
  // Returns the dtype number of each output of a node, negative for a reference; nullopt if the dtypes are unknown.
  std::optional<std::vector<int>> output_types(const NodeView& node) const;

 private:
  struct Output {
    int type = 0;
    std::string type_attr, number_attr, type_list_attr;
    bool is_ref = false;
  };
  struct Op {
    std::vector<Output> outputs;
    std::unordered_map<std::string, std::string> defaults;  // serialized AttrValue by attribute
  };
  static std::optional<Op> read_op(std::string_view bytes, std::string* name);
  std::unordered_map<std::string, Op> ops_;
};

}  // namespace tfdbg_arrow
