// The interface between Python and C++.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include <pthread.h>

#include <memory>
#include <system_error>
#include <unordered_map>
#include <unordered_set>

#include "debug_event_scan.h"
#include "executed.h"
#include "compiled_call.h"
#include "eager.h"
#include "graph_rows.h"
#include "health.h"
#include "health_bench.h"
#include "record_op.h"
#include "session.h"
#include "stack.h"
#include "tensorflow_api.h"

namespace nb = nanobind;

namespace tfdbg_arrow {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Owns the session while Python drains it. Kernels reach it after publish_session().
class Recording {
 public:
  Recording(const std::string& spool_path, const std::string& value_path, uint64_t capacity, int mode,
            uint64_t covered_dtypes, int64_t generation, bool waits)
      : session_(std::make_unique<Session>(spool_path, value_path, capacity, static_cast<Mode>(mode),
                                           covered_dtypes, generation, waits)) {
    if (!has_session()) forget_stacks();
  }

  ~Recording() {
    if (published_) stop();
    if (has_journal_) strings().set_journal(-1);
  }

  // Writes the names that records refer to into a file. The caller must keep the file open as long as this object
  // exists. Returns false if a name could not be written.
  bool set_journal(int fd) {
    has_journal_ = fd >= 0;
    return strings().set_journal(fd);
  }

  void start() {
    if (has_session()) throw std::runtime_error("another recording is in force");
    reset_eager_state();
    publish_session(session_.get());
    published_ = true;
  }

  // After this call, no thread of TensorFlow uses the session. Its events can still be drained.
  void stop() {
    if (!published_) return;
    published_ = false;
    {
      nb::gil_scoped_release release;
      retract_session();
    }
    session_->step_components.clear();
    forget_step_inputs();
  }

  // For a forked child. The memory belongs to the parent, so it must not be touched, not even freed.
  void abandon() {
    published_ = false;
    has_journal_ = false;
    forget_session();
    [[maybe_unused]] const Session* parents = session_.release();
  }

  nb::object drain(uint64_t max_records) {
    auto buffer = std::make_unique<std::vector<Record>>(std::min<uint64_t>(max_records, session_->spool.pending()));
    uint64_t count;
    {
      nb::gil_scoped_release release;
      count = session_->spool.drain(buffer->data(), buffer->size());
    }
    auto* owned = buffer.release();
    nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<Record>*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(reinterpret_cast<uint8_t*>(owned->data()),
                                                                 {count * sizeof(Record)}, owner));
  }

  void release(uint64_t upto, int64_t rows_upto) { session_->spool.release(upto, rows_upto); }
  uint64_t num_free() const { return session_->spool.num_free(); }
  uint64_t capacity() const { return session_->spool.capacity(); }

  bool wait(double timeout_s, uint64_t pending) {
    nb::gil_scoped_release release;
    return session_->spool.wait(timeout_s, pending);
  }

  void wake() { session_->spool.signal_urgent(); }

  nb::bytes read_value(int64_t offset, int64_t size) const {
    std::string out(static_cast<size_t>(size), '\0');
    bool whole;
    {
      nb::gil_scoped_release release;
      whole = session_->values.read(offset, size, out.data());
    }
    if (!whole) throw std::runtime_error("the value spool ends before byte " + std::to_string(offset + size));
    return nb::bytes(out.data(), out.size());
  }

  void release_values(int64_t upto) {
    nb::gil_scoped_release release;
    session_->spool.note_released_values(upto);  // before the bytes are gone
    session_->values.release(upto);
  }

  // Appends one complete record that Python measured, with the records that follow it. Returns false if there was no room.
  bool append(const Bytes& records) {
    if (records.size() == 0 || records.size() % sizeof(Record) != 0) {
      throw nb::value_error("expected whole records of 256 bytes");
    }
    uint64_t count = records.size() / sizeof(Record);
    Spool& spool = session_->spool;
    uint64_t sequence;
    nb::gil_scoped_release release;
    while (!spool.try_reserve(count, &sequence)) {
      if (!spool.wait_for_room(count)) {
        spool.count_dropped(count);
        set_last_event_index(kNoValue);
        return false;
      }
    }
    const auto* source = reinterpret_cast<const Record*>(records.data());
    for (uint64_t i = count; i-- > 0;) {  // the first record last, so that readers never find it without its followers
      spool.fill(sequence + i, source[i]);
      if ((source[i].flags & kBad) != 0) spool.signal_urgent();
    }
    set_last_event_index(static_cast<int64_t>(sequence));
    return true;
  }

