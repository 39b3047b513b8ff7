#include "record_op.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "session.h"
#include "shared_buffers.h"
#include "tensorflow_api.h"

namespace tfdbg_arrow {
namespace {

constexpr int kMaxRank = 254;  // TensorShape::MaxDimensions()

// A large tensor that came as argument twice, at the same address: held, so that nobody can write to its
// buffer (TensorFlow writes in place only where it holds the sole reference), and measured only once.
// tf.data hands the whole data set to its functions again and again.
struct HeldArgument {
  size_t index = 0;  // which argument of the function
  std::mutex mutex;
  const void* data = nullptr;  // last seen
  TF_Tensor* held = nullptr;
  Record measured;
};

// What a kernel knows for life: one instance a node of an instantiated (inlined) graph.
struct RecordKernel {
  std::vector<int64_t> nodes;   // key of each tensor in the Python registry
  std::vector<int64_t> dtypes;  // RecordSummary and RecordCompiled only: the tensors' own dtypes
  std::vector<bool> keeps;      // Record only: whose elements are kept
  std::vector<int64_t> decides;  // for each node whether it stops the program if it is bad
  int64_t generation = 0;       // the recording it belongs to: node keys mean nothing in another
  int32_t call_site = 0;
  bool has_call_site = false;
  std::atomic<int32_t> device{-1};  // interned when it first runs
  std::vector<HeldArgument> arguments;  // one for each tensor where these are arguments, else empty
  int64_t argument = kNoValue;  // RecordThrough only: which argument of the outermost function the tensor is
  bool is_watch = false;  // RecordThrough only: the tensor is one of `sources`, and gets no row unless it is bad
  std::vector<int64_t> sources;
  bool is_call_token = false;  // its one tensor is the execution index of the call that the step belongs to
  std::vector<int32_t> call_sites;  // RecordCompiled only: of each tensor
  std::vector<int64_t> argument_indexes;  // RecordCompiled only: which arguments of the outermost function it is given
  // RecordCompiled only: the loops that each tensor is computed in, from the outermost, by the hash of their names.
  std::vector<std::vector<uint64_t>> loops;
};

// Stands for "the tensor is a call's token" in the attribute `arguments`.
constexpr int64_t kCallToken = -1;
constexpr int kInt64 = 9;  // TF_INT64

// Smaller arguments are measured again sooner than looked up.
constexpr int64_t kMinHeldSize = 1 << 14;

class Status {
 public:
  Status() : status_(tf_api().TF_NewStatus()) {}
  ~Status() { tf_api().TF_DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;
  TF_Status* get() { return status_; }
  bool ok() const { return tf_api().TF_GetCode(status_) == 0; }
  std::string message() const { return tf_api().TF_Message(status_); }

 private:
  TF_Status* status_;
};

// One a thread: a kernel must not allocate one for each input.
Status& thread_status() {
  thread_local Status status;
  return status;
}

bool read_list(TF_OpKernelConstruction* construction, const char* name, std::vector<int64_t>* out, Status* status) {
  int32_t list_size = 0;
  int32_t total_size = 0;
  tf_api().TF_OpKernelConstruction_GetAttrSize(construction, name, &list_size, &total_size, status->get());
  if (!status->ok()) return false;
  out->resize(static_cast<size_t>(std::max(list_size, 0)));
  tf_api().TF_OpKernelConstruction_GetAttrInt64List(construction, name, out->data(), list_size, status->get());
  return status->ok();
}

bool read_int(TF_OpKernelConstruction* construction, const char* name, int64_t* out, Status* status) {
  tf_api().TF_OpKernelConstruction_GetAttrInt64(construction, name, out, status->get());
  return status->ok();
}

bool read_string(TF_OpKernelConstruction* construction, const char* name, std::string* out, Status* status) {
  int32_t list_size = 0;
  int32_t total_size = 0;
  tf_api().TF_OpKernelConstruction_GetAttrSize(construction, name, &list_size, &total_size, status->get());
  if (!status->ok()) return false;
  out->resize(static_cast<size_t>(std::max(total_size, 0)));
  tf_api().TF_OpKernelConstruction_GetAttrString(construction, name, out->data(), out->size(), status->get());
  return status->ok();
}

// Returns the path of the calls through which TensorFlow inlined a node, which it puts before the node's name.
std::optional<std::string> call_path(TF_OpKernelConstruction* construction, const std::string& own_name) {
  TF_StringView view = tf_api().TF_OpKernelConstruction_GetName(construction);
  std::string_view full(view.data, view.len);
  size_t at = full.rfind(own_name);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view path = full.substr(0, at);
  while (!path.empty() && path.back() == '/') path.remove_suffix(1);
  return std::string(path);
}

void find_call_site(TF_OpKernelConstruction* construction, const std::string& own_name, RecordKernel* kernel) {
  const std::optional<std::string> path = call_path(construction, own_name);
  if (!path) return;
  kernel->call_site = strings().intern(*path);
  kernel->has_call_site = true;
}

void* create_kernel(TF_OpKernelConstruction* construction, bool with_dtypes) {
  auto kernel = std::make_unique<RecordKernel>();
  Status status;
  std::string own_name;
  std::vector<int64_t> arguments;
  std::vector<int64_t> keeps;
  if (!read_list(construction, "nodes", &kernel->nodes, &status) ||
      !read_list(construction, "decides", &kernel->decides, &status) ||
      !read_int(construction, "generation", &kernel->generation, &status) ||
      !read_string(construction, "own_name", &own_name, &status) ||
      (with_dtypes && !read_list(construction, "dtypes", &kernel->dtypes, &status)) ||
      (!with_dtypes && (!read_list(construction, "arguments", &arguments, &status) ||
                        !read_list(construction, "keeps", &keeps, &status)))) {
    tf_api().TF_OpKernelConstruction_Failure(construction, status.get());
    return nullptr;
  }
  find_call_site(construction, own_name, kernel.get());
  if (arguments.size() == 1 && arguments[0] == kCallToken) {
    kernel->is_call_token = true;
    return kernel.release();
  }
  kernel->keeps.assign(kernel->nodes.size(), false);
  for (int64_t place : keeps) kernel->keeps.at(static_cast<size_t>(place)) = true;
  // Inside an inlined call an argument is an intermediate tensor, which must not be held.
  if (arguments.size() == kernel->nodes.size() && kernel->has_call_site && kernel->call_site == 0) {
    kernel->arguments = std::vector<HeldArgument>(arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i) kernel->arguments[i].index = static_cast<size_t>(arguments[i]);
  }
  return kernel.release();
}

bool read_bool(TF_OpKernelConstruction* construction, const char* name, bool* out, Status* status) {
  unsigned char value = 0;
  tf_api().TF_OpKernelConstruction_GetAttrBool(construction, name, &value, status->get());
  *out = value != 0;
  return status->ok();
}

// A kernel that the optimizer put behind one output of a node.
void* create_record_through(TF_OpKernelConstruction* construction) {
  auto kernel = std::make_unique<RecordKernel>();
  Status status;
  int64_t node = 0;
  bool keep = false;
  bool may_hold = false;
  bool decides = false;
  std::string call_site;
  if (!read_int(construction, "node", &node, &status) ||
      !read_int(construction, "generation", &kernel->generation, &status) ||
      !read_int(construction, "argument", &kernel->argument, &status) ||
      !read_bool(construction, "keep", &keep, &status) ||
      !read_bool(construction, "may_hold", &may_hold, &status) ||
      !read_bool(construction, "decides", &decides, &status) ||
      !read_bool(construction, "is_watch", &kernel->is_watch, &status) ||
      !read_list(construction, "sources", &kernel->sources, &status) ||
      !read_bool(construction, "has_call_site", &kernel->has_call_site, &status) ||
      !read_string(construction, "call_site", &call_site, &status)) {
    tf_api().TF_OpKernelConstruction_Failure(construction, status.get());
    return nullptr;
  }
  kernel->nodes = {node};
  kernel->keeps = {keep};
  kernel->decides = {decides ? 1 : 0};
  kernel->call_site = strings().intern(call_site);
  if (may_hold && kernel->argument >= 0) {
    kernel->arguments = std::vector<HeldArgument>(1);
    kernel->arguments[0].index = static_cast<size_t>(kernel->argument);
  }
  return kernel.release();
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t start = 0; start <= text.size();) {
    size_t end = std::min(text.find(separator, start), text.size());
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

// Returns what TensorFlow calls Hash64Combine.
// Source: tensorflow/core/lib/hash/hash.h.
uint64_t combined(uint64_t a, uint64_t b) { return a ^ (b + 0x9E3779B97F4A7800u + (a << 10) + (a >> 4)); }

uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001B3u;
  return hash;
}

// A kernel that takes what a compiled function returns about its tensors.
void* create_record_compiled(TF_OpKernelConstruction* construction) {
  auto kernel = std::make_unique<RecordKernel>();
  Status status;
  std::string own_name, texts, loops;
  std::vector<int64_t> sites, loop_of;
  if (!read_list(construction, "nodes", &kernel->nodes, &status) ||
      !read_list(construction, "decides", &kernel->decides, &status) ||
      !read_list(construction, "dtypes", &kernel->dtypes, &status) ||
      !read_list(construction, "argument_indexes", &kernel->argument_indexes, &status) ||
      !read_int(construction, "generation", &kernel->generation, &status) ||
      !read_string(construction, "own_name", &own_name, &status) ||
      !read_string(construction, "call_sites", &texts, &status) || !read_list(construction, "sites", &sites, &status) ||
      !read_string(construction, "loops", &loops, &status) || !read_list(construction, "loop_of", &loop_of, &status)) {
    tf_api().TF_OpKernelConstruction_Failure(construction, status.get());
    return nullptr;
  }
  const std::optional<std::string> path = call_path(construction, own_name);
  kernel->has_call_site = path.has_value();
  auto absolute = [&](const std::string& site) {
    const std::string base = path.value_or("");
    return base.empty() || site.empty() ? base + site : base + "/" + site;
  };
  const std::vector<std::string> site_texts = split(texts, '\n');
  std::vector<std::vector<uint64_t>> chains(1);  // the first stands for no loop
  for (const std::string& chain : split(loops, '\n')) {
    chains.emplace_back();
    for (const std::string& loop : split(chain, '\t')) chains.back().push_back(hash_of(absolute(loop)));
  }
  for (int64_t site : sites) {
    kernel->call_sites.push_back(strings().intern(absolute(site_texts.at(static_cast<size_t>(site)))));
  }
  for (int64_t loop : loop_of) kernel->loops.push_back(chains.at(static_cast<size_t>(loop + 1)));
  return kernel.release();
}

void* create_record(TF_OpKernelConstruction* construction) { return create_kernel(construction, false); }
void* create_record_summary(TF_OpKernelConstruction* construction) { return create_kernel(construction, true); }
void delete_kernel(void* opaque) {
  auto* kernel = static_cast<RecordKernel*>(opaque);
  if (kernel == nullptr) return;
  for (HeldArgument& argument : kernel->arguments) {
    if (argument.held != nullptr) tf_api().TF_DeleteTensor(argument.held);
  }
  delete kernel;
}

// As describe_tensor, but takes the facts of an argument that is known to be what it was.
// Returns whether it keeps the tensor.
bool describe_argument(Session& session, HeldArgument* argument, int dtype, int rank, const int64_t* dims,
                       TF_Tensor* tensor, bool keep, Record* record) {
  const TensorFlowApi& tf = tf_api();
  const void* data = tf.TF_TensorData(tensor);
  const int64_t size = num_elements(rank, dims);
  std::unique_lock<std::mutex> lock(argument->mutex, std::try_to_lock);
  keep = keep || session.mode == Mode::kFullTensor;
  if (size < kMinHeldSize || rank > kNumInlineDims || keep || !lock.owns_lock()) {
    describe_tensor(session, dtype, rank, dims, data, keep, record);
    return false;
  }
  const Record& last = argument->measured;
  if (argument->held != nullptr && argument->data == data && last.dtype == dtype && last.rank == rank &&
      std::equal(dims, dims + rank, last.tensor.dims)) {
    record->dtype = last.dtype;
    record->rank = last.rank;
    record->size = last.size;
    record->flags |= last.flags;
    record->tensor = last.tensor;
    return false;
  }
  if (argument->held != nullptr) tf.TF_DeleteTensor(argument->held);
  argument->held = nullptr;
  describe_tensor(session, dtype, rank, dims, data, keep, record);
  bool came_again = argument->data == data;
  argument->data = data;
  if (!came_again) return false;
  argument->measured = *record;
  argument->held = tensor;
  return true;
}

// Bad tensors of one run of a kernel that nothing masks.
class Judge {
 public:
  Judge(const RecordKernel& kernel, Session& session) : kernel_(kernel), session_(session) {}

