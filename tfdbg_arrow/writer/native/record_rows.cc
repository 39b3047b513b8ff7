// Records the tensors whose summaries other nodes computed.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device_summaries.h"
#include "record_kernel.h"
#include "record_op.h"

namespace tfdbg_arrow {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t start = 0; start <= text.size();) {
    size_t end = std::min(text.find(separator, start), text.size());
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

// Returns the result of TensorFlow's Hash64Combine.
// Source: tensorflow/core/lib/hash/hash.h.
uint64_t combined(uint64_t a, uint64_t b) { return a ^ (b + 0x9E3779B97F4A7800u + (a << 10) + (a >> 4)); }

uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001B3u;
  return hash;
}

Shape shape_of_row(const double* row) {
  Shape shape;
  const int rank = static_cast<int>(row[kColumnRank]);
  shape.is_known = rank >= 0 && rank <= kNumSummaryDims;
  if (shape.is_known) shape.rank = rank;
  for (int d = 0; d < shape.rank; ++d) shape.dims[d] = static_cast<int64_t>(row[kColumnDim0 + d]);
  shape.size = static_cast<int64_t>(row[kColumnSize]);
  return shape;
}

bool is_real_float(int dtype) {
  const double zero = 0;
  double value = 0;
  return read_scalar(dtype, &zero, &value);
}

// Records the value of a tensor with one element, if the row contains the value or the counts determine it.
void set_scalar(const Health& health, const double* row, Record* record) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (row[kColumnNumFinite] > 0) {  // otherwise, the row may not contain the value
    record->tensor.magnitudes.max = magnitudes_of_row(row + kColumnMagnitudes).max;
  } else if (health.num_nan != 0) {
    record->tensor.magnitudes.max = std::numeric_limits<double>::quiet_NaN();
  } else if ((health.num_pos_inf | health.num_neg_inf) != 0) {
    record->tensor.magnitudes.max = health.num_pos_inf != 0 ? kInfinity : -kInfinity;
  } else {
    return;
  }
  record->flags |= kScalar;
}

void append_judged(Session& session, size_t i, const Shape& shape, Record* record, Judge* judge) {
  record->wall_time_ns = wall_time_ns();
  append_tensor_waiting(session, *record, shape.rank, shape.dims);
  const bool is_bad = (record->flags & kBad) != 0;
  if (is_bad && session.on_nonfinite != OnNonFinite::kRecord) session.bad_events.add(*record, last_event_index());
  judge->see(i, *record, last_event_index());
}

// Records a tensor from a row of a summary, if the recording covers it.
void record_summary(Session& session, const RecordKernel& kernel, size_t i, const Shape& shape, const double* row,
                    Record* record, Judge* judge) {
  const int dtype = static_cast<int>(kernel.dtypes[i]);
  if (!session.covers(dtype)) return;
  record->node = static_cast<int32_t>(kernel.nodes[i]);
  fill_from_summary(session, dtype, shape, row, record);
  append_judged(session, i, shape, record, judge);
}

// Records a tensor from its elements, if the recording covers it.
void record_whole(Session& session, const RecordKernel& kernel, size_t i, const Shape& shape, const void* elements,
                  Record* record, Judge* judge) {
  const int dtype = static_cast<int>(kernel.dtypes[i]);
  if (!session.covers(dtype)) return;
  record->node = static_cast<int32_t>(kernel.nodes[i]);
  record->dtype = static_cast<int16_t>(dtype);
  describe_tensor(session, dtype, shape.rank, shape.dims, elements, false, record);
  append_judged(session, i, shape, record, judge);
}

// Returns the call that has the tensors of a RecordRows op as arguments; kNoValue if the call is not certain.
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

// Reads the shapes from an input that TfdbgArrowView made. A shape of a higher rank than kMaxRank is not known.
std::vector<Shape> shapes_of_input(TF_OpKernelContext* context, int input) {
  const TensorFlowApi& tf = tf_api();
  std::vector<Shape> shapes;
  TF_Tensor* tensor = nullptr;
  tf.TF_GetInput(context, input, &tensor, thread_status().get());
  if (tensor == nullptr) return shapes;
  if (tf.TF_TensorType(tensor) == kInt64 && tf.TF_NumDims(tensor) == 1) {
    const auto* next = static_cast<const int64_t*>(tf.TF_TensorData(tensor));
    const int64_t* const end = next + tf.TF_Dim(tensor, 0);
    while (next < end && *next >= 0 && *next < end - next) {
      const int64_t rank = *next++;
      Shape shape;
      if (rank <= kMaxRank) {
        shape.is_known = true;
        shape.rank = static_cast<int>(rank);
        std::copy_n(next, rank, shape.dims);
        shape.size = num_elements(shape.rank, shape.dims);
      }
      shapes.push_back(shape);
      next += rank;
    }
  }
  tf.TF_DeleteTensor(tensor);
  return shapes;
}

}  // namespace

