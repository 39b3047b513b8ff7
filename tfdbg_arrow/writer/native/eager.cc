#include "eager.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "device_summaries.h"
#include "record_kernel.h"
#include "session.h"
#include "stack.h"
#include "tensorflow_api.h"

namespace tfdbg_arrow {
namespace {

// A pass over more bytes of elements than this releases the GIL.
constexpr int64_t kElementsUnderGil = 1 << 16;
// A larger tensor on a GPU is counted on the GPU. On an H100, copying a tensor takes 50 us plus 20 us for each MiB;
// counting it on the GPU takes 120 us, most of this time in Python.
constexpr int64_t kMaxCopiedElements = 1 << 20;
// op_callbacks.invoke_op_callbacks, TensorFlow's frame that calls us.
constexpr int kCallbackFrames = 0;

EagerHandlers g_handlers;

// The eager tensors that have been recorded. IDs only grow, and nearly all lookups are for recent IDs. So there is a
// ring of bits for the last kWindow IDs, and a set for the few older ones.
class SeenTensors {
 public:
  static constexpr int64_t kWindow = int64_t{1} << 22;

  // Marks the ID; returns true if the ID was marked before.
  bool test_and_set(int64_t id) {
    if (id < 0) return true;
    if (bits_.empty()) bits_.assign(static_cast<size_t>(kWindow / 64), 0);
    advance(id);
    if (id <= last_ - kWindow) return !old_.insert(id).second;
    uint64_t& word = bits_[static_cast<size_t>((id % kWindow) / 64)];
    uint64_t bit = uint64_t{1} << (id % 64);
    bool seen = (word & bit) != 0;
    word |= bit;
    return seen;
  }

  void clear() {
    bits_.clear();
    old_.clear();
    last_ = -1;
  }

 private:
  // Clears the words that get new IDs when the window moves up to `id`.
  void advance(int64_t id) {
    if (id <= last_) return;
    if (last_ < 0 || id - last_ >= kWindow) {
      std::fill(bits_.begin(), bits_.end(), 0);
    } else {
      for (int64_t word = last_ / 64 + 1; word <= id / 64; ++word) {
        bits_[static_cast<size_t>(word % (kWindow / 64))] = 0;
      }
    }
    last_ = std::max(last_, id | 63);
  }

  std::vector<uint64_t> bits_;
  std::unordered_set<int64_t> old_;
  int64_t last_ = -1;
};

SeenTensors g_seen;

// The facts to record about the tensors of an op type: the handler's result plus one.
enum class Wanted : int8_t { kNotAsked = 0, kNothing = 1, kFacts = 2, kElements = 3 };
std::vector<Wanted> g_wanted;  // by op type id

thread_local Scope t_scope;

struct Forward {
  int64_t execution_index;  // kNoValue: not known
  int32_t layer;
};

// The executions that passed attributes to the gradient tape. TensorFlow gives the same attributes object to the op
// callback and to the gradient function, and the tape keeps the object alive. So the last execution with the address of
// this object is the right execution.
class Forwards {
 public:
  static constexpr size_t kMaxEntries = size_t{1} << 20;

  void add(PyObject* attrs, int32_t op_type, int64_t execution_index, int32_t layer) {
    if (!names_an_op(attrs)) return;
    if (entries_.size() >= kMaxEntries) entries_.clear();
    entries_[attrs] = {op_type, layer, execution_index};
  }

  void forget(PyObject* attrs) { entries_.erase(attrs); }

  Forward find(PyObject* attrs, int32_t op_type) const {
    auto found = names_an_op(attrs) ? entries_.find(attrs) : entries_.end();
    if (found == entries_.end() || found->second.op_type != op_type) return {kNoValue, 0};
    return {found->second.execution_index, found->second.layer};
  }

  void clear() { entries_.clear(); }

 private:
  struct Entry {
    int32_t op_type;
    int32_t layer;
    int64_t execution_index;
  };

  // All ops share one empty tuple.
  static bool names_an_op(PyObject* attrs) { return PyTuple_Check(attrs) && PyTuple_GET_SIZE(attrs) > 0; }

  std::unordered_map<PyObject*, Entry> entries_;
};

Forwards g_forwards;

// The executions that made the most recent tensors, by tensor ID.
struct Producer {
  int64_t tensor_id = kNoValue;
  int64_t execution_index = kNoValue;
};
constexpr int64_t kNumProducers = 4096;
Producer g_producers[kNumProducers];

int32_t forward_role() {
  static const int32_t role = strings().intern("forward");
  return role;
}

const Scope& scope_in(const Session& session) {
  static const Scope nothing;
  return t_scope.generation == session.generation ? t_scope : nothing;
}

struct CallInFlight {
  bool is_run_as(int32_t op_type) const { return op_type == runs_as || op_type == name; }