  // Tells of a tensor, and under which event index it was recorded.
  void see(size_t i, const Record& record, int64_t event_index) {
    if ((record.flags & kBad) == 0 || session_.on_nonfinite == OnNonFinite::kRecord) return;
    if (i >= kernel_.decides.size() || kernel_.decides[i] == 0) return;
    if (session_.on_nonfinite == OnNonFinite::kNote) session_.nonfinite_notes.add(record.node, event_index);
    if (!is_bad_) event_index_ = event_index;
    is_bad_ = true;
  }

  // Fails the step if the recording is to stop the program; returns whether it did. The Python side looks for the end of
  // the text.
  bool decide(TF_OpKernelContext* context) const {
    if (!is_bad_ || session_.on_nonfinite != OnNonFinite::kFail) return false;
    constexpr int kInvalidArgument = 3;  // TF_INVALID_ARGUMENT, as TensorFlow's own CheckNumerics
    std::string text = "tfdbg_arrow stopped the program: a tensor holds an infinity or a NaN (event " +
                       std::to_string(event_index_) + " of run " + session_.run_id + ")";
    Status status;
    tf_api().TF_SetStatus(status.get(), kInvalidArgument, text.c_str());
    tf_api().TF_OpKernelContext_Failure(context, status.get());
    return true;
  }

