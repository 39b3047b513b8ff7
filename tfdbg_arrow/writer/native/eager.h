// The eager path: what TensorFlow's op callback tells of executed ops and calls, recorded without a
// Python object for each event. All functions need the GIL.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>

namespace tfdbg_arrow {

// Python objects that the path calls out to; set while recording starts, cleared when it ends.
struct EagerHandlers {
  PyObject* on_graph_op = nullptr;  // (op_type, op_name, outputs, graph, stack_id, wall_time_ns) -> None
  PyObject* covers_op = nullptr;    // (op_type) -> int: 0 no tensor of it is recorded, 1 all, 2 with elements; None: 1
  PyObject* on_nonfinite = nullptr;  // (op_type, inputs, bad outputs and inputs) -> None: may raise; None: not asked
  PyObject* on_error = nullptr;     // (what) -> None: an exception was swallowed; it is set in sys.exc_info
};
void set_eager_handlers(PyObject* on_graph_op, PyObject* covers_op, PyObject* on_error, PyObject* on_nonfinite);
// Whether `on_nonfinite` wants to hear of every eager op, not only of those with a bad tensor.
void set_watching(bool watching);

// The op callback: (op_type, inputs, attrs, outputs, op_name=None, graph=None) -> None.
PyObject* op_callback(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keyword_names);

// A call of a function from eager code begins: records it with its inputs before anything in it runs.
// `runs_as` is the function that TensorFlow runs for it: this one or a copy.
// Returns its execution index, or -1 when nothing records.
int64_t begin_call(PyObject* function_name, PyObject* inputs, int64_t num_outputs, PyObject* runs_as);
// The call has returned its outputs, or raised (None). Records the outputs where the op callback was not
// called for them, as under a cancellation manager; `on_nonfinite` hears of them at the thread's next op.
void end_call(int64_t execution_index, PyObject* outputs, PyObject* error_type);

// Records an eager op that raised an error of a class, by name, before any callback heard of it.
void record_failed_op(PyObject* op_type, PyObject* inputs, PyObject* error_type);

// What the calling thread runs from here on belongs to: interned layer and role (0: none, and the role `forward`), and
// the execution whose gradient is computed (kNoValue: none). Holds for the recording of that generation.
struct Scope {
  int64_t generation = -1;
  int32_t layer = 0;
  int32_t role = 0;
  int64_t forward_execution = -1;
  bool is_gradient = false;  // entered by enter_gradient(), which Python hears of only by asking
};
Scope current_scope();
void set_scope(const Scope& scope);

// The calling thread runs the gradient function of the execution that passed these attributes, by identity, to
// TensorFlow's gradient tape. Returns false, and does nothing, where that execution is not known.
bool enter_gradient(int64_t generation, PyObject* op_type, PyObject* attrs);

// These attributes are those of an op of a graph.
void forget_forward(PyObject* attrs);

// The execution that made an eager tensor, if it is among the last; kNoValue otherwise.
int64_t execution_of(PyObject* tensor);

// Forgets which tensors were seen: a new recording starts.
void reset_eager_state();

}  // namespace tfdbg_arrow