  int32_t name;
  int32_t runs_as;  // the function that TensorFlow runs: the called function or a copy of it
  int64_t execution_index;
  PyObject* op_type;  // held
  PyObject* inputs = nullptr;  // held; only if the recording keeps the inputs of steps with bad values
  size_t num_bad_steps = 0;    // when the call began
  bool has_outputs = false;
};
thread_local std::vector<CallInFlight> t_calls;

// A bad tensor that the calling thread recorded and that was not yet passed to `on_nonfinite`.
struct BadTensor {
  int64_t tensor_id;
  int64_t slot;  // kNoValue: an external tensor
  int64_t event_index;
};
thread_local std::vector<BadTensor> t_bad;
// An error can end a recording while a thread still keeps its bad tensors. The next recording must ignore them.
int64_t g_handlers_version = 0;
thread_local int64_t t_bad_version = 0;
bool g_is_watching = false;

void forget_stale_bad() {
  if (t_bad_version != g_handlers_version) t_bad.clear();
  t_bad_version = g_handlers_version;
}

// Calls `on_nonfinite` for an op; returns false if `on_nonfinite` raised an exception. The call may end the recording,
// so do not hold a session.
bool tell_nonfinite(PyObject* op_type, PyObject* inputs) {
  if (g_handlers.on_nonfinite == nullptr) {
    t_bad.clear();
    return true;
  }
  forget_stale_bad();
  if (t_bad.empty() && !g_is_watching) return true;
  std::vector<BadTensor> bad = std::move(t_bad);
  t_bad.clear();
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(bad.size()));
  for (size_t i = 0; list != nullptr && i < bad.size(); ++i) {
    PyObject* item = Py_BuildValue("(LLL)", static_cast<long long>(bad[i].tensor_id),
                                   static_cast<long long>(bad[i].slot), static_cast<long long>(bad[i].event_index));
    if (item == nullptr) Py_CLEAR(list);
    if (item != nullptr) PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), item);
  }
  if (list == nullptr) return false;
  PyObject* handler = Py_NewRef(g_handlers.on_nonfinite);
  PyObject* result = PyObject_CallFunctionObjArgs(handler, op_type, inputs, list, nullptr);
  Py_DECREF(handler);
  Py_DECREF(list);
  Py_XDECREF(result);
  return result != nullptr;
}

// An exception of the program that was raised while this thread recorded, such as a KeyboardInterrupt. It is held until
// the record is complete. This struct owns its references.
struct HeldError {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
};
thread_local HeldError t_held;

Wanted wanted_of(int32_t name, PyObject* op_type) {
  if (g_handlers.covers_op == nullptr) return Wanted::kFacts;
  const auto place = static_cast<size_t>(name);
  if (place >= g_wanted.size()) g_wanted.resize(place + 64, Wanted::kNotAsked);
  if (g_wanted[place] == Wanted::kNotAsked) {
    PyObject* answer = PyObject_CallOneArg(g_handlers.covers_op, op_type);
    long level = answer == nullptr ? -1 : PyLong_AsLong(answer);
    Py_XDECREF(answer);
    if (level < 0 || level > 2) {
      report_error("the filter on op types");
      if (t_held.type != nullptr) return Wanted::kFacts;  // the filter was interrupted: ask again at the next op
      level = 1;
    }
    // The handler ran Python code, so another thread may have resized the vector.
    if (place >= g_wanted.size()) g_wanted.resize(place + 64, Wanted::kNotAsked);
    g_wanted[place] = static_cast<Wanted>(level + 1);
  }
  return g_wanted[place];
}

int64_t tensor_id(PyObject* tensor) {
  return tf_api().EagerTensor_CheckExact(tensor) ? tf_api().PyEagerTensor_ID(tensor) : kNoValue;
}

Record blank_record(Kind kind, const Session& session) {
  Record record;
  std::memset(&record, 0, sizeof(record));
  record.kind = kind;
  record.step_id = kNoValue;
  record.frame_id = kNoValue;
  record.iteration = kNoValue;
  record.execution_index = kNoValue;
  record.tensor_id = kNoValue;
  record.value_offset = kNoValue;
  record.step = session.step.load(std::memory_order_relaxed);
  return record;
}

bool wait_without_gil(Session& session, uint64_t count) {
  bool room;
  Py_BEGIN_ALLOW_THREADS;
  room = session.spool.wait_for_room(count);
  Py_END_ALLOW_THREADS;
  return room;
}

// Appends a tensor's record. Releases the GIL while it waits for room, because the drain needs the GIL.
void append_with_gil(Session& session, const Record& record, int rank, const int64_t* dims) {
  uint64_t count = num_records(record, rank);
  if (append_tensor(session, record, rank, dims)) return;
  if (wait_without_gil(session, count) && append_tensor(session, record, rank, dims)) return;
  session.spool.count_dropped(count);
}