void fill_from_summary(const Session& session, int dtype, const Shape& shape, const double* row, Record* record) {
  record->dtype = static_cast<int16_t>(dtype);
  record->flags |= kCovered;
  record->size = shape.size;
  if (shape.is_known) {
    record->flags |= kShape;
    record->rank = static_cast<uint8_t>(shape.rank);
    std::copy_n(shape.dims, std::min(shape.rank, kNumInlineDims), record->tensor.dims);
  }
  if (!session.reads_elements()) return;
  auto count = [&](int column) { return static_cast<int64_t>(row[column]); };
  const Health health = health_of_row(row + kColumnHealth);
  const bool any_finite = row[kColumnNumFinite] > 0, is_complex = dtype == 8 || dtype == 18;
  const Numerics numerics{magnitudes_of_row(row + kColumnMagnitudes), any_finite, any_finite && !is_complex};
  set_health(session.mode, health, session.mode == Mode::kFullNumerics ? &numerics : nullptr, record);
  if (shape.size == 1 && is_real_float(dtype)) set_scalar(health, row, record);
  if (row[kColumnFirstBad] > 0) {
    record->flags |= kPlaced;
    record->tensor.first_bad_index = count(kColumnFirstBad) - 1;
    record->tensor.num_bad_slices = count(kColumnNumBadSlices) - 1;  // kNoValue for a scalar
  }
}

// Creates a kernel whose input holds the rows that a compiled function returns for its tensors.
void* create_record_rows(TF_OpKernelConstruction* construction) {
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

void compute_record_rows(void* opaque, TF_OpKernelContext* context) {
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
    // The frame of a loop gets the same ID as in TensorFlow.
    // Source: tensorflow/core/common_runtime/propagator_state.cc, FindOrCreateChildFrame.
    int column = kColumnIteration + static_cast<int>(kernel->loops[i].size());
    for (uint64_t name : kernel->loops[i]) {
      const uint64_t entry = combined(static_cast<uint64_t>(record.iteration), name);
      record.frame_id = static_cast<int64_t>(combined(static_cast<uint64_t>(record.frame_id), entry));
      record.iteration = static_cast<int64_t>(row[--column]);
    }
    record_summary(*session, *kernel, i, shape_of_row(row), row, &record, &judge);
  }
  tf.TF_DeleteTensor(tensor);
  judge.decide(context);
}

// Creates a kernel whose inputs hold the counts that nodes on a device computed.
void* create_record_device(TF_OpKernelConstruction* construction) {
  auto kernel = std::make_unique<RecordKernel>();
  Status status;
  std::string texts;
  std::vector<int64_t> sites;
  if (!read_list(construction, "nodes", &kernel->nodes, &status) ||
      !read_list(construction, "decides", &kernel->decides, &status) ||
      !read_list(construction, "dtypes", &kernel->dtypes, &status) ||
      !read_list(construction, "nums_classes", &kernel->nums_classes, &status) ||
      !read_list(construction, "element_bytes", &kernel->element_bytes, &status) ||
      !read_list(construction, "same_as", &kernel->same_as, &status) ||
      !read_list(construction, "dims", &kernel->dims, &status) ||
      !read_int(construction, "generation", &kernel->generation, &status) ||
      !read_int(construction, "executed_graph", &kernel->executed_graph, &status) ||
      !read_list(construction, "has_call_site", &kernel->has_call_sites, &status) ||
      !read_string(construction, "call_sites", &texts, &status) || !read_list(construction, "sites", &sites, &status)) {
    tf_api().TF_OpKernelConstruction_Failure(construction, status.get());
    return nullptr;
  }
  const std::vector<std::string> site_texts = split(texts, '\n');
  for (int64_t site : sites) kernel->call_sites.push_back(strings().intern(site_texts.at(static_cast<size_t>(site))));
  return kernel.release();
}

