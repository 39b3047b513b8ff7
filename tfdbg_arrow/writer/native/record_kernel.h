// Code that the kernels of all record ops share.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "session.h"
#include "tensorflow_api.h"

namespace tfdbg_arrow {

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

// A large argument that a function gets in each call, but not from eager code. The main case is the array from which a
// function of tf.data takes its batches. Reading the whole array for each batch can take longer than the training step.
// So a healthy argument is read again only after a pause, which is kPause times as long as the reading took. During the
// pause, the argument is held, so that no other tensor can have its address.
class RepeatedArgument {
 public:
  static constexpr int64_t kMinBytes = int64_t{1} << 20;  // smaller tensors are read in every call

  RepeatedArgument() = default;
  ~RepeatedArgument() { release(); }
  RepeatedArgument(const RepeatedArgument&) = delete;
  RepeatedArgument& operator=(const RepeatedArgument&) = delete;

  // Returns true if this tensor was the last one read, and need not be read again yet.
  bool is_known(const void* data, int64_t num_bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    return held_ != nullptr && data == data_ && num_bytes == num_bytes_ && monotonic_ns() < next_ns_;
  }

  // Notes that input 0 of the kernel was read. The input is held if it had the same memory twice in succession.
  void note_read(TF_OpKernelContext* context, const void* data, int64_t num_bytes, int64_t begin_ns, bool is_bad) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_other_each_time_) return;
    const bool is_same = data == data_ && num_bytes == num_bytes_;
    if (held_ != nullptr && !is_same) is_other_each_time_ = true;
    if (is_bad || !is_same) release();
    data_ = is_bad ? nullptr : data;
    num_bytes_ = num_bytes;
    if (is_bad || is_other_each_time_) return;
    if (is_same && held_ == nullptr) tf_api().TF_GetInput(context, 0, &held_, Status().get());
    const int64_t end_ns = monotonic_ns();
    next_ns_ = end_ns + kPause * (end_ns - begin_ns);
  }

  static int64_t monotonic_ns() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  }

 private:
  static constexpr int64_t kPause = 50;

  void release() {
    if (held_ != nullptr) tf_api().TF_DeleteTensor(held_);
    held_ = nullptr;
  }

  std::mutex mutex_;  // a parallel map calls the function in several threads
  TF_Tensor* held_ = nullptr;
  const void* data_ = nullptr;
  int64_t num_bytes_ = 0;
  int64_t next_ns_ = 0;
  bool is_other_each_time_ = false;  // if true, the input is never held again
};

// The constant data of a kernel. There is one instance per node of an instantiated (inlined) graph.
struct RecordKernel {
  std::vector<int64_t> nodes;   // key of each tensor in the Python registry
  std::vector<int64_t> dtypes;  // only for summaries: the dtypes of the tensors
  // Only RecordDevice, for each tensor: the number of classes, or the size of an element in bytes; the earlier tensor
  // with the same elements, or -1; the shape, as in SummaryNodes; and whether the call site is known.
  std::vector<int64_t> nums_classes, element_bytes, same_as, dims, has_call_sites;
  bool keep = false;            // only RecordThrough: whether the elements are kept
  std::vector<int64_t> decides;  // for each node whether it stops the program if it is bad
  int64_t generation = 0;       // the recording that the kernel and its node keys belong to
  int64_t executed_graph = kNoValue;  // the optimized graph that the kernel belongs to
  int32_t call_site = 0;
  bool has_call_site = false;
  std::atomic<int32_t> device{-1};  // interned when the kernel first runs
  int64_t argument = kNoValue;  // only RecordThrough: the argument index of the tensor in the outermost function
  RepeatedArgument repeated;    // only RecordThrough
  bool is_watch = false;  // only RecordThrough: the tensor is one of `sources`, and gets a row only if it is bad
  std::vector<int64_t> sources;
  bool is_component = false;         // only RecordThrough: the tensor is a component of an element of a data set
  std::vector<int64_t> kept_inputs;  // only RecordThrough: for each input after the first, its index at the recorded op
  std::vector<int32_t> call_sites;  // only RecordRows and RecordDevice: the call site of each tensor
  std::vector<int64_t> argument_indexes;  // only RecordRows: indexes of the arguments that it takes
  // Only RecordRows: the loops in which each tensor is computed, from the outermost loop, as hashes of their names.
  std::vector<std::vector<uint64_t>> loops;
};

// TF_UINT8, TF_INT64
constexpr int kUint8 = 4, kInt64 = 9;