// Keeps the inputs of an eager op that made a bad value.
void keep_eager_inputs(Session& session, PyObject* const* inputs, Py_ssize_t count, const Record& bad,
                       int64_t event_index) {
  const TensorFlowApi& tf = tf_api();
  std::vector<TF_Tensor*> tensors;
  std::vector<HostTensor> kept;
  std::vector<int64_t> indexes;
  TF_Status* status = tf.TF_NewStatus();
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!tf.EagerTensor_CheckExact(inputs[i])) continue;
    TFE_TensorHandle* handle = tf.EagerTensor_Handle(inputs[i]);
    if (!Session::has_elements(tf.TFE_TensorHandleDataType(handle))) continue;
    const char* device = tf.TFE_TensorHandleDeviceName(handle, status);
    if (device == nullptr || is_remote(device)) continue;
    TF_Tensor* tensor = tf.TFE_TensorHandleResolve(handle, status);
    if (tensor == nullptr) continue;
    tensors.push_back(tensor);
    kept.push_back(host_tensor(tensor));
    indexes.push_back(i);
  }
  tf.TF_DeleteStatus(status);
  Py_BEGIN_ALLOW_THREADS;
  keep_inputs(session, bad, event_index, kept, indexes);
  Py_END_ALLOW_THREADS;
  for (TF_Tensor* tensor : tensors) tf.TF_DeleteTensor(tensor);
}

// The tensors whose elements were kept as inputs of a step.
std::unordered_set<int64_t> g_kept_step_inputs;

// Keeps eager tensors that a step took, each of them once.
void keep_eager_step_inputs(Session& session, PyObject* tensors, int32_t bad_node) {
  const TensorFlowApi& tf = tf_api();
  TF_Status* status = tf.TF_NewStatus();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); ++i) {
    PyObject* tensor = PyTuple_GET_ITEM(tensors, i);
    if (!tf.EagerTensor_CheckExact(tensor)) continue;
    TFE_TensorHandle* handle = tf.EagerTensor_Handle(tensor);
    if (!Session::has_elements(tf.TFE_TensorHandleDataType(handle))) continue;
    const char* device = tf.TFE_TensorHandleDeviceName(handle, status);
    if (device == nullptr || is_remote(device)) continue;
    const int64_t id = tf.PyEagerTensor_ID(tensor);
    if (!g_kept_step_inputs.insert(id).second) continue;
    TF_Tensor* resolved = tf.TFE_TensorHandleResolve(handle, status);
    if (resolved == nullptr) continue;
    Record where = blank_record(kStepInput, session);
    where.node = -1;
    where.tensor_id = id;
    const HostTensor input = host_tensor(resolved);
    Py_BEGIN_ALLOW_THREADS;
    keep_step_input(session, where, input, bad_node);
    Py_END_ALLOW_THREADS;
    tf.TF_DeleteTensor(resolved);
  }
  tf.TF_DeleteStatus(status);
}

Shape shape_of(TFE_TensorHandle* handle, TF_Status* status) {
  const TensorFlowApi& tf = tf_api();
  Shape shape;
  shape.rank = std::min(tf.TFE_TensorHandleNumDims(handle, status), kMaxRank);
  for (int d = 0; d < shape.rank; ++d) shape.dims[d] = tf.TFE_TensorHandleDim(handle, d, status);
  shape.is_known = tf.TF_GetCode(status) == 0;
  if (!shape.is_known) shape.rank = 0;
  shape.size = num_elements(shape.rank, shape.dims);
  return shape;
}

// The last tensors from outside that eager ops took, such as slices of the program's arrays. They are kept if a bad value
// comes up.
class OutsideTensors {
 public:
  void hold(PyObject* tensor) {
    const TensorFlowApi& tf = tf_api();
    if (!tf.EagerTensor_CheckExact(tensor)) return;
    TFE_TensorHandle* handle = tf.EagerTensor_Handle(tensor);
    if (!Session::has_elements(tf.TFE_TensorHandleDataType(handle))) return;
    TF_Status* status = tf.TF_NewStatus();
    const Shape shape = shape_of(handle, status);
    tf.TF_DeleteStatus(status);
    const int64_t size = shape.size;
    if (!shape.is_known || shape.rank == 0 || shape.dims[0] < 2 || size > kMaxElements) return;  // it has no samples
    tensors_.push_back({Py_NewRef(tensor), size});
    num_elements_ += size;
    while (num_elements_ > kMaxElements || tensors_.size() > kMaxTensors) {
      num_elements_ -= tensors_.front().size;
      PyObject* first = tensors_.front().tensor;
      tensors_.pop_front();
      Py_DECREF(first);  // last, because it can run code of the program
    }
  }

  // Keeps the tensors, the newest first.
  void keep(Session& session, int32_t bad_node) {
    std::vector<PyObject*> newest;  // another thread can change the tensors while the GIL is released
    for (auto last = tensors_.rbegin(); last != tensors_.rend(); ++last) newest.push_back(Py_NewRef(last->tensor));
    PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(newest.size()));
    if (tuple == nullptr) {
      PyErr_Clear();
      for (PyObject* tensor : newest) Py_DECREF(tensor);
      return;
    }
    for (size_t i = 0; i < newest.size(); ++i) PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), newest[i]);
    keep_eager_step_inputs(session, tuple, bad_node);
    Py_DECREF(tuple);
  }

  void clear() {
    num_elements_ = 0;
    for (const Held& outside : std::exchange(tensors_, {})) Py_DECREF(outside.tensor);
  }

 private:
  struct Held {
    PyObject* tensor;
    int64_t size;
  };
  static constexpr size_t kMaxTensors = 64;
  static constexpr int64_t kMaxElements = int64_t{8} << 20;

  std::deque<Held> tensors_;
  int64_t num_elements_ = 0;
};

