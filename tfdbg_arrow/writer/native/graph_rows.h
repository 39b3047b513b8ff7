// Describes graphs of the program as rows: their ops with the place of their creation, and the inputs of the ops. All
// functions need the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>

#include "graph_def.h"

namespace tfdbg_arrow {

// The place, time and scope of the creation of the ops of a graph that have no rows yet, by name.
struct Creation {
  int64_t stack_id = -1;
  int64_t wall_time_ns = 0;
  nanobind::object scope;
};
struct Creations {
  std::unordered_map<std::string, Creation> of_op;
};

class GraphRows {
 public:
  // `state_of`: (graph) -> GraphState, whose `creations` are Creations. `current_scope`: () -> Scope of the calling
  // thread. `attribute_json`: (serialized AttrValue) -> its JSON. They must not refer to the owner of this object,
  // because Python's garbage collector does not see the references of this object.
  GraphRows(nanobind::callable state_of, nanobind::callable current_scope, nanobind::callable attribute_json)
      : state_of_(std::move(state_of)), current_scope_(std::move(current_scope)), attribute_json_(std::move(attribute_json)) {}

  // Notes where, when and in which scope an op of a graph is created.
  void note_created(nanobind::handle op);

  // Returns the rows of a graph, without our own ops, as a tuple of four: the columns of graph_op; the columns of
  // graph_op_input; the ops whose outputs may need rows, as (index, name, type); and the functions by the index of the
  // calling op, as (attribute, index in a list, function name).
  //
  // `ops`: the operations in order of creation. The operations from `first_new` on get rows. `known_inputs`: the number
  // of inputs that already have rows, by the name of each older op that may have more inputs now. The column
  // `stack_trace_id` is None for an op whose creation was not noted. Throws std::runtime_error if the graph cannot be
  // read.
  nanobind::tuple describe(Creations& creations, const nanobind::bytes& graph_def, const nanobind::list& ops,
                           size_t first_new, const nanobind::dict& known_inputs);

 private:
  nanobind::object state_of(nanobind::handle graph);
  std::string attributes(const NodeView& node);

  nanobind::object state_of_, current_scope_, attribute_json_;
  nanobind::object last_graph_, last_state_;  // a weak reference to the graph of the last op, and its GraphState
  std::unordered_map<std::string, std::string> attribute_texts_;  // JSON of short attributes, by serialized AttrValue
};

}  // namespace tfdbg_arrow