// One status per thread, so that a kernel does not allocate a status for each input.
inline Status& thread_status() {
  thread_local Status status;
  return status;
}

inline bool read_list(TF_OpKernelConstruction* construction, const char* name, std::vector<int64_t>* out, Status* status) {
  int32_t list_size = 0;
  int32_t total_size = 0;
  tf_api().TF_OpKernelConstruction_GetAttrSize(construction, name, &list_size, &total_size, status->get());
  if (!status->ok()) return false;
  out->resize(static_cast<size_t>(std::max(list_size, 0)));
  tf_api().TF_OpKernelConstruction_GetAttrInt64List(construction, name, out->data(), list_size, status->get());
  return status->ok();
}

inline bool read_int(TF_OpKernelConstruction* construction, const char* name, int64_t* out, Status* status) {
  tf_api().TF_OpKernelConstruction_GetAttrInt64(construction, name, out, status->get());
  return status->ok();
}

inline bool read_string(TF_OpKernelConstruction* construction, const char* name, std::string* out, Status* status) {
  int32_t list_size = 0;
  int32_t total_size = 0;
  tf_api().TF_OpKernelConstruction_GetAttrSize(construction, name, &list_size, &total_size, status->get());
  if (!status->ok()) return false;
  out->resize(static_cast<size_t>(std::max(total_size, 0)));
  tf_api().TF_OpKernelConstruction_GetAttrString(construction, name, out->data(), out->size(), status->get());
  return status->ok();
}

inline bool read_bool(TF_OpKernelConstruction* construction, const char* name, bool* out, Status* status) {
  unsigned char value = 0;
  tf_api().TF_OpKernelConstruction_GetAttrBool(construction, name, &value, status->get());
  *out = value != 0;
  return status->ok();
}

// Returns the path of the calls through which TensorFlow inlined a node. TensorFlow puts it before the node's name.
inline std::optional<std::string> call_path(TF_OpKernelConstruction* construction, const std::string& own_name) {
  TF_StringView view = tf_api().TF_OpKernelConstruction_GetName(construction);
  std::string_view full(view.data, view.len);
  size_t at = full.rfind(own_name);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view path = full.substr(0, at);
  while (!path.empty() && path.back() == '/') path.remove_suffix(1);
  return std::string(path);
}

// The bad tensors of one run of a kernel that are not masked.
class Judge {
 public:
  Judge(const RecordKernel& kernel, Session& session) : kernel_(kernel), session_(session) {}

  // Notes a tensor, and the event index of its record.
  void see(size_t i, const Record& record, int64_t event_index) {
    if ((record.flags & kBad) == 0 || session_.on_nonfinite == OnNonFinite::kRecord) return;
    if (i >= kernel_.decides.size() || kernel_.decides[i] == 0) return;
    if (session_.on_nonfinite == OnNonFinite::kNote) session_.nonfinite_notes.add(record.node, event_index);
    if (!is_bad_) event_index_ = event_index;
    is_bad_ = true;
  }

  // Fails the step if the recording must stop the program; returns true if the step failed. The Python side parses the
  // end of the error's text.
  bool decide(TF_OpKernelContext* context) const {
    if (!is_bad_ || session_.on_nonfinite != OnNonFinite::kFail) return false;
    constexpr int kInvalidArgument = 3;  // TF_INVALID_ARGUMENT, like TensorFlow's own CheckNumerics
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

// Returns a record with the fields that all tensors of one run of a kernel share.
inline Record context_record(RecordKernel* kernel, TF_OpKernelContext* context, const Session& session) {
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
  record.executed_graph = kernel->executed_graph;
  record.value_offset = kNoValue;
  record.step = session.step.load(std::memory_order_relaxed);
  return record;
}

// The shape of a tensor.
struct Shape {
  bool is_known = false;
  int rank = 0;
  int64_t dims[kMaxRank] = {};
  int64_t size = 0;
};

// Fills the facts of a tensor into its record, given its shape and its row of a summary. Only the columns after the
// shape are read from the row.
void fill_from_summary(const Session& session, int dtype, const Shape& shape, const double* row, Record* record);

// Kernels of the ops that record rows of summaries, in record_rows.cc.
void* create_record_rows(TF_OpKernelConstruction* construction);
void compute_record_rows(void* opaque, TF_OpKernelContext* context);
void* create_record_device(TF_OpKernelConstruction* construction);
void compute_record_device(void* opaque, TF_OpKernelContext* context);

}  // namespace tfdbg_arrow