OutsideTensors g_outside;

// The outputs of the last ops that took elements of data sets eagerly, by iterator. They are kept if a bad value comes
// up before the next element is taken.
class EagerElements {
 public:
  void hold(PyObject* iterator, PyObject* const* outputs, Py_ssize_t count) {
    const int64_t id = tf_api().EagerTensor_CheckExact(iterator) ? tf_api().PyEagerTensor_ID(iterator) : kNoValue;
    PyObject* held = PyTuple_New(count);
    if (held == nullptr) return PyErr_Clear();
    for (Py_ssize_t i = 0; i < count; ++i) PyTuple_SET_ITEM(held, i, Py_NewRef(outputs[i]));
    if (by_iterator_.size() >= kMaxIterators && by_iterator_.count(id) == 0) clear();
    PyObject*& last = by_iterator_[id];
    std::swap(last, held);
    Py_XDECREF(held);
  }

  void keep(Session& session, int32_t bad_node) {
    std::vector<PyObject*> elements;  // another thread can change the map while the GIL is released
    for (const auto& [iterator, outputs] : by_iterator_) elements.push_back(Py_NewRef(outputs));
    for (PyObject* outputs : elements) {
      keep_eager_step_inputs(session, outputs, bad_node);
      Py_DECREF(outputs);
    }
  }

  void clear() {
    for (const auto& [iterator, outputs] : std::exchange(by_iterator_, {})) Py_DECREF(outputs);
  }

 private:
  static constexpr size_t kMaxIterators = 16;

  std::unordered_map<int64_t, PyObject*> by_iterator_;
};

EagerElements g_elements;

// Keeps what eager code took from outside before a bad value.
void keep_held(Session& session, int32_t bad_node) {
  g_elements.keep(session, bad_node);
  g_outside.keep(session, bad_node);
}

bool takes_element(const Session& session, PyObject* op_type) {
  const char* text = PyUnicode_Check(op_type) ? PyUnicode_AsUTF8(op_type) : PyBytes_Check(op_type) ? PyBytes_AS_STRING(op_type) : nullptr;
  if (text == nullptr) PyErr_Clear();
  return text != nullptr && session.element_ops.count(text) != 0;
}

// Keeps the inputs of the step in which an eager tensor is bad.
void keep_eager_step(Session& session, const Record& bad) {
  const size_t begin = session.bad_steps.size();
  keep_step_inputs(session, bad);
  const int32_t bad_node = session.bad_steps.first_from(begin);
  if (bad_node != BadSteps::kNoNode) keep_held(session, bad_node);
}

bool is_counted_on_device(const Session& session, const char* device, int dtype, const Shape& shape, bool keep) {
  if (g_handlers.count_on_device == nullptr || shape.size <= kMaxCopiedElements) return false;
  if (!session.only_counts(keep) || session.mode == Mode::kFullNumerics || session.histograms) return false;
  const SummaryGraph* graph = session.summaries.serve(device) ? session.summaries.find(dtype) : nullptr;
  return graph != nullptr && graph->num_classes > 0;
}

// Counts the elements of a tensor with TensorFlow's ops. Returns false if they could not be counted.
bool count_on_device(Session& session, PyObject* tensor, int dtype, const Shape& shape, Record* record) {
  PyObject* counted = PyObject_CallOneArg(g_handlers.count_on_device, tensor);
  const int64_t num_classes = session.summaries.find(dtype)->num_classes;
  const bool is_counted = counted != nullptr && PyBytes_Check(counted) &&
                          PyBytes_GET_SIZE(counted) == num_classes * static_cast<int64_t>(sizeof(int32_t));
  if (is_counted) {
    std::vector<int32_t> classes(static_cast<size_t>(num_classes));
    std::memcpy(classes.data(), PyBytes_AS_STRING(counted), static_cast<size_t>(PyBytes_GET_SIZE(counted)));
    double row[kNumSummaryColumns] = {};
    count_kinds(classes.data(), num_classes, row + kColumnHealth);
    fill_from_summary(session, dtype, shape, row, record);
  }
  if (counted == nullptr) report_error("counting an eager tensor on its device");
  Py_XDECREF(counted);
  return is_counted;
}