 private:
  const RecordKernel& kernel_;
  Session& session_;
  bool is_bad_ = false;
  int64_t event_index_ = kNoValue;
};

// Fills what is common to all tensors that one kernel records in one run.
Record context_record(RecordKernel* kernel, TF_OpKernelContext* context, const Session& session) {
  const TensorFlowApi& tf = tf_api();
  int32_t device = kernel->device.load(std::memory_order_relaxed);
  if (device < 0) {
    TF_StringView name = tf.TF_GetDeviceName(context);
    device = strings().intern(std::string_view(name.data, name.len));
    kernel->device.store(device, std::memory_order_relaxed);
  }
  Record record;
  std::memset(&record, 0, sizeof(record));
  record.kind = kGraphTensor;
  record.flags = kernel->has_call_site ? kContext : 0;
  record.call_site = kernel->call_site;
  record.device = device;
  record.step_id = tf.TF_StepId(context);
  record.frame_id = static_cast<int64_t>(tf.TF_GetFrameId(context));
  record.iteration = tf.TF_GetIterId(context);
  record.execution_index = kNoValue;
  record.tensor_id = kNoValue;
  record.value_offset = kNoValue;
  record.step = session.step.load(std::memory_order_relaxed);
  return record;
}

void compute_record(void* opaque, TF_OpKernelContext* context) {
  if (is_paused()) return;
  SessionGuard session;
  auto* kernel = static_cast<RecordKernel*>(opaque);
  if (!session || kernel == nullptr || kernel->generation != session->generation) return;
  const TensorFlowApi& tf = tf_api();
  Status& status = thread_status();
  const Record common = context_record(kernel, context, *session);
  Judge judge(*kernel, *session);
  SharedBuffers& shared = SharedBuffers::of_thread();
  for (size_t i = 0; i < kernel->nodes.size(); ++i) {
    TF_Tensor* tensor = nullptr;
    tf.TF_GetInput(context, static_cast<int>(i), &tensor, status.get());
    if (!status.ok() || tensor == nullptr) {
      session->spool.count_dropped(1);
      continue;
    }
    int dtype = tf.TF_TensorType(tensor);
    const bool keep = !kernel->is_call_token && kernel->keeps[i];
    if (kernel->is_call_token) {
      // Not covered: tells whose the step is, and becomes no row.
      Record record = common;
      record.node = static_cast<int32_t>(kernel->nodes[i]);
      record.dtype = static_cast<int16_t>(dtype);
      if (dtype == kInt64 && tf.TF_NumDims(tensor) == 0) {
        std::memcpy(&record.execution_index, tf.TF_TensorData(tensor), sizeof(int64_t));
      }
      record.wall_time_ns = wall_time_ns();
      append_tensor_waiting(*session, record, 0, nullptr);
    } else if (session->covers(dtype, keep)) {
      int rank = std::min(tf.TF_NumDims(tensor), kMaxRank);
      int64_t dims[kMaxRank];
      for (int d = 0; d < rank; ++d) dims[d] = tf.TF_Dim(tensor, d);
      const void* data = tf.TF_TensorData(tensor);
      Record record = common;
      record.node = static_cast<int32_t>(kernel->nodes[i]);
      bool is_kept = false;
      const Record* same = shared.find(data, dtype, num_elements(rank, dims));
      HeldArgument* argument = kernel->arguments.empty() ? nullptr : &kernel->arguments[i];
      if (argument != nullptr) record.execution_index = session->calls.find(argument->index, data);
      if (argument == nullptr || same != nullptr) {
        describe_tensor(*session, dtype, rank, dims, data, keep, &record, same);
      } else {
        is_kept = describe_argument(*session, argument, dtype, rank, dims, tensor, keep, &record);
      }
      if (same == nullptr) shared.add(data, record);
      record.wall_time_ns = wall_time_ns();
      append_tensor_waiting(*session, record, rank, dims);
      judge.see(i, record, last_event_index());
      if (is_kept) continue;
    }
    tf.TF_DeleteTensor(tensor);
  }
  judge.decide(context);
}

// What became of a tensor that was to be recorded.
struct Recorded {
  bool is_held = false;   // the kernel holds it from here on; else it is the caller's
  bool is_failed = false;  // the step has failed because of it
};

// Records one tensor.
Recorded record_tensor(RecordKernel* kernel, TF_OpKernelContext* context, TF_Tensor* tensor) {
  if (is_paused()) return {};
  SessionGuard session;
  if (!session || kernel->generation != session->generation) return {};
  const TensorFlowApi& tf = tf_api();
  const int dtype = tf.TF_TensorType(tensor);
  if (!session->covers(dtype, kernel->keeps[0])) return {};
  const int rank = std::min(tf.TF_NumDims(tensor), kMaxRank);
  int64_t dims[kMaxRank];
  for (int d = 0; d < rank; ++d) dims[d] = tf.TF_Dim(tensor, d);
  const void* data = tf.TF_TensorData(tensor);
  Record record = context_record(kernel, context, *session);
  record.node = static_cast<int32_t>(kernel->nodes[0]);
  if (kernel->argument >= 0) {
    record.execution_index = session->calls.find(static_cast<size_t>(kernel->argument), data);
  }
  bool is_held = false;
  if (kernel->arguments.empty()) {
    describe_tensor(*session, dtype, rank, dims, data, kernel->keeps[0], &record);
  } else {
    is_held = describe_argument(*session, &kernel->arguments[0], dtype, rank, dims, tensor, kernel->keeps[0], &record);
  }
  const bool is_bad = (record.flags & kBad) != 0;
  if (kernel->is_watch && !is_bad) return {is_held, false};
  Judge judge(*kernel, *session);
  const int64_t known = kernel->is_watch ? session->bad_events.last_of(kernel->sources, record.step_id) : kNoValue;
  if (known != kNoValue) {
    judge.see(0, record, known);
  } else {
    record.wall_time_ns = wall_time_ns();
    append_tensor_waiting(*session, record, rank, dims);
    if (is_bad && session->on_nonfinite != OnNonFinite::kRecord) session->bad_events.add(record, last_event_index());
    judge.see(0, record, last_event_index());
  }
  return {is_held, judge.decide(context)};
}

void compute_record_through(void* opaque, TF_OpKernelContext* context) {
  const TensorFlowApi& tf = tf_api();
  Status& status = thread_status();
  TF_Tensor* tensor = nullptr;
  tf.TF_GetInput(context, 0, &tensor, status.get());
  if (status.ok() && tensor != nullptr) {
    Recorded recorded;
    if (opaque != nullptr) recorded = record_tensor(static_cast<RecordKernel*>(opaque), context, tensor);
    if (!recorded.is_failed) tf.TF_SetOutput(context, 0, tensor, status.get());
    if (!recorded.is_held) tf.TF_DeleteTensor(tensor);
  }
  if (!status.ok()) tf.TF_OpKernelContext_Failure(context, status.get());
}

void compute_record_constant(void* opaque, TF_OpKernelContext* context) {
  TF_Tensor* tensor = nullptr;
  tf_api().TF_GetInput(context, 0, &tensor, thread_status().get());
  if (tensor == nullptr) return;
  Recorded recorded;
  if (opaque != nullptr) recorded = record_tensor(static_cast<RecordKernel*>(opaque), context, tensor);
  if (!recorded.is_held) tf_api().TF_DeleteTensor(tensor);
}

// Records what a row of a summary says of a tensor, if the recording covers it.
void record_summary(Session& session, const RecordKernel& kernel, size_t i, const double* row, Record* out, Judge* judge) {
  auto count = [&](int column) { return static_cast<int64_t>(row[column]); };
  int dtype = static_cast<int>(kernel.dtypes[i]);
  if (!session.covers(dtype)) return;
  Record& record = *out;
  record.node = static_cast<int32_t>(kernel.nodes[i]);
  record.dtype = static_cast<int16_t>(dtype);
  record.flags |= kCovered;
  int64_t dims[kNumInlineDims] = {};
  int rank = static_cast<int>(row[kColumnRank]);
  record.size = count(kColumnSize);
  if (rank >= 0 && rank <= kNumInlineDims) {
    record.flags |= kShape;
    record.rank = static_cast<uint8_t>(rank);
    for (int d = 0; d < rank; ++d) dims[d] = record.tensor.dims[d] = count(kColumnDim0 + d);
  }
  Mode mode = session.mode;
  if (mode != Mode::kShape && mode != Mode::kNoTensor) {
    TensorFacts& facts = record.tensor;
    record.flags |= kChecked;
    if (mode != Mode::kCurtHealth) record.flags |= kCounts;
    if (mode != Mode::kCurtHealth && mode != Mode::kConciseHealth) record.flags |= kSigns;
    facts.num_neg_inf = count(kColumnNumNegInf);
    facts.num_pos_inf = count(kColumnNumPosInf);
    facts.num_nan = count(kColumnNumNan);
    facts.num_neg_finite = count(kColumnNumNegFinite);
    facts.num_zero = count(kColumnNumZero);
    facts.num_pos_finite = count(kColumnNumPosFinite);
    if ((facts.num_neg_inf | facts.num_pos_inf | facts.num_nan) != 0) record.flags |= kBad;
    if (mode == Mode::kFullNumerics) {
      bool any_finite = row[kColumnNumFinite] > 0;
      bool is_complex = dtype == 8 || dtype == 18;
      record.flags |= kNumerics | (any_finite ? kAnyFinite : 0) | (any_finite && !is_complex ? kOrdered : 0);
      facts.num_subnormal = count(kColumnNumSubnormal);
      facts.min = row[kColumnMin];
      facts.max = row[kColumnMax];
      facts.mean = row[kColumnMean];
      facts.stddev = row[kColumnStddev];
      facts.max_abs = row[kColumnMaxAbs];
    }
  }
  record.wall_time_ns = wall_time_ns();
  append_tensor_waiting(session, record, rank < 0 ? 0 : rank, dims);
  judge->see(i, record, last_event_index());
}

void compute_record_summary(void* opaque, TF_OpKernelContext* context) {
  if (is_paused()) return;
  SessionGuard session;
  auto* kernel = static_cast<RecordKernel*>(opaque);
  if (!session || kernel == nullptr || kernel->generation != session->generation) return;
  const TensorFlowApi& tf = tf_api();
  Status& status = thread_status();
  const Record common = context_record(kernel, context, *session);
  TF_Tensor* tensor = nullptr;
  tf.TF_GetInput(context, 0, &tensor, status.get());
  if (!status.ok() || tensor == nullptr) {
    session->spool.count_dropped(kernel->nodes.size());
    return;
  }
  Judge judge(*kernel, *session);
  const double* row = static_cast<const double*>(tf.TF_TensorData(tensor));
  for (size_t i = 0; i < kernel->nodes.size(); ++i, row += kNumSummaryColumns) {
    Record record = common;
    record_summary(*session, *kernel, i, row, &record, &judge);
  }
  tf.TF_DeleteTensor(tensor);
  judge.decide(context);
}

// Returns the call that has the tensors of a RecordCompiled op as arguments; kNoValue where that is not certain.
int64_t call_with_arguments(const RecordKernel& kernel, TF_OpKernelContext* context, const Session& session) {
  const TensorFlowApi& tf = tf_api();
  int64_t found = kNoValue;
  for (size_t i = 0; i < kernel.argument_indexes.size() && found == kNoValue; ++i) {
    TF_Tensor* tensor = nullptr;
    tf.TF_GetInput(context, static_cast<int>(i) + 1, &tensor, thread_status().get());
    if (tensor == nullptr) continue;
    found = session.calls.find(static_cast<size_t>(kernel.argument_indexes[i]), tf.TF_TensorData(tensor));
    tf.TF_DeleteTensor(tensor);
  }
  return found;
}

void compute_record_compiled(void* opaque, TF_OpKernelContext* context) {
  if (is_paused()) return;
  SessionGuard session;
  auto* kernel = static_cast<RecordKernel*>(opaque);
  if (!session || kernel == nullptr || kernel->generation != session->generation) return;
  const TensorFlowApi& tf = tf_api();
  Status& status = thread_status();
  Record common = context_record(kernel, context, *session);
  common.execution_index = call_with_arguments(*kernel, context, *session);
  TF_Tensor* tensor = nullptr;
  tf.TF_GetInput(context, 0, &tensor, status.get());
  const size_t num_rows = kernel->nodes.size();
  if (!status.ok() || tensor == nullptr ||
      tf.TF_NumDims(tensor) != 2 || tf.TF_Dim(tensor, 0) != static_cast<int64_t>(num_rows) ||
      tf.TF_Dim(tensor, 1) != kNumCompiledColumns) {
    session->spool.count_dropped(num_rows);
    if (tensor != nullptr) tf.TF_DeleteTensor(tensor);
    return;
  }
  Judge judge(*kernel, *session);
  const double* row = static_cast<const double*>(tf.TF_TensorData(tensor));
  for (size_t i = 0; i < num_rows; ++i, row += kNumCompiledColumns) {
    if (row[kColumnRank] == kNotRun) continue;
    Record record = common;
    record.call_site = kernel->call_sites[i];
    // A loop's frame has the id that TensorFlow would give it.
    // Source: tensorflow/core/common_runtime/propagator_state.cc, FindOrCreateChildFrame.
    int column = kColumnIteration + static_cast<int>(kernel->loops[i].size());
    for (uint64_t name : kernel->loops[i]) {
      const uint64_t entry = combined(static_cast<uint64_t>(record.iteration), name);
      record.frame_id = static_cast<int64_t>(combined(static_cast<uint64_t>(record.frame_id), entry));
      record.iteration = static_cast<int64_t>(row[--column]);
    }
    record_summary(*session, *kernel, i, row, &record, &judge);
  }
  tf.TF_DeleteTensor(tensor);
  judge.decide(context);
}

void no_outputs(TF_ShapeInferenceContext*, TF_Status*) {}

void same_shape(TF_ShapeInferenceContext* context, TF_Status* status) {
  const TensorFlowApi& tf = tf_api();
  TF_ShapeHandle* shape = tf.TF_NewShapeHandle();
  tf.TF_ShapeInferenceContextGetInput(context, 0, shape, status);
  if (tf.TF_GetCode(status) == 0) tf.TF_ShapeInferenceContextSetOutput(context, 0, shape, status);
  tf.TF_DeleteShapeHandle(shape);
}

void check(Status& status, const char* what) {
  if (!status.ok()) throw std::runtime_error(std::string("TensorFlow refused ") + what + ": " + status.message());
}

void register_op(const char* name, bool is_stateful, std::initializer_list<const char*> inputs,
                 std::initializer_list<const char*> attrs) {
  const TensorFlowApi& tf = tf_api();
  Status status;
  TF_OpDefinitionBuilder* builder = tf.TF_NewOpDefinitionBuilder(name);
  for (const char* input : inputs) tf.TF_OpDefinitionBuilderAddInput(builder, input);
  for (const char* attr : attrs) tf.TF_OpDefinitionBuilderAddAttr(builder, attr);
  for (const char* attr : {"nodes: list(int)", "decides: list(int)", "generation: int", "own_name: string"}) {
    tf.TF_OpDefinitionBuilderAddAttr(builder, attr);
  }
  // TensorFlow makes the op stateful whatever the argument is.
  if (is_stateful) tf.TF_OpDefinitionBuilderSetIsStateful(builder, true);
  tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, no_outputs);
  tf.TF_RegisterOpDefinition(builder, status.get());
  check(status, "a record op");
}

void register_single_op(std::string_view name, bool hands_on) {
  const TensorFlowApi& tf = tf_api();
  Status status;
  TF_OpDefinitionBuilder* builder = tf.TF_NewOpDefinitionBuilder(std::string(name).c_str());
  tf.TF_OpDefinitionBuilderAddInput(builder, "tensor: T");
  if (hands_on) tf.TF_OpDefinitionBuilderAddOutput(builder, "same: T");
  for (const char* attr : {"T: type", "node: int", "generation: int", "argument: int", "may_hold: bool", "keep: bool",
                           "decides: bool", "is_watch: bool", "sources: list(int)", "has_call_site: bool", "call_site: string"}) {
    tf.TF_OpDefinitionBuilderAddAttr(builder, attr);
  }
  tf.TF_OpDefinitionBuilderSetIsStateful(builder, true);  // else TensorFlow folds it, or merges it with another
  tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, hands_on ? same_shape : no_outputs);
  tf.TF_RegisterOpDefinition(builder, status.get());
  check(status, "a record op");
}

void register_kernel(const char* op, const char* device, const char* host_input,
                     void* (*create)(TF_OpKernelConstruction*), void (*compute)(void*, TF_OpKernelContext*)) {
  const TensorFlowApi& tf = tf_api();
  Status status;
  TF_KernelBuilder* builder = tf.TF_NewKernelBuilder(op, device, create, compute, delete_kernel);
  if (host_input != nullptr) tf.TF_KernelBuilder_HostMemory(builder, host_input);
  std::string name = std::string(op) + device;
  tf.TF_RegisterKernelBuilder(name.c_str(), builder, status.get());
  check(status, "a record kernel");
}

}  // namespace

