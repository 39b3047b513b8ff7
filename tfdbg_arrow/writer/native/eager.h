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
// Sets the callable that counts large tensors outside of host memory. None means that they are copied to the host.
void set_device_counter(PyObject* count_on_device);
// Sets whether `on_nonfinite` is called for every eager op, or only for an op with bad tensors.
void set_watching(bool watching);

// Takes the current exception. An exception of our own code is passed to `on_error`, and the program never sees it. Any
// other exception, such as a KeyboardInterrupt or an exception of the program's signal handler, is held for
// raise_held(); then report_error() returns true.
bool report_error(const char* what);
// Raises the exception that is held for the calling thread; returns false if no exception is held. Every function that
// Python calls and that may call report_error() ends with a call of raise_held().
bool raise_held();

// The op callback: (op_type, inputs, attrs, outputs, op_name=None, graph=None) -> None.
PyObject* op_callback(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* keyword_names);

// Calls a function for an eager op: `self` is (function, class of variables, function for ops that take variables).
PyObject* execute_op(PyObject* self, PyObject* const* args, Py_ssize_t nargs);

// Records the start and the inputs of a call of a function from eager code, before the function runs.
// `runs_as` is the function that TensorFlow runs: the called function or a copy of it.
// Returns the execution index of the call, or -1 if the call is not recorded.
int64_t begin_call(PyObject* function_name, PyObject* inputs, int64_t num_outputs, PyObject* runs_as);
// Records that the call returned its outputs, or that it raised an error (the outputs are None). Records the outputs if
// the op callback was not called for them, as with a cancellation manager. `on_nonfinite` gets these outputs at the
// thread's next op.
void end_call(int64_t execution_index, PyObject* outputs, PyObject* error_type);

// Records an eager op that raised an error of the class with this name, before TensorFlow called any op callback.
void record_failed_op(PyObject* op_type, PyObject* inputs, PyObject* error_type);

// Sets the scope of the calling thread's following ops: the interned layer (0: no layer), the interned role (0: the
// role `forward`), the execution whose gradient is computed, and the stack that made the Keras part (kNoValue: none).
// The scope applies only to the recording of that generation.
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

// Returns the execution that made an eager tensor; kNoValue if the tensor is not among the most recent tensors.
int64_t execution_of(PyObject* tensor);

// Forgets which tensors were seen, for a new recording.
void reset_eager_state();

// Releases the elements of data sets that are held in case a bad value comes up. Call it with the GIL.
void forget_step_inputs();

}  // namespace tfdbg_arrow