// Records one eager tensor, with its facts if they are wanted. Returns the appended record; its kind is 0 if no record
// was appended.
Record record_tensor(Session& session, PyObject* tensor, Record record, Wanted wanted) {
  const bool keep = wanted == Wanted::kElements;
  const TensorFlowApi& tf = tf_api();
  TFE_TensorHandle* handle = tf.EagerTensor_Handle(tensor);
  int dtype = tf.TFE_TensorHandleDataType(handle);
  record.dtype = static_cast<int16_t>(dtype);
  record.tensor_id = tf.PyEagerTensor_ID(tensor);
  Shape shape;
  if (wanted != Wanted::kNothing && session.covers(dtype, keep)) {
    TF_Status* status = tf.TF_NewStatus();
    const char* device = tf.TFE_TensorHandleDeviceName(handle, status);
    if (tf.TF_GetCode(status) == 0 && device != nullptr) record.device = strings().intern(device);
    if (device != nullptr && !is_remote(device)) shape = shape_of(handle, status);
    if (shape.is_known && !(is_counted_on_device(session, device, dtype, shape, keep) &&
                            count_on_device(session, tensor, dtype, shape, &record))) {
      const bool needs_elements = keep || session.reads_elements();
      TF_Tensor* resolved = needs_elements ? tf.TFE_TensorHandleResolve(handle, status) : nullptr;
      if (resolved != nullptr || !needs_elements) {
        const void* data = resolved == nullptr ? nullptr : tf.TF_TensorData(resolved);
        PyThreadState* saved = needs_elements && shape.size > kElementsUnderGil ? PyEval_SaveThread() : nullptr;
        describe_tensor(session, dtype, shape.rank, shape.dims, data, keep, &record);
        if (saved != nullptr) PyEval_RestoreThread(saved);
      }
      if (resolved != nullptr) tf.TF_DeleteTensor(resolved);
    }
    tf.TF_DeleteStatus(status);
  }
  if (record.kind == kExternalTensor && (record.flags & kCovered) == 0) return {};
  record.wall_time_ns = wall_time_ns();
  append_with_gil(session, record, shape.rank, shape.dims);
  if ((record.flags & kBad) != 0 && session.on_nonfinite != OnNonFinite::kRecord) {
    forget_stale_bad();
    t_bad.push_back({record.tensor_id, record.kind == kExternalTensor ? kNoValue : record.slot, last_event_index()});
  }
  return record;
}

// Records the inputs that no recorded op made. Each tensor is recorded only once.
// `is_op`: whether an op takes them, and not a call, which keeps its inputs itself.
void record_external(Session& session, PyObject* const* inputs, Py_ssize_t count, int64_t execution_index, bool is_op) {
  for (Py_ssize_t i = 0; i < count; ++i) {
    int64_t id = tensor_id(inputs[i]);
    if (id == kNoValue || g_seen.test_and_set(id)) continue;
    if (is_op && session.keeps_inputs) g_outside.hold(inputs[i]);
    Record record = blank_record(kExternalTensor, session);
    record.execution_index = execution_index;
    record = record_tensor(session, inputs[i], record, Wanted::kFacts);
    if (is_op && session.keeps_inputs && (record.flags & kBad) != 0) keep_eager_step(session, record);
  }
}

void record_execution(Session& session, int32_t name, PyObject* const* inputs, Py_ssize_t count, int64_t num_outputs,
                      int64_t execution_index, int skip_frames) {
  Record record = blank_record(kExecution, session);
  record.node = name;
  record.num_outputs = static_cast<int32_t>(num_outputs);
  record.num_inputs = count;
  record.execution_index = execution_index;
  record.stack = intern_stack(skip_frames);
  record.thread = static_cast<int64_t>(PyThread_get_thread_ident());
  const Scope& scope = scope_in(session);
  record.forward_execution = scope.forward_execution;
  record.part_stack = scope.part_stack;
  record.layer = scope.layer;
  record.role = scope.role != 0 ? scope.role : forward_role();
  record.wall_time_ns = wall_time_ns();
  for (Py_ssize_t i = 0; i < std::min<Py_ssize_t>(count, kPayloadLength); ++i) record.payload[i] = tensor_id(inputs[i]);
  uint64_t more = count > kPayloadLength ? static_cast<uint64_t>((count - 1) / kPayloadLength) : 0;
  Spool& spool = session.spool;
  uint64_t sequence;
  while (!spool.try_reserve(1 + more, &sequence)) {
    if (!wait_without_gil(session, 1 + more)) {
      spool.count_dropped(1 + more);
      return;
    }
  }
  for (uint64_t k = more; k > 0; --k) {
    Record next = record;
    next.kind = kInputs;
    auto first = static_cast<Py_ssize_t>(k) * kPayloadLength;
    next.slot = static_cast<int32_t>(first);
    for (Py_ssize_t i = first; i < std::min(count, first + kPayloadLength); ++i) {
      next.payload[i - first] = tensor_id(inputs[i]);
    }
    spool.fill(sequence + k, next);
  }
  spool.fill(sequence, record);  // last, so that a reader never finds it without its followers
}