void register_record_ops() {
  static bool registered = false;
  if (registered) return;
  const TensorFlowApi& tf = tf_api();
  // tf.data runs a pipeline differently if one of its functions is stateful, so it gets stateless record ops.
  for (bool is_stateful : {true, false}) {
    const std::string suffix = is_stateful ? "" : "Stateless";
    const std::string record = "TfdbgArrowRecord" + suffix;
    const std::string summary = "TfdbgArrowRecordSummary" + suffix;
    register_op(record.c_str(), is_stateful,
                {"tensors: T"}, {"T: list(type) >= 1", "arguments: list(int)", "keeps: list(int)"});
    register_op(summary.c_str(), is_stateful, {"summaries: double"}, {"dtypes: list(int)"});
    register_kernel(record.c_str(), "CPU", nullptr, create_record, compute_record);
    register_kernel(summary.c_str(), "CPU", nullptr, create_record_summary, compute_record_summary);
    register_kernel(summary.c_str(), "GPU", "summaries", create_record_summary, compute_record_summary);
  }
  register_op(kRecordCompiledOp.data(), true, {"summaries: double", "arguments: T"},
              {"T: list(type) >= 0", "argument_indexes: list(int)", "dtypes: list(int)", "call_sites: string", "sites: list(int)", "loops: string", "loop_of: list(int)"});
  for (const char* device : {"CPU", "GPU"}) {
    register_kernel(kRecordCompiledOp.data(), device, "summaries", create_record_compiled, compute_record_compiled);
  }
  register_single_op(kRecordThroughOp, true);
  register_single_op(kRecordConstantOp, false);
  register_kernel(kRecordThroughOp.data(), "CPU", nullptr, create_record_through, compute_record_through);
  register_kernel(kRecordConstantOp.data(), "CPU", nullptr, create_record_through, compute_record_constant);
  registered = true;
}

}  // namespace tfdbg_arrow