  int64_t append_value(const Bytes& value) {
    nb::gil_scoped_release release;
    return session_->values.append(value.data(), static_cast<int64_t>(value.size()));
  }

  int64_t next_execution_index() { return session_->next_execution_index.fetch_add(1, std::memory_order_relaxed); }

  // Sets the reaction (OnNonFinite) to a bad tensor that is not masked. Call it before start(). The error's text ends
  // with the run ID.
  void set_on_nonfinite(int reaction, const std::string& run_id) {
    session_->on_nonfinite = static_cast<OnNonFinite>(reaction);
    session_->run_id = run_id;
  }
  // Sets whether the inputs of ops that make a bad value are kept. Call it before start().
  //
  // Args:
  //   element_ops: the types of the ops that take elements of data sets.
  void set_keeps_inputs(bool keeps_inputs, const std::vector<std::string>& element_ops) {
    session_->keeps_inputs = keeps_inputs;
    session_->element_ops = {element_ops.begin(), element_ops.end()};
  }
  // Notes that a bad tensor that Python measured came up in a step, under a name of its own.
  void keep_step_inputs(int32_t name) {
    Record bad{};
    bad.kind = kExternalTensor;
    bad.node = name;
    tfdbg_arrow::keep_step_inputs(*session_, bad);
  }
  // Returns how many times the inputs of a step with a bad value were to be kept.
  size_t num_bad_steps() const { return session_->bad_steps.size(); }
  // Returns whether `num_bytes` of an input may be kept, for a bad value after the first `begin` ones.
  bool admit_step_input(size_t begin, int64_t num_bytes) {
    return session_->input_budget.admit_step_input(session_->bad_steps.first_from(begin), num_bytes);
  }
  void set_histograms(bool histograms) { session_->histograms = histograms; }
  // Returns the number of calls in which a large argument was not measured again.
  int64_t num_known_arguments() const { return session_->num_known_arguments.load(std::memory_order_relaxed); }
  // Returns the number of bad values whose inputs were not kept for lack of room.
  int64_t num_unkept_inputs() const { return session_->input_budget.num_refused(); }
  // Sets which bad values of graphs do not stop the program: types of ops that do not compute with their inputs, and
  // outputs as (type of the op, slot). Call it before start().
  void set_stop_rules(const std::vector<std::string>& harmless_users,
                      const std::vector<std::tuple<std::string, int64_t>>& harmless_outputs) {
    session_->stop_rules.harmless_users = {harmless_users.begin(), harmless_users.end()};
    for (const auto& [op_type, slot] : harmless_outputs) session_->stop_rules.harmless_outputs.emplace(op_type, slot);
  }
  std::vector<int64_t> take_nonfinite_notes() { return session_->nonfinite_notes.take(); }

  uint64_t num_dropped() const { return session_->spool.num_dropped(); }
  int64_t num_unkept_values() const { return session_->values.num_failed(); }
  uint64_t num_events() const { return session_->spool.head(); }
  void set_step(int64_t step) { session_->step.store(step, std::memory_order_relaxed); }
  // While paused, nothing that runs is recorded. A new recording starts unpaused.
  void set_paused(bool paused) { g_is_paused.store(paused, std::memory_order_relaxed); }

  // Node name, op name, op type, key of each output or -1, whether the elements are kept.
  using NamedOp = std::tuple<std::string, std::string, std::string, std::vector<int32_t>, bool>;

