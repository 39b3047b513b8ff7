// Records executed ops and calls from TensorFlow's op callback, without a Python object for each event. All functions
// need the GIL.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>

namespace tfdbg_arrow {

// Python callables; set when a recording starts, and cleared when it ends.
struct EagerHandlers {
  PyObject* covers_op = nullptr;    // (op_type) -> int: 0 records no tensors of it, 1 all, 2 also elements; None: 1
  PyObject* on_nonfinite = nullptr;  // (op_type, inputs, bad outputs and inputs) -> None: may raise; None: not called
  PyObject* count_on_device = nullptr;  // (tensor) -> bytes: the number of elements in each class, as int32 numbers
  PyObject* on_error = nullptr;     // (what, error) -> None: an exception was caught; raises it if it is not ours
};
void set_eager_handlers(PyObject* covers_op, PyObject* on_error, PyObject* on_nonfinite);
// Sets what counts large tensors that are not in the memory of the host; None copies them to the host.
void set_device_counter(PyObject* count_on_device);
// Sets whether `on_nonfinite` is called for every eager op, or only if there are bad tensors.
void set_watching(bool watching);

// Takes the current exception: one of our own code goes to `on_error`, and the program never sees it. All other
// exceptions, such as a KeyboardInterrupt or what a signal handler of the program raised, wait for raise_held(), and
// it returns true.
bool report_error(const char* what);
// Raises the exception that waits in the calling thread; returns false if there is none. Every function that Python
// calls, and that may have called report_error(), ends with it.
bool raise_held();

// The op callback: (op_type, inputs, attrs, outputs, op_name=None, graph=None) -> None.
PyObject* op_callback(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keyword_names);

// Calls a function for an eager op: `self` is (function, class of variables, function for ops that take variables).
PyObject* execute_op(PyObject* self, PyObject* const* args, Py_ssize_t nargs);

// Records that a call of a function from eager code begins, with its inputs, before anything in it runs.
// `runs_as` is the function that TensorFlow runs: this one or a copy of it.
// Returns its execution index, or -1 if nothing is recorded.
int64_t begin_call(PyObject* function_name, PyObject* inputs, int64_t num_outputs, PyObject* runs_as);
// Records that the call returned its outputs, or raised an error (None). Records the outputs if the op callback was not
// called for them, as with a cancellation manager. `on_nonfinite` gets them at the thread's next op.
void end_call(int64_t execution_index, PyObject* outputs, PyObject* error_type);

// Records an eager op that raised an error of the class with this name, before TensorFlow called any op callback.
void record_failed_op(PyObject* op_type, PyObject* inputs, PyObject* error_type);

// Sets the scope of the calling thread's following ops: interned layer and role (0: no layer, and the role `forward`),
// the execution whose gradient is computed, and the stack that made the Keras part (kNoValue: none). It applies to the
// recording of that generation.
struct Scope {
  int64_t generation = -1;
  int32_t layer = 0;
  int32_t role = 0;
  int64_t forward_execution = -1;
  bool is_gradient = false;  // set by enter_gradient(); Python sees it only through current_scope()
  int64_t part_stack = -1;
};
Scope current_scope();
void set_scope(const Scope& scope);

// Enters the gradient function of the execution that passed this attributes object to TensorFlow's gradient tape, in
// the calling thread. Returns false and does nothing if that execution is unknown.
bool enter_gradient(int64_t generation, PyObject* op_type, PyObject* attrs);

// Forgets the execution with these attributes: they now belong to an op of a graph.
void forget_forward(PyObject* attrs);

// Returns the execution that made an eager tensor; kNoValue if the tensor is not one of the most recent.
int64_t execution_of(PyObject* tensor);

// Forgets which tensors were seen, for a new recording.
void reset_eager_state();

}  // namespace tfdbg_arrow