// Args:
//   inputs: The inputs of an op, to keep them if an output is bad; empty for a call of a function.
void record_outputs(Session& session, int32_t name, PyObject* op_type, PyObject* const* inputs, Py_ssize_t num_inputs,
                    PyObject* const* outputs, Py_ssize_t count, int64_t execution_index) {
  const Wanted wanted = wanted_of(name, op_type);
  const bool is_element = session.keeps_inputs && num_inputs > 0 && takes_element(session, op_type);
  if (is_element) g_elements.hold(inputs[0], outputs, count);
  for (Py_ssize_t slot = 0; slot < count; ++slot) {
    if (!tf_api().EagerTensor_CheckExact(outputs[slot])) continue;
    const int64_t id = tf_api().PyEagerTensor_ID(outputs[slot]);
    g_seen.test_and_set(id);
    if (id >= 0) g_producers[id % kNumProducers] = {id, execution_index};
    Record record = blank_record(kExecutionTensor, session);
    record.node = name;
    record.slot = static_cast<int32_t>(slot);
    record.execution_index = execution_index;
    record = record_tensor(session, outputs[slot], record, wanted);
    if (!session.keeps_inputs || (record.flags & kBad) == 0 || num_inputs == 0) continue;
    const size_t num_bad_steps = session.bad_steps.size();
    keep_eager_inputs(session, inputs, num_inputs, record, last_event_index());
    const int32_t bad_node = session.bad_steps.first_from(num_bad_steps);
    if (bad_node != BadSteps::kNoNode) keep_held(session, bad_node);
    else if (is_element) keep_eager_step(session, record);
  }
}

// Holds references to the items of a list or tuple, because a list can change while the GIL is released.
class Items {
 public:
  explicit Items(PyObject* sequence)
      : fast_(sequence == nullptr || sequence == Py_None ? nullptr : PySequence_Tuple(sequence)) {
    if (fast_ == nullptr) PyErr_Clear();
  }
  ~Items() { Py_XDECREF(fast_); }
  Items(const Items&) = delete;
  Items& operator=(const Items&) = delete;
  PyObject* const* data() const { return fast_ == nullptr ? nullptr : &PyTuple_GET_ITEM(fast_, 0); }
  Py_ssize_t size() const { return fast_ == nullptr ? 0 : PyTuple_GET_SIZE(fast_); }

 private:
  PyObject* fast_;
};

bool intern_unicode(PyObject* text, int32_t* id) {
  Py_ssize_t length = 0;
  const char* utf8 = PyUnicode_Check(text)  ? PyUnicode_AsUTF8AndSize(text, &length)
                     : PyBytes_Check(text) ? (length = PyBytes_GET_SIZE(text), PyBytes_AS_STRING(text))
                                            : nullptr;
  if (utf8 == nullptr) {
    PyErr_Clear();
    return false;
  }
  *id = strings().intern(std::string_view(utf8, static_cast<size_t>(length)));
  return true;
}

void on_eager_op(Session& session, PyObject* op_type, PyObject* inputs_object, PyObject* attrs,
                 PyObject* outputs_object) {
  int32_t name;
  if (!intern_unicode(op_type, &name)) return;
  Items inputs(inputs_object);
  Items outputs(outputs_object);
  int64_t execution_index;
  const bool is_call = !t_calls.empty() && t_calls.back().is_run_as(name);
  if (is_call) {
    name = t_calls.back().name;
    op_type = t_calls.back().op_type;
    execution_index = t_calls.back().execution_index;  // begin_call() has recorded the call itself
    t_calls.back().has_outputs = true;
  } else {
    execution_index = session.next_execution_index.fetch_add(1, std::memory_order_relaxed);
    record_external(session, inputs.data(), inputs.size(), execution_index, true);
    record_execution(session, name, inputs.data(), inputs.size(), outputs.size(), execution_index, kCallbackFrames);
    g_forwards.add(attrs, name, execution_index, scope_in(session).layer);
  }
  record_outputs(session, name, op_type, inputs.data(), is_call ? 0 : inputs.size(), outputs.data(), outputs.size(),
                 execution_index);
}

// Records that an execution raised an error of the class with this name.
void record_error(Session& session, int64_t execution_index, PyObject* error_type) {
  Record record = blank_record(kExecutionError, session);
  if (!intern_unicode(error_type, &record.node)) return;
  record.execution_index = execution_index;
  record.wall_time_ns = wall_time_ns();
  append_with_gil(session, record, 0, nullptr);
}

// Returns the address of an eager tensor in host memory; null if the tensor is in other memory.
const void* address_of(Session& session, PyObject* tensor) {
  const TensorFlowApi& tf = tf_api();
  if (!tf.EagerTensor_CheckExact(tensor)) return nullptr;
  TFE_TensorHandle* handle = tf.EagerTensor_Handle(tensor);
  if (!session.covers(tf.TFE_TensorHandleDataType(handle))) return nullptr;
  TF_Status* status = tf.TF_NewStatus();
  TF_Tensor* resolved = nullptr;
  const char* device = tf.TFE_TensorHandleDeviceName(handle, status);
  if (device != nullptr && is_host(device) && !is_remote(device)) resolved = tf.TFE_TensorHandleResolve(handle, status);
  const void* address = resolved == nullptr ? nullptr : tf.TF_TensorData(resolved);
  if (resolved != nullptr) tf.TF_DeleteTensor(resolved);
  tf.TF_DeleteStatus(status);
  return address;
}