  // From then on, the optimizer records this graph of the program.
  void add_program_graph(int64_t graph_id, const std::vector<NamedOp>& ops, const std::vector<std::string>& arguments,
                         const std::unordered_map<std::string, int64_t>& calls, bool is_used_by_graph,
                         const std::unordered_map<std::string, bool>& failing_ops,
                         const std::vector<std::string>& elements) {
    const std::unordered_set<std::string> element_nodes(elements.begin(), elements.end());
    ProgramGraph graph;
    graph.is_used_by_graph = is_used_by_graph;
    graph.arguments = arguments;
    graph.calls = calls;
    for (const auto& [node_name, op_name, op_type, keys, keep] : ops) {
      const auto failing = failing_ops.find(node_name);
      const Fails fails = failing == failing_ops.end() ? Fails::kNever : failing->second ? Fails::kOnHost : Fails::kEverywhere;
      graph.ops.emplace(node_name, ProgramOp{op_name, op_type, keys, keep, fails, element_nodes.count(node_name) != 0});
    }
    session_->executed.add(graph_id, std::move(graph));
  }

  void set_records_others(bool records_others) { session_->executed.set_records_others(records_others); }

  // From then on, tensors on devices of these types are summarized on their device, by graphs for some dtypes.
  // `graphs`: the number of classes and the serialized GraphDef of each dtype. `small_dtypes`: the dtypes whose small
  // tensors are copied to the host with all elements, each with the size of an element in bytes.
  void set_summary_graphs(const std::vector<std::string>& device_types,
                          const std::unordered_map<int, std::tuple<int64_t, nb::bytes>>& graphs,
                          const std::unordered_map<int, int64_t>& small_dtypes) {
    for (const std::string& device_type : device_types) session_->summaries.add_device_type(device_type);
    for (const auto& [dtype, how] : graphs) {
      const auto& [num_classes, graph] = how;
      session_->summaries.set(dtype, num_classes, {graph.c_str(), graph.size()});
    }
    for (const auto& [dtype, element_bytes] : small_dtypes) session_->summaries.set_small(dtype, element_bytes);
  }

  void set_same_elements(const std::vector<std::string>& same_tensor, const std::vector<std::string>& reshaped) {
    session_->summaries.set_same_elements({same_tensor.begin(), same_tensor.end()}, {reshaped.begin(), reshaped.end()});
  }

  void add_small_tensors(const std::vector<int32_t>& keys) { session_->summaries.add_small(keys); }

  void add_shapes(const std::unordered_map<int32_t, std::vector<int64_t>>& shapes) {
    session_->summaries.add_shapes(shapes);
  }

  void set_counting_on_devices(bool is_allowed) { session_->summaries.allow(is_allowed); }

  // Returns the graphs that TensorFlow optimized since the last call. Each graph has its number and its nodes. A node
  // is (name, op type, device, graph ID, op name, path of calls or None, inputs as (node, slot, whether the input is a
  // control edge), dtype numbers of the outputs or None, index of the graph's argument or result for which the node
  // stands, or None).
  nb::list take_executed_graphs() {
    nb::list graphs;
    for (const auto& [number, nodes] : session_->executed.take()) {
      nb::list rows;
      for (const ExecutedNode& node : nodes) {
        nb::list inputs;
        for (const ExecutedInput& input : node.inputs) {
          inputs.append(nb::make_tuple(input.node, input.slot, input.is_control));
        }
        nb::object path = node.has_path ? nb::object(nb::str(node.path.data(), node.path.size())) : nb::none();
        nb::object types = node.has_output_types ? nb::cast(node.output_types) : nb::none();
        nb::object index = node.interface_index >= 0 ? nb::cast(node.interface_index) : nb::none();
        rows.append(nb::make_tuple(node.name, node.op_type, node.device, node.graph_id, node.op_name, path, inputs, types,
                                   index));
      }
      graphs.append(nb::make_tuple(number, rows));
    }
    return graphs;
  }

  // Returns the outputs that were noted since the last call and do not stop the program, as (key, op name, op type,
  // slot, types of users).
  nb::list take_masked_outputs() {
    nb::list outputs;
    for (const MaskedOutput& output : session_->executed.take_masked()) {
      outputs.append(nb::make_tuple(output.key, output.op_name, output.op_type, output.slot, output.users));
    }
    return outputs;
  }

