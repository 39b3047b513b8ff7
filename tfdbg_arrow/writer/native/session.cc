#include "session.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

#include "health.h"
#include "tensorflow_api.h"

namespace tfdbg_arrow {
namespace {

constexpr int kString = 7;  // TF_STRING
constexpr int kWriteAttempts = 2;

// Users of the session are counted in shards, each on its own cache line, because one counter for all kernel threads
// would be a bottleneck.
constexpr int kShards = 64;
struct alignas(64) Shard {
  std::atomic<int64_t> users{0};
};
std::array<Shard, kShards> g_shards;
std::atomic<Session*> g_session{nullptr};
std::atomic<int> g_next_shard{0};

// Null if this process is not connected to other processes. An old value is never freed, because threads of TensorFlow
// may read it at any time.
std::atomic<const std::string*> g_local_task{nullptr};

thread_local int64_t t_last_event_index = kNoValue;
// The histogram that the calling thread counted last; null before its first histogram. A histogram takes 33 kB.
thread_local std::unique_ptr<Histogram> t_histogram;
// Number of guards that the calling thread holds.
thread_local int64_t t_num_guards = 0;

int own_shard() {
  thread_local int shard = g_next_shard.fetch_add(1, std::memory_order_relaxed) % kShards;
  return shard;
}

}  // namespace

void set_local_task(const std::string& task) {
  g_local_task.store(task.empty() ? nullptr : new std::string(task + "/"), std::memory_order_release);
}

bool is_connected() { return g_local_task.load(std::memory_order_acquire) != nullptr; }

bool is_remote(std::string_view device) {
  const std::string* local_task = g_local_task.load(std::memory_order_acquire);
  if (local_task == nullptr) return false;
  auto starts_with = [&](std::string_view start) { return device.substr(0, start.size()) == start; };
  return starts_with("/job:") && !starts_with("/job:localhost/") && !starts_with(*local_task);
}

SessionGuard::SessionGuard() {
  // Sequentially consistent, like the operations in retract_session(): either that function sees this user, or this
  // user sees null.
  g_shards[own_shard()].users.fetch_add(1, std::memory_order_seq_cst);
  ++t_num_guards;
  session_ = g_session.load(std::memory_order_seq_cst);
}

SessionGuard::~SessionGuard() {
  --t_num_guards;
  g_shards[own_shard()].users.fetch_sub(1, std::memory_order_release);
}

bool is_in_session() { return t_num_guards != 0; }

void publish_session(Session* session) {
  g_is_paused.store(false);
  g_session.store(session, std::memory_order_seq_cst);
}

void retract_session() {
  g_session.store(nullptr, std::memory_order_seq_cst);
  for (auto& shard : g_shards) {
    while (shard.users.load(std::memory_order_seq_cst) != 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void forget_session() {
  strings().forget_journal();
  g_session.store(nullptr, std::memory_order_seq_cst);
  for (auto& shard : g_shards) shard.users.store(0, std::memory_order_seq_cst);
  g_shards[own_shard()].users.store(t_num_guards, std::memory_order_seq_cst);  // the child has only this thread
}

bool has_session() { return g_session.load(std::memory_order_relaxed) != nullptr; }

StringTable& strings() {
  static StringTable* table = new StringTable();  // never freed: kernels may outlive static destructors
  return *table;
}

int64_t wall_time_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

ValueSpool::ValueSpool(const std::string& path) {
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "cannot create the value spool " + path);
}

ValueSpool::~ValueSpool() { ::close(fd_); }

int64_t ValueSpool::append(const void* data, int64_t size) {
  int64_t offset = end_.fetch_add(size, std::memory_order_relaxed);
  const char* bytes = static_cast<const char*>(data);
  int num_errors = 0;
  for (int64_t done = 0; done < size;) {
    ssize_t written = ::pwrite(fd_, bytes + done, static_cast<size_t>(size - done), offset + done);
    if (written < 0 && errno == EINTR) continue;
    if (written > 0) {
      done += written;
    } else if (++num_errors == kWriteAttempts) {
      num_failed_.fetch_add(1, std::memory_order_relaxed);
      return kNoValue;
    }
  }
  return offset;
}

bool ValueSpool::read(int64_t offset, int64_t size, void* out) const {
  char* bytes = static_cast<char*>(out);
  for (int64_t done = 0; done < size;) {
    ssize_t got = ::pread(fd_, bytes + done, static_cast<size_t>(size - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::system_error(errno, std::generic_category(), "cannot read the value spool");
    if (got == 0) return false;
    done += got;
  }
  return true;
}

void ValueSpool::release(int64_t offset) {
  if (offset <= released_) return;
#ifdef FALLOC_FL_PUNCH_HOLE
  // If the file system does not support this, the blocks are freed only when the file is removed.
  (void)::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, released_, offset - released_);
#endif
  released_ = offset;
}

bool Session::has_elements(int dtype) { return element_size(dtype) > 0 || dtype == kString; }

namespace {

// Appends the elements of a tensor of strings in the encoding of tfdbg_arrow.schema.dtypes. Returns their offset, or
// kNoValue on failure.
int64_t append_strings(ValueSpool& values, const void* data, int64_t size, int64_t* num_bytes) {
  const auto* elements = static_cast<const TF_TString*>(data);
  const TensorFlowApi& tf = tf_api();
  try {
    std::vector<int64_t> ends(static_cast<size_t>(size));
    int64_t end = 0;
    for (int64_t i = 0; i < size; ++i) {
      ends[static_cast<size_t>(i)] = end += static_cast<int64_t>(tf.TF_StringGetSize(elements + i));
    }
    std::string bytes(reinterpret_cast<const char*>(ends.data()), ends.size() * sizeof(int64_t));
    bytes.reserve(bytes.size() + static_cast<size_t>(end));
    for (int64_t i = 0; i < size; ++i) {
      bytes.append(tf.TF_StringGetDataPointer(elements + i), tf.TF_StringGetSize(elements + i));
    }
    *num_bytes = static_cast<int64_t>(bytes.size());
    return values.append(bytes.data(), *num_bytes);
  } catch (const std::bad_alloc&) {
    return kNoValue;
  }
}

// Returns how many bytes the kept elements of a tensor take.
int64_t num_kept_bytes(int dtype, int64_t size, const void* data) {
  if (dtype != kString) return size * element_size(dtype);
  const auto* elements = static_cast<const TF_TString*>(data);
  int64_t num_bytes = size * static_cast<int64_t>(sizeof(int64_t));
  for (int64_t i = 0; i < size; ++i) num_bytes += static_cast<int64_t>(tf_api().TF_StringGetSize(elements + i));
  return num_bytes;
}

// Returns the size in bytes of one count in the histogram of a tensor with `size` elements.
constexpr int64_t histogram_width(int64_t size) {
  return size < (int64_t{1} << 8) ? 1 : size < (int64_t{1} << 16) ? 2 : size < (int64_t{1} << 32) ? 4 : 8;
}

// Keeps the elements of a tensor whose dtype and size are in its record.
void append_elements(ValueSpool& values, const void* data, Record* record) {
  int64_t num_bytes = record->size * element_size(record->dtype);
  record->value_offset = record->dtype == kString ? append_strings(values, data, record->size, &num_bytes)
                                                  : values.append(data, num_bytes);
  record->tensor.value_bytes = num_bytes;
  if (record->value_offset != kNoValue) record->flags |= kValue;
}

void set_shape(int dtype, int rank, const int64_t* dims, Record* record) {
  record->dtype = static_cast<int16_t>(dtype);
  record->rank = static_cast<uint8_t>(rank);
  record->size = num_elements(rank, dims);
  std::copy_n(dims, std::min(rank, kNumInlineDims), record->tensor.dims);
}

}  // namespace

int64_t num_elements(int rank, const int64_t* dims) {
  int64_t size = 1;
  for (int i = 0; i < rank; ++i) size *= dims[i];
  return size;
}

void set_health(Mode mode, const Health& health, const Numerics* numerics, Record* record) {
  record->flags |= kChecked;
  if (mode != Mode::kCurtHealth) record->flags |= kCounts;
  if (mode != Mode::kCurtHealth && mode != Mode::kConciseHealth) record->flags |= kSigns;
  if ((health.num_neg_inf | health.num_pos_inf | health.num_nan) != 0) record->flags |= kBad;
  record->tensor.health = health;
  if (numerics == nullptr) return;
  record->flags |= kNumerics | (numerics->any_finite ? kAnyFinite : 0) | (numerics->ordered ? kOrdered : 0);
  record->tensor.magnitudes = *numerics;
}

void describe_tensor(Session& session, int dtype, int rank, const int64_t* dims, const void* data, bool keep,
                     Record* record) {
  const int64_t size = num_elements(rank, dims);
  set_shape(dtype, rank, dims, record);
  record->flags |= kCovered | kShape;
  if (session.reads_elements()) {
    Health health;
    Numerics numerics;
    const bool has_magnitudes = session.mode == Mode::kFullNumerics;
    const bool is_measured =
        has_magnitudes ? measure(dtype, data, size, &health, &numerics) : count_health(dtype, data, size, &health);
    if (is_measured) set_health(session.mode, health, has_magnitudes ? &numerics : nullptr, record);
    if (size == 1 && read_scalar(dtype, data, &record->tensor.magnitudes.max)) record->flags |= kScalar;
    if ((record->flags & kBad) != 0) {
      BadPlace place;
      find_bad(dtype, data, size, rank == 0 ? size : size / dims[0], &place);
      if (place.first < size) {  // else another thread changed the elements after they were counted
        record->flags |= kPlaced;
        record->tensor.first_bad_index = place.first;
        record->tensor.num_bad_slices = rank == 0 ? kNoValue : place.num_slices;
      }
    }
    if (is_measured && session.histograms) {
      if (t_histogram == nullptr) t_histogram = std::make_unique<Histogram>();
      if (count_histogram(dtype, data, size, health.num_zero, t_histogram.get())) {
        record->flags |= kHistogramCounted | t_histogram->num_buckets << kBucketsShift;
      }
    }
  }
  if (keep || session.mode == Mode::kFullTensor) append_elements(session.values, data, record);
}

HostTensor host_tensor(TF_Tensor* tensor) {
  const TensorFlowApi& tf = tf_api();
  HostTensor described;
  described.dtype = tf.TF_TensorType(tensor);
  described.rank = std::min(tf.TF_NumDims(tensor), kMaxRank);
  for (int d = 0; d < described.rank; ++d) described.dims[d] = tf.TF_Dim(tensor, d);
  described.data = tf.TF_TensorData(tensor);
  return described;
}

void keep_inputs(Session& session, const Record& bad, int64_t event_index, const std::vector<HostTensor>& inputs,
                 const std::vector<int64_t>& indexes) {
  if (event_index == kNoValue || inputs.empty()) return;
  bool any_inf = false;
  int64_t num_bytes = 0;
  for (const HostTensor& input : inputs) {
    const int64_t size = num_elements(input.rank, input.dims);
    Health health;
    if (count_health(input.dtype, input.data, size, &health)) {
      if (health.num_nan != 0) return;
      any_inf = any_inf || (health.num_neg_inf | health.num_pos_inf) != 0;
    }
    num_bytes += num_kept_bytes(input.dtype, size, input.data);
  }
  if (any_inf && bad.tensor.health.num_nan == 0) return;
  keep_step_inputs(session, bad);
  if (!session.input_budget.admit(bad, num_bytes)) return;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const HostTensor& input = inputs[i];
    Record record;
    std::memset(&record, 0, sizeof(record));
    record.kind = kInputValue;
    record.wall_time_ns = bad.wall_time_ns;
    record.step = bad.step;
    record.slot = static_cast<int32_t>(indexes[i]);
    record.execution_index = event_index;
    record.tensor_id = record.step_id = kNoValue;
    set_shape(input.dtype, input.rank, input.dims, &record);
    append_elements(session.values, input.data, &record);
    record.flags |= kCovered | kShape;
    append_tensor_waiting(session, record, input.rank, input.dims);
  }
}

void keep_step_inputs(Session& session, const Record& bad) {
  if (!session.input_budget.admits_step(bad)) return;
  session.bad_steps.add(bad.node);
  if (bad.kind == kGraphTensor) session.step_components.keep(session, bad.step_id, bad.node);
}

void keep_step_input(Session& session, const Record& where, const HostTensor& input, int32_t bad_node) {
  if (input.rank == 0) return;  // it belongs to no sample
  const int64_t size = num_elements(input.rank, input.dims);
  if (!session.input_budget.admit_step_input(bad_node, num_kept_bytes(input.dtype, size, input.data))) return;
  Record record = where;
  record.kind = kStepInput;
  record.wall_time_ns = wall_time_ns();
  set_shape(input.dtype, input.rank, input.dims, &record);
  append_elements(session.values, input.data, &record);
  record.flags |= kCovered | kShape;
  append_tensor_waiting(session, record, input.rank, input.dims);
}

void StepComponents::clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [node, runs] : by_node_) {
    for (Held& held : runs) release(&held);
  }
  by_node_.clear();
}

void StepComponents::release(Held* held) {
  if (held->tensor != nullptr) tf_api().TF_DeleteTensor(held->tensor);
  held->tensor = nullptr;
}

void StepComponents::hold(Session& session, const Record& where, TF_Tensor* tensor) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::deque<Held>& runs = by_node_[where.node];
  while (!runs.empty() && (runs.front().where.step_id != where.step_id || runs.size() == kMaxRuns)) {
    release(&runs.front());
    runs.pop_front();
  }
  runs.push_back({where, tensor});
  for (const BadStep& bad : bad_steps_) {
    if (bad.step_id == where.step_id) return keep(session, &runs.back(), bad.bad_node);
  }
}

