#include "graph_rows.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "graph_def.h"
#include "node_kinds.h"
#include "session.h"
#include "stack.h"

namespace nb = nanobind;

namespace tfdbg_arrow {
namespace {

// Most ops of a graph have the same few attributes. Longer attributes are rarely the same.
constexpr size_t kMaxKeptTexts = 10'000;
constexpr size_t kMaxKeptBytes = 64;

nb::object to_python(std::string_view text) { return nb::str(text.data(), text.size()); }

std::string_view view_of(nb::handle text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) throw nb::python_error();
  return {data, static_cast<size_t>(size)};
}

nb::object get(nb::handle object, const char* name) {
  nb::object found = nb::steal(PyObject_GetAttrString(object.ptr(), name));
  if (!found.is_valid()) throw nb::python_error();
  return found;
}

// Returns the name of the op in a loop's body from which tf.vectorized_map or a jacobian made an op; empty for other
// ops. The call of tf.vectorized_map creates the new op, which gets the line, layer and forward op of the op in the
// body.
std::string_view vectorized_from(std::string_view op_name) {
  const size_t at = op_name.rfind("/pfor/");
  return at == std::string_view::npos ? std::string_view() : op_name.substr(0, at);
}

// Appends a text in UTF-8 as a JSON string.
void put_json_text(std::string* out, std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  out->push_back('"');
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if (code < 0x20) {
      out->append("\\u00").append({kDigits[code >> 4], kDigits[code & 15]});
      continue;
    }
    if (letter == '"' || letter == '\\') out->push_back('\\');
    out->push_back(letter);
  }
  out->push_back('"');
}

// A Scope as columns; all are None for an op that was created before the recording.
struct ScopeColumns {
  explicit ScopeColumns(const nb::object& scope) {
    if (!scope.is_valid()) return;
    layer = get(scope, "layer");
    role = get(scope, "role");
    const nb::object stack = get(scope, "part_stack");
    if (nb::cast<int64_t>(stack) >= 0) part_stack = stack;
    const nb::object forward = get(scope, "forward_op");
    if (forward.is_none()) return;
    forward_graph = forward[0];
    forward_op = forward[1];
  }
  nb::object forward_graph = nb::none(), forward_op = nb::none(), layer = nb::none(), role = nb::none(),
             part_stack = nb::none();
};

// Returns the functions in the attributes of a node as (attribute, index in a list, function name).
nb::list functions_of(const NodeView& node) {
  nb::list functions;
  for (const auto& [key, value] : node.attrs) {
    const std::vector<std::string_view> called = attr_functions(value);
    for (size_t k = 0; k < called.size(); ++k) {
      functions.append(nb::make_tuple(to_python(key), k, to_python(called[k])));
    }
  }
  return functions;
}

// New rows of a table, one list for each column.
class Columns {
 public:
  explicit Columns(std::vector<const char*> names) : names_(std::move(names)), lists_(names_.size()) {}

  template <typename... Values>
  void add(Values&&... values) {
    size_t column = 0;
    (lists_[column++].append(std::forward<Values>(values)), ...);
  }

  nb::dict columns() const {
    nb::dict found;
    for (size_t i = 0; i < names_.size(); ++i) found[names_[i]] = lists_[i];
    return found;
  }

 private:
  std::vector<const char*> names_;
  std::vector<nb::list> lists_;
};

}  // namespace

nb::object GraphRows::state_of(nb::handle graph) {
  if (last_graph_.is_valid() && PyWeakref_GetObject(last_graph_.ptr()) == graph.ptr()) return last_state_;
  nb::object state = state_of_(graph);
  nb::object reference = nb::steal(PyWeakref_NewRef(graph.ptr(), nullptr));
  if (!reference.is_valid()) throw nb::python_error();
  std::swap(last_graph_, reference);
  last_state_ = state;
  return state;
}

void GraphRows::note_created(nb::handle op) {
  const nb::object name = get(op, "name");
  const nb::object type = get(op, "type");
  if (is_own_op(view_of(type), view_of(name))) return;
  const nb::object graph = get(op, "graph");
  const nb::object state = state_of(graph);
  nb::object scope = current_scope_();
  const nb::object layer = get(scope, "layer");
  if (!layer.is_none()) state.attr("layers")[name] = layer;
  const nb::object creations = get(state, "creations");
  const int64_t stack_id = intern_stack(0);
  // No Python code runs from here on, so no other thread changes the map meanwhile.
  Creation& creation = nb::cast<Creations&>(creations).of_op[std::string(view_of(name))];
  creation.stack_id = stack_id;
  creation.wall_time_ns = wall_time_ns();
  std::swap(creation.scope, scope);  // the destructor of a replaced scope runs at the end
}