  static void set_trying(bool is_trying) { tfdbg_arrow::ExecutedGraphs::set_trying(is_trying); }

  int64_t take_unreadable_graphs() { return session_->executed.take_unreadable(); }

  // Returns the GraphDef that the optimizer makes from this GraphDef; empty if it changes nothing. Throws RuntimeError.
  nb::bytes with_record_ops(const nb::bytes& graph_def) {
    const std::string edited =
        tfdbg_arrow::with_record_ops(std::string_view(graph_def.c_str(), graph_def.size()), *session_);
    return nb::bytes(edited.data(), edited.size());
  }

 private:
  std::unique_ptr<Session> session_;
  bool published_ = false;
  bool has_journal_ = false;
};

PyMethodDef g_op_callback = {"op_callback", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(op_callback)),
                             METH_FASTCALL | METH_KEYWORDS,
                             "op_callback(op_type, inputs, attrs, outputs, op_name=None, graph=None)\n\n"
                             "TensorFlow's op callback. Records; raises only errors of the program; returns `outputs`."};

PyMethodDef g_execute_op = {"execute_op", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(execute_op)),
                            METH_FASTCALL, "Executes an eager op in place of TFE_Py_FastPathExecute."};

// Returns the counts, and the magnitudes if there are any, in the order of their declaration.
nb::list numbers_of(const Health& health, const Numerics* numerics) {
  double row[kNumCounts + kNumMagnitudes];
  write_row(health, row);
  if (numerics != nullptr) write_row(*numerics, row + kNumCounts);
  nb::list numbers;
  for (int i = 0; i < kNumCounts + (numerics != nullptr ? kNumMagnitudes : 0); ++i) {
    if (kIsCount[i]) {
      numbers.append(static_cast<int64_t>(row[i]));
    } else {
      numbers.append(row[i]);
    }
  }
  return numbers;
}

int64_t num_elements(int dtype, const Bytes& buffer) {
  int64_t size = element_size(dtype);
  if (size == 0) throw nb::value_error("the dtype has no health kernel");
  return static_cast<int64_t>(buffer.size()) / size;
}

template <typename T>
nb::bytes as_bytes(const std::vector<T>& values) {
  return nb::bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// Raises the exception of the program that was raised while the calling thread recorded, if there is such an exception.
void throw_held() {
  if (raise_held()) throw nb::python_error();
}

// Returns the columns in the order of Scan in scan.py, then the first record of each new slot, bytes consumed, status.
nb::tuple scan_debug_events(DebugEventScanner& scanner, const nb::bytes& data, size_t max_records) {
  DebugEventColumns found;
  const auto* begin = reinterpret_cast<const uint8_t*>(data.c_str());
  size_t size = data.size();
  {
    nb::gil_scoped_release release;
    found = scanner.scan(begin, size, max_records);
  }
  return nb::make_tuple(as_bytes(found.wall_time_s), as_bytes(found.slot), as_bytes(found.num_inputs),
                        as_bytes(found.inputs), as_bytes(found.num_outputs), as_bytes(found.outputs),
                        as_bytes(found.num_contents), as_bytes(found.content_start), as_bytes(found.content_length),
                        as_bytes(found.record_start), as_bytes(found.record_length), as_bytes(found.first_of_slot),
                        found.consumed, static_cast<int>(found.status));
}

}  // namespace