void StepComponents::keep(Session& session, int64_t step_id, int32_t bad_node) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [node, runs] : by_node_) {
    for (Held& held : runs) {
      if (held.where.step_id == step_id) keep(session, &held, bad_node);
    }
  }
  const auto is_same = [=](const BadStep& bad) { return bad.step_id == step_id; };
  if (std::any_of(bad_steps_.begin(), bad_steps_.end(), is_same)) return;
  bad_steps_.push_back({step_id, bad_node});
  if (bad_steps_.size() > kMaxBadSteps) bad_steps_.pop_front();
}

void StepComponents::keep(Session& session, Held* held, int32_t bad_node) {
  if (held->tensor == nullptr) return;  // it was kept before
  keep_step_input(session, held->where, host_tensor(held->tensor), bad_node);
  release(held);
}

namespace {

constexpr int64_t kPayloadBytes = kPayloadLength * static_cast<int64_t>(sizeof(int64_t));

uint64_t num_dims_records(const Record& record, int rank) {
  if (rank <= kNumInlineDims || (record.flags & kShape) == 0) return 0;
  return static_cast<uint64_t>((rank - kNumInlineDims + kPayloadLength - 1) / kPayloadLength);
}

uint64_t num_histogram_records(const Record& record) {
  const int64_t bytes = int64_t{2} * (record.flags >> kBucketsShift) * histogram_width(record.size);
  return static_cast<uint64_t>((bytes + kPayloadBytes - 1) / kPayloadBytes);
}

// Writes counts of `histogram`, from the count with index `first` on, as integers of `width` bytes. The processor must
// be little-endian, as for all fields of a record.
void fill_counts(const Histogram& histogram, int64_t first, int64_t width, Record* record) {
  const int64_t* counts = &histogram.counts[0][0];
  const int64_t end = std::min(first + kPayloadBytes / width, 2 * int64_t{histogram.num_buckets});
  char* out = reinterpret_cast<char*>(record->payload);
  for (int64_t i = first; i < end; ++i, out += width) std::memcpy(out, &counts[i], static_cast<size_t>(width));
}

}  // namespace