void record_op(PyObject* const* args, Py_ssize_t nargs, PyObject* keyword_names) {
  SessionGuard session;
  if (!session) return;
  PyObject* graph = nargs > 5 ? args[5] : Py_None;
  Py_ssize_t num_keywords = keyword_names == nullptr ? 0 : PyTuple_GET_SIZE(keyword_names);
  for (Py_ssize_t i = 0; i < num_keywords; ++i) {
    PyObject* keyword = PyTuple_GET_ITEM(keyword_names, i);
    if (PyUnicode_CompareWithASCIIString(keyword, "graph") == 0) graph = args[nargs + i];
  }
  if (graph != Py_None) return;  // another hook records the ops of graphs
  if (is_paused()) {
    // The op uses up an index, so that a gap in the recorded indexes shows that something ran.
    session->next_execution_index.fetch_add(1, std::memory_order_relaxed);
    g_forwards.forget(args[2]);
    return;
  }
  on_eager_op(*session, args[0], args[1], args[2], args[3]);
  if (PyErr_Occurred() != nullptr) report_error("recording an op");
}

}  // namespace

void set_eager_handlers(PyObject* covers_op, PyObject* on_error, PyObject* on_nonfinite) {
  auto set = [](PyObject** target, PyObject* value) {
    PyObject* old = *target;
    *target = value == Py_None ? nullptr : Py_NewRef(value);
    Py_XDECREF(old);
  };
  ++g_handlers_version;
  set(&g_handlers.covers_op, covers_op);
  set(&g_handlers.on_error, on_error);
  set(&g_handlers.on_nonfinite, on_nonfinite);
}

void set_device_counter(PyObject* count_on_device) {
  PyObject* old = g_handlers.count_on_device;
  g_handlers.count_on_device = count_on_device == Py_None ? nullptr : Py_NewRef(count_on_device);
  Py_XDECREF(old);
}

void set_watching(bool watching) { g_is_watching = watching; }

bool report_error(const char* what) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (value != nullptr && traceback != nullptr) PyException_SetTraceback(value, traceback);
  const bool is_ours = type == nullptr || PyErr_GivenExceptionMatches(type, PyExc_Exception);
  if (is_ours) {
    PyObject* handler = Py_XNewRef(g_handlers.on_error);
    PyObject* result =
        handler == nullptr ? Py_NewRef(Py_None)
                           : PyObject_CallFunction(handler, "sO", what, value != nullptr ? value : Py_None);
    Py_XDECREF(handler);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    if (result != nullptr) {
      Py_DECREF(result);
      return false;
    }
    PyErr_Fetch(&type, &value, &traceback);  // the handler raises the errors of the program again
  }
  std::swap(type, t_held.type);
  std::swap(value, t_held.value);
  std::swap(traceback, t_held.traceback);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
  return true;
}

bool raise_held() {
  if (t_held.type == nullptr) return false;
  const HeldError held = t_held;
  t_held = {};
  PyErr_Restore(held.type, held.value, held.traceback);
  return true;
}

PyObject* op_callback(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* keyword_names) {
  if (nargs < 4) Py_RETURN_NONE;
  record_op(args, nargs, keyword_names);
  // An op that is not recorded never stops the program, even if its inputs were recorded.
  PyObject* op_type = args[0];
  int32_t name;
  if (!t_calls.empty() && t_calls.back().runs_as != t_calls.back().name && intern_unicode(op_type, &name) &&
      name == t_calls.back().runs_as) {
    op_type = t_calls.back().op_type;
  }
  PyErr_Clear();
  if (raise_held()) return nullptr;
  if (!is_paused() && !tell_nonfinite(op_type, args[1])) return nullptr;
  // TensorFlow passes the result of one callback to the next callback as the op's outputs.
  return Py_NewRef(args[3]);
}

PyObject* execute_op(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  // The arguments are the context, the op type, a name, and then the inputs and attributes.
  constexpr Py_ssize_t kFirstInput = 3;
  auto* variable = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(self, 1));
  bool has_variable = false;
  for (Py_ssize_t i = kFirstInput; i < nargs && !has_variable; ++i) {
    has_variable = PyObject_TypeCheck(args[i], variable);
    if (!PyList_Check(args[i]) && !PyTuple_Check(args[i])) continue;
    for (Py_ssize_t j = 0; j < PySequence_Fast_GET_SIZE(args[i]) && !has_variable; ++j) {
      has_variable = PyObject_TypeCheck(PySequence_Fast_GET_ITEM(args[i], j), variable);
    }
  }
  return PyObject_Vectorcall(PyTuple_GET_ITEM(self, has_variable ? 2 : 0), args, static_cast<size_t>(nargs), nullptr);
}