namespace {

// The shapes of the tensors of a RecordDevice op, and the positions of their bytes in the op's first input.
struct Layout {
  std::vector<Shape> shapes;
  std::vector<int64_t> begins, sizes;
  int64_t size = 0;
};

Layout layout(const RecordKernel& kernel, TF_OpKernelContext* context, bool has_parts, bool has_magnitudes) {
  Layout found;
  int next_shape = has_parts ? 1 : 0;
  const bool has_shapes_of_parts = std::count(kernel.dims.begin(), kernel.dims.end(), kShapeOfPart) > 0;
  const std::vector<Shape> shapes_of_parts =
      has_shapes_of_parts ? shapes_of_input(context, next_shape++) : std::vector<Shape>();
  size_t part = 0;
  const int64_t* dims = kernel.dims.data();
  for (size_t i = 0; i < kernel.nodes.size(); ++i) {
    const auto source = static_cast<size_t>(kernel.same_as[i]);
    const bool has_source = kernel.same_as[i] >= 0;
    const int64_t rank = *dims++;
    Shape shape;
    if (rank == kShapeOfSource) {
      shape = found.shapes[source];
    } else if (rank == kShapeOfPart) {
      if (part < shapes_of_parts.size()) shape = shapes_of_parts[part];
    } else if (rank == kShapeIsInput) {
      const std::vector<Shape> shapes = shapes_of_input(context, next_shape++);
      if (!shapes.empty()) shape = shapes[0];
    } else {
      shape.is_known = true;
      shape.rank = static_cast<int>(rank);
      std::copy_n(dims, rank, shape.dims);
      shape.size = num_elements(shape.rank, shape.dims);
      dims += rank;
    }
    const int64_t num_classes = kernel.nums_classes[i];
    const int64_t num_bytes = kernel.element_bytes[i] > 0 ? shape.size * kernel.element_bytes[i]
                              : num_classes == 0          ? 0
                              : has_magnitudes            ? (num_classes + kNumDeviceMagnitudes) * int64_t{sizeof(double)}
                                                          : num_classes * int64_t{sizeof(int32_t)};
    found.shapes.push_back(shape);
    found.sizes.push_back(num_bytes);
    found.begins.push_back(has_source ? found.begins[source] : found.size);
    if (has_source) continue;
    found.size += num_bytes;
    if (kernel.element_bytes[i] > 0 || num_classes > 0) ++part;
  }
  return found;
}

}  // namespace

void compute_record_device(void* opaque, TF_OpKernelContext* context) {
  if (is_paused()) return;
  SessionGuard session;
  auto* kernel = static_cast<RecordKernel*>(opaque);
  if (!session || kernel == nullptr || kernel->generation != session->generation) return;
  const TensorFlowApi& tf = tf_api();
  Status& status = thread_status();
  const Record common = context_record(kernel, context, *session);
  const size_t num_tensors = kernel->nodes.size();
  const bool has_magnitudes = session->mode == Mode::kFullNumerics;
  const bool has_parts = session->reads_elements();
  const Layout found = layout(*kernel, context, has_parts, has_magnitudes);
  TF_Tensor* parts = nullptr;
  if (has_parts) tf.TF_GetInput(context, 0, &parts, status.get());
  if (has_parts && (parts == nullptr || tf.TF_TensorType(parts) != kUint8 || tf.TF_NumDims(parts) != 1 ||
                    tf.TF_Dim(parts, 0) != found.size)) {
    session->spool.count_dropped(num_tensors);
    if (parts != nullptr) tf.TF_DeleteTensor(parts);
    return;
  }
  const auto* bytes = parts == nullptr ? nullptr : static_cast<const std::byte*>(tf.TF_TensorData(parts));
  std::vector<std::max_align_t> aligned;
  Judge judge(*kernel, *session);
  for (size_t i = 0; i < num_tensors; ++i) {
    const int64_t source = kernel->same_as[i];
    if (source >= 0 && found.sizes[i] != found.sizes[static_cast<size_t>(source)]) {  // the claimed shape is wrong
      session->spool.count_dropped(1);
      continue;
    }
    const auto num_bytes = static_cast<size_t>(found.sizes[i]);
    aligned.resize(num_bytes / sizeof(std::max_align_t) + 1);
    if (num_bytes > 0) std::memcpy(aligned.data(), bytes + found.begins[i], num_bytes);
    Record record = common;
    record.call_site = kernel->call_sites[i];
    if (kernel->has_call_sites[i] != 0) record.flags |= kContext;
    if (kernel->element_bytes[i] > 0) {
      record_whole(*session, *kernel, i, found.shapes[i], aligned.data(), &record, &judge);
      continue;
    }
    const int64_t num_classes = kernel->nums_classes[i];
    double row[kNumSummaryColumns] = {};
    double* counts = row + kColumnHealth;
    if (num_classes > 0 && has_magnitudes) {
      const auto* numbers = reinterpret_cast<const double*>(aligned.data());
      count_kinds(numbers, num_classes, counts);
      std::copy_n(numbers + num_classes, kNumDeviceMagnitudes, row + kColumnMagnitudes);
      set_not_measured(kNumCounts + kNumDeviceMagnitudes, kNumCounts + kNumMagnitudes, counts);
      row[kColumnNumFinite] = counts[3] + counts[4] + counts[5];
    } else if (num_classes > 0) {
      count_kinds(reinterpret_cast<const int32_t*>(aligned.data()), num_classes, counts);
    }
    record_summary(*session, *kernel, i, found.shapes[i], row, &record, &judge);
  }
  if (parts != nullptr) tf.TF_DeleteTensor(parts);
  judge.decide(context);
}

}  // namespace tfdbg_arrow