nb::tuple GraphRows::describe(Creations& creations, const nb::bytes& graph_def, const nb::list& ops, size_t first_new,
                              const nb::dict& known_inputs) {
  const std::optional<GraphView> graph = parse_graph({graph_def.c_str(), graph_def.size()});
  if (!graph) throw std::runtime_error("the graph cannot be read");
  const std::vector<NodeView>& nodes = graph->nodes;
  std::unordered_map<std::string_view, size_t> places;  // of the nodes, if they are not in the order of the ops
  const auto node_of = [&](std::string_view name, size_t i) -> const NodeView& {
    if (i < nodes.size() && nodes[i].name == name) return nodes[i];
    for (size_t k = places.size(); k < nodes.size(); ++k) places.emplace(nodes[k].name, k);
    const auto place = places.find(name);
    if (place == places.end()) throw std::runtime_error("the graph has no op " + std::string(name));
    return nodes[place->second];
  };
  std::unordered_map<std::string_view, nb::object> names;
  const auto name_of = [&](std::string_view text) {
    auto [entry, is_new] = names.try_emplace(text);
    if (is_new) entry->second = to_python(text);
    return entry->second;
  };

  Columns op_columns({"op_index", "op_name", "op_type", "device_name", "attributes", "stack_trace_id", "wall_time_ns",
                      "forward_graph_id", "forward_op_name", "layer", "role", "part_stack_trace_id"});
  Columns input_columns({"op_name", "input_index", "is_control", "source_op_name", "source_output_slot"});
  nb::list with_outputs;
  nb::dict calls;
  std::unordered_map<std::string_view, Creation> described;
  const size_t first = known_inputs.size() == 0 ? first_new : 0;
  for (size_t i = first; i < ops.size(); ++i) {
    const nb::object name = get(ops[i], "name");
    const NodeView& node = node_of(view_of(name), i);
    if (is_own_op(node.op, node.name)) continue;
    const bool is_new = i >= first_new;
    if (!is_new && !known_inputs.contains(name)) continue;

    names.emplace(node.name, name);
    const size_t num_known = is_new ? 0 : nb::cast<size_t>(known_inputs[name]);
    int64_t num_control = 0;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      const std::optional<NodeInput> input = parse_input(node.inputs[k]);
      if (!input) throw std::runtime_error("the op " + std::string(node.name) + " has an input that is none");
      if (input->is_control) {
        if (is_new) input_columns.add(name, num_control, true, name_of(input->node), nb::none());
        ++num_control;
      } else if (k >= num_known) {
        input_columns.add(name, k, false, name_of(input->node), input->slot);
      }
    }

    const nb::list functions = functions_of(node);
    if (functions.size() != 0) calls[nb::int_(i)] = functions;
    const nb::object type = name_of(node.op);
    with_outputs.append(nb::make_tuple(i, name, type));
    if (!is_new) continue;

    const nb::object texts = to_python(attributes(node));
    Creation creation;
    if (const auto found = creations.of_op.find(std::string(node.name)); found != creations.of_op.end()) {
      creation = std::move(found->second);
      creations.of_op.erase(found);
    }
    const auto body_op = described.find(vectorized_from(node.name));
    if (body_op != described.end() && body_op->second.stack_id >= 0) creation = body_op->second;
    described.emplace(node.name, creation);
    const ScopeColumns scope(creation.scope);
    op_columns.add(i, name, type, node.device.empty() ? nb::none() : nb::object(name_of(node.device)), texts,
                   creation.stack_id < 0 ? nb::none() : nb::object(nb::int_(creation.stack_id)),
                   creation.wall_time_ns != 0 ? creation.wall_time_ns : wall_time_ns(), scope.forward_graph,
                   scope.forward_op, scope.layer, scope.role, scope.part_stack);
  }
  return nb::make_tuple(op_columns.columns(), input_columns.columns(), with_outputs, calls);
}

// Returns the attributes of a node as a JSON object, in the order of their names.
std::string GraphRows::attributes(const NodeView& node) {
  std::vector<std::pair<std::string_view, std::string_view>> sorted = node.attrs;
  std::sort(sorted.begin(), sorted.end());
  std::string text = "{";
  for (const auto& [key, value] : sorted) {
    if (text.size() > 1) text.push_back(',');
    put_json_text(&text, key);
    text.push_back(':');
    const bool is_short = value.size() <= kMaxKeptBytes;
    const auto kept = is_short ? attribute_texts_.find(std::string(value)) : attribute_texts_.end();
    if (kept != attribute_texts_.end()) {
      text.append(kept->second);
      continue;
    }
    const nb::object made = attribute_json_(nb::bytes(value.data(), value.size()));
    const std::string_view made_text = view_of(made);
    text.append(made_text);
    if (is_short && attribute_texts_.size() < kMaxKeptTexts) attribute_texts_.emplace(value, made_text);
  }
  text.push_back('}');
  return text;
}

}  // namespace tfdbg_arrow