int64_t begin_call(PyObject* function_name, PyObject* inputs_object, int64_t num_outputs, PyObject* runs_as) {
  if (is_paused()) return kNoValue;  // the callback after the call uses up an index
  SessionGuard session;
  int32_t name, copy;
  if (!session || !intern_unicode(function_name, &name) || !intern_unicode(runs_as, &copy)) return kNoValue;
  Items inputs(inputs_object);
  int64_t execution_index = session->next_execution_index.fetch_add(1, std::memory_order_relaxed);
  CallInFlight call{name, copy, execution_index, Py_NewRef(function_name)};
  if (session->keeps_inputs) {
    call.inputs = PySequence_Tuple(inputs_object);
    call.num_bad_steps = session->bad_steps.size();
    if (call.inputs == nullptr) PyErr_Clear();
  }
  t_calls.push_back(call);
  std::vector<const void*> arguments;
  arguments.reserve(static_cast<size_t>(inputs.size()));
  for (Py_ssize_t i = 0; i < inputs.size(); ++i) arguments.push_back(address_of(*session, inputs.data()[i]));
  session->calls.add(execution_index, std::move(arguments));
  record_external(*session, inputs.data(), inputs.size(), execution_index, false);
  record_execution(*session, name, inputs.data(), inputs.size(), num_outputs, execution_index, 0);
  if (PyErr_Occurred() != nullptr) report_error("recording a call");
  if (t_held.type != nullptr) {  // the caller raises it, so the call never runs, and end_call() is not called
    Py_DECREF(t_calls.back().op_type);
    Py_XDECREF(t_calls.back().inputs);
    t_calls.pop_back();
    session->calls.remove(execution_index);
  }
  return execution_index;
}

void end_call(int64_t execution_index, PyObject* outputs_object, PyObject* error_type) {
  if (execution_index == kNoValue) return;
  SessionGuard session;
  // The innermost call ends first, unless recording started or stopped in between.
  while (!t_calls.empty() && t_calls.back().execution_index >= execution_index) {
    CallInFlight call = t_calls.back();
    t_calls.pop_back();
    if (session && call.execution_index == execution_index && !call.has_outputs) {
      Items outputs(outputs_object);
      record_outputs(*session, call.name, call.op_type, nullptr, 0, outputs.data(), outputs.size(), execution_index);
    }
    if (session && call.inputs != nullptr) {
      const int32_t bad_node = session->bad_steps.first_from(call.num_bad_steps);
      if (bad_node != BadSteps::kNoNode) {
        keep_eager_step_inputs(*session, call.inputs, bad_node);
        g_elements.keep(*session, bad_node);
      }
    }
    Py_DECREF(call.op_type);
    Py_XDECREF(call.inputs);
  }
  if (!session) return;
  session->calls.remove(execution_index);
  if (error_type != Py_None) record_error(*session, execution_index, error_type);
  Record record = blank_record(kExecutionEnd, *session);
  record.execution_index = execution_index;
  record.wall_time_ns = wall_time_ns();
  append_with_gil(*session, record, 0, nullptr);
  if (PyErr_Occurred() != nullptr) report_error("recording the end of a call");
}

Scope current_scope() { return t_scope; }
void set_scope(const Scope& scope) { t_scope = scope; }

bool enter_gradient(int64_t generation, PyObject* op_type, PyObject* attrs) {
  static const int32_t role = strings().intern("gradient");
  int32_t name;
  if (!intern_unicode(op_type, &name)) return false;
  const Forward forward = g_forwards.find(attrs, name);
  if (forward.execution_index == kNoValue) return false;
  t_scope = {generation, forward.layer, role, forward.execution_index, true, kNoValue};
  return true;
}

void forget_forward(PyObject* attrs) { g_forwards.forget(attrs); }

int64_t execution_of(PyObject* tensor) {
  const int64_t id = tensor_id(tensor);
  if (id < 0) return kNoValue;
  const Producer& producer = g_producers[id % kNumProducers];
  return producer.tensor_id == id ? producer.execution_index : kNoValue;
}

void record_failed_op(PyObject* op_type, PyObject* inputs_object, PyObject* error_type) {
  SessionGuard session;
  int32_t name;
  if (!session || !intern_unicode(op_type, &name)) return;
  if (!t_calls.empty() && t_calls.back().is_run_as(name)) return;  // end_call() records it
  int64_t execution_index = session->next_execution_index.fetch_add(1, std::memory_order_relaxed);
  if (is_paused()) return;
  Items inputs(inputs_object);
  record_external(*session, inputs.data(), inputs.size(), execution_index, false);
  record_execution(*session, name, inputs.data(), inputs.size(), 0, execution_index, 0);
  record_error(*session, execution_index, error_type);
  if (PyErr_Occurred() != nullptr) report_error("recording an op that failed");
}

void reset_eager_state() {
  g_seen.clear();
  g_forwards.clear();
  std::fill(std::begin(g_producers), std::end(g_producers), Producer{});
  g_wanted.clear();
  forget_step_inputs();
}

void forget_step_inputs() {
  g_elements.clear();
  g_outside.clear();
  g_kept_step_inputs.clear();
}

}  // namespace tfdbg_arrow