NB_MODULE(_core, m) {
  // Objects that kernels and TensorFlow hold live until the process ends; leak warnings would be false.
  nb::set_leak_warnings(false);
  m.doc() = "The native core: health kernels, the event spool, TensorFlow's record ops, the eager path.";

  // A forked child does not take part in the recording. This handler also covers forks by C libraries. After os.fork(),
  // Python calls the same function again.
  strings();
  pthread_atfork([] { lock_known_ops(), strings().lock(); }, [] { strings().unlock(), unlock_known_ops(); }, [] {
    strings().renew_lock();
    renew_lock_of_known_ops();
    forget_session();
  });

  // The constructor makes the Python class, so the object itself is not needed.
  // NOLINTNEXTLINE(bugprone-unused-raii,bugprone-throw-keyword-missing)
  nb::exception<std::system_error>(m, "SpoolError", PyExc_OSError);

  nb::class_<DebugEventScanner>(m, "DebugEventScanner")
      .def(nb::init<>())
      .def("scan", &scan_debug_events, nb::arg("data"), nb::arg("max_records"))
      .def("clear", &DebugEventScanner::clear)
      .def_prop_ro("num_slots", &DebugEventScanner::num_slots);

  nb::class_<Recording>(m, "Recording")
      .def(nb::init<const std::string&, const std::string&, uint64_t, int, uint64_t, int64_t, bool>(),
           nb::arg("spool_path"),
           nb::arg("value_path"), nb::arg("capacity"), nb::arg("mode"), nb::arg("covered_dtypes"),
           nb::arg("generation"), nb::arg("waits") = true)
      .def("start", &Recording::start)
      .def("stop", &Recording::stop)
      .def("abandon", &Recording::abandon)
      .def("set_journal", &Recording::set_journal, nb::arg("fd"))
      .def("drain", &Recording::drain, nb::arg("max_records"))
      .def("release", &Recording::release, nb::arg("upto"), nb::arg("rows_upto"))
      .def("num_free", &Recording::num_free)
      .def("capacity", &Recording::capacity)
      .def("wait", &Recording::wait, nb::arg("timeout_s"), nb::arg("pending"))
      .def("wake", &Recording::wake)
      .def("read_value", &Recording::read_value, nb::arg("offset"), nb::arg("size"))
      .def("release_values", &Recording::release_values, nb::arg("upto"))
      .def("append", &Recording::append, nb::arg("records"))
      .def("append_value", &Recording::append_value, nb::arg("value"))
      .def("next_execution_index", &Recording::next_execution_index)
      .def("num_dropped", &Recording::num_dropped)
      .def("num_unkept_values", &Recording::num_unkept_values)
      .def("set_keeps_inputs", &Recording::set_keeps_inputs, nb::arg("keeps_inputs"),
           nb::arg("element_ops") = std::vector<std::string>())
      .def("keep_step_inputs", &Recording::keep_step_inputs, nb::arg("name"))
      .def("num_bad_steps", &Recording::num_bad_steps)
      .def("admit_step_input", &Recording::admit_step_input, nb::arg("begin"), nb::arg("num_bytes"))
      .def("set_histograms", &Recording::set_histograms)
      .def("num_known_arguments", &Recording::num_known_arguments)
      .def("num_unkept_inputs", &Recording::num_unkept_inputs)
      .def("set_on_nonfinite", &Recording::set_on_nonfinite, nb::arg("reaction"), nb::arg("run_id"))
      .def("set_stop_rules", &Recording::set_stop_rules, nb::arg("harmless_users"), nb::arg("harmless_outputs"))
      .def("take_nonfinite_notes", &Recording::take_nonfinite_notes)
      .def("num_events", &Recording::num_events)
      .def("set_step", &Recording::set_step, nb::arg("step"))
      .def("set_paused", &Recording::set_paused, nb::arg("paused"))
      .def("add_program_graph", &Recording::add_program_graph, nb::arg("graph_id"), nb::arg("ops"),
           nb::arg("arguments"), nb::arg("calls"), nb::arg("is_used_by_graph") = false,
           nb::arg("failing_ops") = std::unordered_map<std::string, bool>(),
           nb::arg("elements") = std::vector<std::string>())
      .def("set_records_others", &Recording::set_records_others, nb::arg("records_others"))
      .def("set_summary_graphs", &Recording::set_summary_graphs, nb::arg("device_types"), nb::arg("graphs"),
           nb::arg("small_dtypes"))
      .def("set_same_elements", &Recording::set_same_elements, nb::arg("same_tensor"), nb::arg("reshaped"))
      .def("add_shapes", &Recording::add_shapes, nb::arg("shapes"))
      .def("add_small_tensors", &Recording::add_small_tensors, nb::arg("keys"))
      .def("set_counting_on_devices", &Recording::set_counting_on_devices, nb::arg("is_allowed"))
      .def("take_executed_graphs", &Recording::take_executed_graphs)
      .def("take_masked_outputs", &Recording::take_masked_outputs)
      .def_static("set_trying", &Recording::set_trying, nb::arg("is_trying"))
      .def("take_unreadable_graphs", &Recording::take_unreadable_graphs)
      .def("with_record_ops", &Recording::with_record_ops, nb::arg("graph_def"));

  nb::class_<Creations>(m, "Creations").def(nb::init<>());
  nb::class_<GraphRows>(m, "GraphRows")
      .def(nb::init<nb::callable, nb::callable, nb::callable>(), nb::arg("state_of"), nb::arg("current_scope"),
           nb::arg("attribute_json"))
      .def("note_created", [](GraphRows& rows, nb::handle op) {
        rows.note_created(op);
        throw_held();
      }, nb::arg("op"))
      .def("describe", &GraphRows::describe, nb::arg("creations"), nb::arg("graph_def"), nb::arg("ops"),
           nb::arg("first_new"), nb::arg("known_inputs"));

  m.def("load_tensorflow", [](const std::string& framework, const std::string& cc, const std::string& python) {
    load_tensorflow_api(framework, cc, python);
    register_record_ops();
  });
  m.def("register_compiled_calls", &register_compiled_calls, nb::arg("cc_path"));
  m.attr("SUMMARIZE_CALL") = kSummarizeCall;
  m.attr("JOIN_CALL") = kJoinCall;
  m.def("set_handlers", [](nb::handle covers_op, nb::handle on_error, nb::handle on_nonfinite) {
    set_eager_handlers(covers_op.ptr(), on_error.ptr(), on_nonfinite.ptr());
  }, nb::arg("covers_op").none(), nb::arg("on_error").none(),
     nb::arg("on_nonfinite").none() = nb::none());
  m.def("set_device_counter", [](nb::handle count_on_device) { set_device_counter(count_on_device.ptr()); },
        nb::arg("count_on_device").none());
  m.def("set_watching", &set_watching, nb::arg("watching"));
  m.def("set_local_task", [](const std::string& task) { set_local_task(task); }, nb::arg("task"));
  m.def("begin_call", [](nb::handle name, nb::handle inputs, int64_t num_outputs, nb::handle runs_as) {
    const int64_t execution_index = begin_call(name.ptr(), inputs.ptr(), num_outputs, runs_as.ptr());
    throw_held();
    return execution_index;
  });
  m.def("end_call", [](int64_t execution_index, nb::handle outputs, nb::handle error_type) {
    end_call(execution_index, outputs.ptr(), error_type.ptr());
    throw_held();
  }, nb::arg("execution_index"), nb::arg("outputs").none(), nb::arg("error_type").none());
  m.def("record_failed_op", [](nb::handle op_type, nb::handle inputs, nb::handle error_type) {
    record_failed_op(op_type.ptr(), inputs.ptr(), error_type.ptr());
    throw_held();
  }, nb::arg("op_type"), nb::arg("inputs"), nb::arg("error_type"));
  nb::class_<Scope>(m, "Scope")
      .def_ro("layer", &Scope::layer)
      .def_ro("forward_execution", &Scope::forward_execution)
      .def_ro("is_gradient", &Scope::is_gradient);
  m.def("current_scope", &current_scope);
  m.def("restore_scope", &set_scope, nb::arg("scope"));
  m.def("set_scope", [](int64_t generation, int32_t layer, int32_t role, int64_t forward_execution, int64_t part_stack) {
    set_scope({generation, layer, role, forward_execution, false, part_stack});
  }, nb::arg("generation"), nb::arg("layer"), nb::arg("role"), nb::arg("forward_execution"), nb::arg("part_stack"));
  m.def("enter_gradient", [](int64_t generation, nb::handle op_type, nb::handle attrs) {
    return enter_gradient(generation, op_type.ptr(), attrs.ptr());
  }, nb::arg("generation"), nb::arg("op_type"), nb::arg("attrs").none());
  m.def("forget_forward", [](nb::handle attrs) { forget_forward(attrs.ptr()); }, nb::arg("attrs").none());
  m.def("execution_of", [](nb::handle tensor) { return execution_of(tensor.ptr()); }, nb::arg("tensor").none());
  m.def("last_event_index", &last_event_index);
  m.def("intern_string", [](const std::string& text) { return strings().intern(text); }, nb::arg("text"));
  m.def("strings", [](size_t start) { return strings().since(start); }, nb::arg("start"));
  m.def("write_unwritten_strings", [] { return strings().write_unwritten(); });
  m.def("set_stack_handler", [](nb::handle on_new_stack) { set_stack_handler(on_new_stack.ptr()); },
        nb::arg("on_new_stack").none());
  m.def("intern_stack", [](int skip) {
    const int64_t id = intern_stack(skip);
    throw_held();
    return id;
  }, nb::arg("skip"));
  m.def("is_in_session", &is_in_session);
  m.attr("op_callback") = nb::steal(PyCFunction_New(&g_op_callback, nullptr));
  // Returns a function that calls `original`, or `with_variables` if an input of the op is a variable of this class.
  m.def("op_executor", [](nb::handle original, nb::handle variable, nb::handle with_variables) {
    const nb::tuple self = nb::make_tuple(original, variable, with_variables);
    return nb::steal(PyCFunction_New(&g_execute_op, self.ptr()));
  }, nb::arg("original"), nb::arg("variable"), nb::arg("with_variables"));

  m.def("count_health", [](int dtype, const Bytes& buffer) {
    Health health;
    count_health(dtype, buffer.data(), num_elements(dtype, buffer), &health);
    return numbers_of(health, nullptr);
  }, nb::arg("dtype"), nb::arg("buffer"));
  m.def("measure", [](int dtype, const Bytes& buffer) {
    Health health;
    Numerics numerics;
    measure(dtype, buffer.data(), num_elements(dtype, buffer), &health, &numerics);
    nb::list numbers = numbers_of(health, &numerics);
    numbers.append(numerics.any_finite);
    numbers.append(numerics.ordered);
    return numbers;
  }, nb::arg("dtype"), nb::arg("buffer"));
  m.def("count_histogram", [](int dtype, const Bytes& buffer) {
    Health health;
    const int64_t n = num_elements(dtype, buffer);
    count_health(dtype, buffer.data(), n, &health);
    auto histogram = std::make_unique<Histogram>();
    if (!count_histogram(dtype, buffer.data(), n, health.num_zero, histogram.get())) {
      throw nb::value_error("the dtype has no histogram");
    }
    nb::list sides[2];
    for (int i = 0; i < histogram->num_buckets; ++i) {
      for (int side = 0; side < 2; ++side) sides[side].append(histogram->counts[i][side]);
    }
    return nb::make_tuple(histogram->exponent, sides[0], sides[1]);
  }, nb::arg("dtype"), nb::arg("buffer"));
  m.def("find_bad", [](int dtype, const Bytes& buffer, int64_t slice_size) {
    BadPlace place;
    find_bad(dtype, buffer.data(), num_elements(dtype, buffer), slice_size, &place);
    return nb::make_tuple(place.first, place.num_slices);
  }, nb::arg("dtype"), nb::arg("buffer"), nb::arg("slice_size"));
  m.def("read_scalar", [](int dtype, const Bytes& buffer) {
    double value = 0;
    if (!read_scalar(dtype, buffer.data(), &value)) throw nb::value_error("the dtype is not a floating-point type");
    return value;
  }, nb::arg("dtype"), nb::arg("buffer"));
  m.def("read_sum", [](const Bytes& buffer) { return read_sum(buffer.data(), static_cast<int64_t>(buffer.size())); },
        nb::arg("buffer"));
  m.def("health_kernel_name", [] { return std::string(health_kernel_name()); });
  m.def("time_kernel", [](const std::string& name, int dtype, const Bytes& buffer, int64_t repeats) {
    nb::gil_scoped_release release;
    return time_kernel(name.c_str(), dtype, buffer.data(), static_cast<int64_t>(buffer.size()), repeats);
  }, nb::arg("name"), nb::arg("dtype"), nb::arg("buffer"), nb::arg("repeats"));
}

}  // namespace tfdbg_arrow