uint64_t num_records(const Record& record, int rank) {
  return 1 + num_dims_records(record, rank) + num_histogram_records(record);
}

void append_tensor_waiting(Session& session, const Record& record, int rank, const int64_t* dims) {
  uint64_t count = num_records(record, rank);
  while (!append_tensor(session, record, rank, dims)) {
    if (!session.spool.wait_for_room(count)) {
      session.spool.count_dropped(count);
      return;
    }
  }
}

int64_t last_event_index() { return t_last_event_index; }
void set_last_event_index(int64_t event_index) { t_last_event_index = event_index; }

bool append_tensor(Session& session, const Record& record, int rank, const int64_t* dims) {
  const uint64_t num_dims = num_dims_records(record, rank);
  const uint64_t num_histogram = num_histogram_records(record);
  Spool& spool = session.spool;
  uint64_t sequence;
  t_last_event_index = kNoValue;
  if (!spool.try_reserve(1 + num_dims + num_histogram, &sequence)) return false;
  t_last_event_index = static_cast<int64_t>(sequence);
  for (uint64_t i = 0; i < num_dims; ++i) {
    Record* more = spool.slot(sequence + 1 + i);
    int first = kNumInlineDims + static_cast<int>(i) * kPayloadLength;
    more->kind = kDims;
    more->flags = 0;
    std::copy_n(dims + first, std::min(rank - first, kPayloadLength), more->payload);
    spool.commit(sequence + 1 + i);
  }
  const int64_t width = histogram_width(record.size);
  for (uint64_t i = 0; i < num_histogram; ++i) {
    Record* more = spool.slot(sequence + 1 + num_dims + i);
    more->kind = kHistogram;
    more->flags = 0;
    more->slot = t_histogram->exponent;
    fill_counts(*t_histogram, static_cast<int64_t>(i) * (kPayloadBytes / width), width, more);
    spool.commit(sequence + 1 + num_dims + i);
  }
  spool.fill(sequence, record);  // last, so that a reader never finds it without its followers
  if ((record.flags & kBad) != 0) spool.signal_urgent();
  return true;
}

}  // namespace tfdbg_arrow
