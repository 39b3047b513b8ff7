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

#include "record_kernel.h"
#include "session.h"
#include "tensorflow_api.h"

namespace tfdbg_arrow {
namespace {

// A kernel that the optimizer added after one output of a node.
void* create_record_through(TF_OpKernelConstruction* construction) {
  auto kernel = std::make_unique<RecordKernel>();
  Status status;
  int64_t node = 0;
  bool decides = false;
  std::string call_site;
  if (!read_int(construction, "node", &node, &status) ||
      !read_int(construction, "generation", &kernel->generation, &status) ||
      !read_int(construction, "executed_graph", &kernel->executed_graph, &status) ||
      !read_int(construction, "argument", &kernel->argument, &status) ||
      !read_bool(construction, "keep", &kernel->keep, &status) ||
      !read_bool(construction, "decides", &decides, &status) ||
      !read_bool(construction, "is_watch", &kernel->is_watch, &status) ||
      !read_bool(construction, "is_component", &kernel->is_component, &status) ||
      !read_list(construction, "sources", &kernel->sources, &status) ||
      !read_list(construction, "kept_inputs", &kernel->kept_inputs, &status) ||
      !read_bool(construction, "has_call_site", &kernel->has_call_site, &status) ||
      !read_string(construction, "call_site", &call_site, &status)) {
    tf_api().TF_OpKernelConstruction_Failure(construction, status.get());
    return nullptr;
  }
  kernel->nodes = {node};
  kernel->decides = {decides ? 1 : 0};
  kernel->call_site = strings().intern(call_site);
  return kernel.release();
}

void* create_call_token(TF_OpKernelConstruction* construction) {
  auto kernel = std::make_unique<RecordKernel>();
  Status status;
  int64_t node = 0;
  if (!read_int(construction, "node", &node, &status) ||
      !read_int(construction, "generation", &kernel->generation, &status)) {
    tf_api().TF_OpKernelConstruction_Failure(construction, status.get());
    return nullptr;
  }
  kernel->nodes = {node};
  kernel->has_call_site = true;
  kernel->call_site = strings().intern("");
  return kernel.release();
}

void delete_kernel(void* opaque) { delete static_cast<RecordKernel*>(opaque); }

// Notes the execution to which the step belongs. The record is not covered, and does not become a row.
void compute_call_token(void* opaque, TF_OpKernelContext* context) {
  if (is_paused()) return;
  SessionGuard session;
  auto* kernel = static_cast<RecordKernel*>(opaque);
  if (!session || kernel == nullptr || kernel->generation != session->generation) return;
  const TensorFlowApi& tf = tf_api();
  TF_Tensor* tensor = nullptr;
  tf.TF_GetInput(context, 0, &tensor, thread_status().get());
  if (tensor == nullptr) return;
  if (tf.TF_TensorType(tensor) == kInt64 && tf.TF_NumDims(tensor) == 0) {
    Record record = context_record(kernel, context, *session);
    record.node = static_cast<int32_t>(kernel->nodes[0]);
    record.dtype = kInt64;
    std::memcpy(&record.execution_index, tf.TF_TensorData(tensor), sizeof(int64_t));
    record.wall_time_ns = wall_time_ns();
    append_tensor_waiting(*session, record, 0, nullptr);
  }
  tf.TF_DeleteTensor(tensor);
}

// Keeps the inputs of the recorded op, which are the kernel's own inputs from the second on.
void keep_inputs(const RecordKernel& kernel, TF_OpKernelContext* context, Session& session, const Record& bad,
                 int64_t event_index) {
  const TensorFlowApi& tf = tf_api();
  std::vector<TF_Tensor*> tensors;
  std::vector<HostTensor> inputs;
  std::vector<int64_t> indexes;
  for (size_t i = 0; i < kernel.kept_inputs.size(); ++i) {
    TF_Tensor* tensor = nullptr;
    tf.TF_GetInput(context, static_cast<int>(i) + 1, &tensor, thread_status().get());
    if (tensor == nullptr) continue;
    tensors.push_back(tensor);
    inputs.push_back(host_tensor(tensor));
    indexes.push_back(kernel.kept_inputs[i]);
  }
  keep_inputs(session, bad, event_index, inputs, indexes);
  for (TF_Tensor* tensor : tensors) tf.TF_DeleteTensor(tensor);
}

// Holds a component of an element until it is known whether a bad value comes up in its step.
void hold_component(RecordKernel* kernel, TF_OpKernelContext* context, Session& session) {
  TF_Tensor* tensor = nullptr;
  tf_api().TF_GetInput(context, 0, &tensor, thread_status().get());
  if (tensor == nullptr) return;
  Record where = context_record(kernel, context, session);
  where.node = static_cast<int32_t>(kernel->nodes[0]);
  where.tensor_id = kNoValue;
  session.step_components.hold(session, where, tensor);
}

// Records one tensor. Returns true if the step failed because of it.
bool record_tensor(RecordKernel* kernel, TF_OpKernelContext* context, TF_Tensor* tensor) {
  if (is_paused()) return false;
  SessionGuard session;
  if (!session || kernel->generation != session->generation) return false;
  if (kernel->is_component) hold_component(kernel, context, *session);
  const TensorFlowApi& tf = tf_api();
  const int dtype = tf.TF_TensorType(tensor);
  if (!session->covers(dtype, kernel->keep)) return false;
  const int rank = std::min(tf.TF_NumDims(tensor), kMaxRank);
  int64_t dims[kMaxRank];
  for (int d = 0; d < rank; ++d) dims[d] = tf.TF_Dim(tensor, d);
  const void* data = tf.TF_TensorData(tensor);
  Record record = context_record(kernel, context, *session);
  record.node = static_cast<int32_t>(kernel->nodes[0]);
  if (kernel->argument >= 0) {
    record.execution_index = session->calls.find(static_cast<size_t>(kernel->argument), data);
  }
  const auto num_bytes = static_cast<int64_t>(tf.TF_TensorByteSize(tensor));
  // An argument from eager code is measured in each call, even if it has the same address as in the previous call: the
  // program can change it through an array that shares its memory.
  const bool may_repeat = kernel->argument >= 0 && num_bytes >= RepeatedArgument::kMinBytes &&
                          session->only_counts(kernel->keep) && !session->calls.has_argument(data);
  if (may_repeat && kernel->repeated.is_known(data, num_bytes)) {
    session->num_known_arguments.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  const int64_t begin_ns = may_repeat ? RepeatedArgument::monotonic_ns() : 0;
  describe_tensor(*session, dtype, rank, dims, data, kernel->keep, &record);
  if (may_repeat) kernel->repeated.note_read(context, data, num_bytes, begin_ns, (record.flags & kBad) != 0);
  const bool is_bad = (record.flags & kBad) != 0;
  if (kernel->is_watch && !is_bad) return false;
  Judge judge(*kernel, *session);
  const int64_t known = kernel->is_watch ? session->bad_events.last_of(kernel->sources, record.step_id) : kNoValue;
  if (known != kNoValue) {
    judge.see(0, record, known);
  } else {
    record.wall_time_ns = wall_time_ns();
    append_tensor_waiting(*session, record, rank, dims);
    const int64_t event_index = last_event_index();
    if (is_bad && session->on_nonfinite != OnNonFinite::kRecord) session->bad_events.add(record, event_index);
    judge.see(0, record, event_index);
    if (is_bad && !kernel->kept_inputs.empty()) keep_inputs(*kernel, context, *session, record, event_index);
    const bool is_from_outside = kernel->is_component || kernel->argument >= 0;
    if (is_bad && is_from_outside && session->keeps_inputs) keep_step_inputs(*session, record);
  }
  return judge.decide(context);
}

void compute_record_through(void* opaque, TF_OpKernelContext* context) {
  const TensorFlowApi& tf = tf_api();
  Status& status = thread_status();
  TF_Tensor* tensor = nullptr;
  tf.TF_GetInput(context, 0, &tensor, status.get());
  if (status.ok() && tensor != nullptr) {
    const bool is_failed = opaque != nullptr && record_tensor(static_cast<RecordKernel*>(opaque), context, tensor);
    if (!is_failed) tf.TF_SetOutput(context, 0, tensor, status.get());
    tf.TF_DeleteTensor(tensor);
  }
  if (!status.ok()) tf.TF_OpKernelContext_Failure(context, status.get());
}

void compute_record_constant(void* opaque, TF_OpKernelContext* context) {
  TF_Tensor* tensor = nullptr;
  tf_api().TF_GetInput(context, 0, &tensor, thread_status().get());
  if (tensor == nullptr) return;
  if (opaque != nullptr) record_tensor(static_cast<RecordKernel*>(opaque), context, tensor);
  tf_api().TF_DeleteTensor(tensor);
}

struct ViewKernel {
  int type = 0;
  bool is_row = false;                    // whether a view has the shape [1, n], and not [n]
  int64_t num_views = 0;                  // 0, or the number of inputs
  int64_t num_shapes = 0;                 // 0, or 1: a vector; for each input, its rank and its dimensions
};

void* create_view(TF_OpKernelConstruction* construction) {
  auto kernel = std::make_unique<ViewKernel>();
  Status status;
  tf_api().TF_OpKernelConstruction_GetAttrType(construction, "T", &kernel->type, status.get());
  if (!status.ok() || !read_bool(construction, "is_row", &kernel->is_row, &status) ||
      !read_int(construction, "num_views", &kernel->num_views, &status) ||
      !read_int(construction, "num_shapes", &kernel->num_shapes, &status)) {
    tf_api().TF_OpKernelConstruction_Failure(construction, status.get());
    return nullptr;
  }
  return kernel.release();
}

void delete_view(void* opaque) { delete static_cast<ViewKernel*>(opaque); }

// Sets an output to a view of a tensor.
void set_view(const ViewKernel& kernel, TF_OpKernelContext* context, int output, const TF_Tensor* tensor,
              int64_t num_bytes) {
  const TensorFlowApi& tf = tf_api();
  Status& status = thread_status();
  constexpr int64_t kOne = 1;
  TF_Tensor* view = tf.TF_AllocateTensor(kUint8, &kOne, 1, 1);
  const int64_t dims[] = {1, num_bytes / static_cast<int64_t>(tf.TF_DataTypeSize(kernel.type))};
  tf.TF_TensorBitcastFrom(tensor, kernel.type, view, kernel.is_row ? dims : dims + 1, kernel.is_row ? 2 : 1, status.get());
  if (status.ok()) tf.TF_SetOutput(context, output, view, status.get());
  tf.TF_DeleteTensor(view);
}

void set_shapes(TF_OpKernelContext* context, int output, const std::vector<int64_t>& numbers) {
  const TensorFlowApi& tf = tf_api();
  const auto size = static_cast<int64_t>(numbers.size());
  const size_t num_bytes = numbers.size() * sizeof(int64_t);
  TF_Tensor* shapes = tf.TF_AllocateTensor(kInt64, &size, 1, num_bytes);
  std::memcpy(tf.TF_TensorData(shapes), numbers.data(), num_bytes);
  tf.TF_SetOutput(context, output, shapes, thread_status().get());
  tf.TF_DeleteTensor(shapes);
}

void compute_view(void* opaque, TF_OpKernelContext* context) {
  const auto* kernel = static_cast<const ViewKernel*>(opaque);
  if (kernel == nullptr) return;  // create_view() has reported the error to TensorFlow
  const TensorFlowApi& tf = tf_api();
  Status& status = thread_status();
  const int num_tensors = tf.TF_NumInputs(context);
  std::vector<int64_t> shapes;
  for (int i = 0; i < num_tensors; ++i) {
    TF_Tensor* tensor = nullptr;
    tf.TF_GetInput(context, i, &tensor, status.get());
    if (status.ok() && tensor != nullptr) {
      int64_t num_bytes = static_cast<int64_t>(tf.TF_DataTypeSize(tf.TF_TensorType(tensor)));
      shapes.push_back(tf.TF_NumDims(tensor));
      for (int d = 0; d < tf.TF_NumDims(tensor); ++d) {
        shapes.push_back(tf.TF_Dim(tensor, d));
        num_bytes *= shapes.back();
      }
      if (i < kernel->num_views) set_view(*kernel, context, i, tensor, num_bytes);
    }
    if (tensor != nullptr) tf.TF_DeleteTensor(tensor);
    if (status.ok()) continue;
    tf.TF_OpKernelContext_Failure(context, status.get());
    return;
  }
  if (kernel->num_shapes > 0) set_shapes(context, static_cast<int>(kernel->num_views), shapes);
}

void no_outputs(TF_ShapeInferenceContext*, TF_Status*) {}

void unknown_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  tf_api().TF_ShapeInferenceContextSetUnknownShape(context, status);
}

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

// Registers the op that returns views. The op is not stateful: TensorFlow may remove it if no node uses the views.
void register_view_op() {
  const TensorFlowApi& tf = tf_api();
  Status status;
  TF_OpDefinitionBuilder* builder = tf.TF_NewOpDefinitionBuilder(std::string(kViewOp).c_str());
  tf.TF_OpDefinitionBuilderAddInput(builder, "tensors: types");
  tf.TF_OpDefinitionBuilderAddOutput(builder, "views: num_views * T");
  tf.TF_OpDefinitionBuilderAddOutput(builder, "shapes: num_shapes * int64");
  for (const char* attr : {"types: list(type) >= 1", "num_views: int >= 0", "num_shapes: int >= 0", "is_row: bool",
                           "T: type"}) {
    tf.TF_OpDefinitionBuilderAddAttr(builder, attr);
  }
  tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, unknown_shapes);
  tf.TF_RegisterOpDefinition(builder, status.get());
  check(status, "an op that returns views");
}

// Registers a stateful op, which TensorFlow does not remove.
void register_op(std::string_view name, std::initializer_list<const char*> inputs, std::initializer_list<const char*> attrs) {
  const TensorFlowApi& tf = tf_api();
  Status status;
  TF_OpDefinitionBuilder* builder = tf.TF_NewOpDefinitionBuilder(std::string(name).c_str());
  for (const char* input : inputs) tf.TF_OpDefinitionBuilderAddInput(builder, input);
  for (const char* attr : attrs) tf.TF_OpDefinitionBuilderAddAttr(builder, attr);
  tf.TF_OpDefinitionBuilderSetIsStateful(builder, true);
  tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, no_outputs);
  tf.TF_RegisterOpDefinition(builder, status.get());
  check(status, "a record op");
}

void register_single_op(std::string_view name, bool hands_on) {
  const TensorFlowApi& tf = tf_api();
  Status status;
  TF_OpDefinitionBuilder* builder = tf.TF_NewOpDefinitionBuilder(std::string(name).c_str());
  tf.TF_OpDefinitionBuilderAddInput(builder, "tensor: T");
  tf.TF_OpDefinitionBuilderAddInput(builder, "inputs: input_types");
  if (hands_on) tf.TF_OpDefinitionBuilderAddOutput(builder, "same: T");
  for (const char* attr : {"T: type", "node: int", "generation: int", "executed_graph: int", "argument: int", "keep: bool",
                           "decides: bool", "is_watch: bool", "is_component: bool = false", "sources: list(int)", "has_call_site: bool", "call_site: string",
                           "input_types: list(type) >= 0 = []", "kept_inputs: list(int) = []"}) {
    tf.TF_OpDefinitionBuilderAddAttr(builder, attr);
  }
  tf.TF_OpDefinitionBuilderSetIsStateful(builder, true);  // otherwise TensorFlow folds it or merges it with another op
  tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, hands_on ? same_shape : no_outputs);
  tf.TF_RegisterOpDefinition(builder, status.get());
  check(status, "a record op");
}

void register_kernel(std::string_view op_name, const char* device, std::initializer_list<const char*> on_host,
                     void* (*create)(TF_OpKernelConstruction*), void (*compute)(void*, TF_OpKernelContext*),
                     void (*remove)(void*) = delete_kernel) {
  const TensorFlowApi& tf = tf_api();
  Status status;
  const std::string op(op_name);
  TF_KernelBuilder* builder = tf.TF_NewKernelBuilder(op.c_str(), device, create, compute, remove);
  for (const char* argument : on_host) tf.TF_KernelBuilder_HostMemory(builder, argument);
  const std::string name = op + device;
  tf.TF_RegisterKernelBuilder(name.c_str(), builder, status.get());
  check(status, "a record kernel");
}

}  // namespace

void register_record_ops() {
  static bool registered = false;
  if (registered) return;
  register_op(kCallTokenOp, {"execution_index: int64"}, {"node: int", "generation: int"});
  register_kernel(kCallTokenOp, "CPU", {}, create_call_token, compute_call_token);
  register_op(kRecordRowsOp, {"summaries: double", "arguments: T"},
              {"T: list(type) >= 0", "nodes: list(int)", "decides: list(int)", "generation: int", "own_name: string",
               "argument_indexes: list(int)", "dtypes: list(int)", "call_sites: string", "sites: list(int)", "loops: string",
               "loop_of: list(int)"});
  for (const char* device : {"CPU", "GPU"}) {
    register_kernel(kRecordRowsOp, device, {"summaries"}, create_record_rows, compute_record_rows);
  }
  register_op(kRecordDeviceOp, {"parts: num_parts * uint8", "shapes: num_shapes * int64"},
              {"num_parts: int >= 0", "num_shapes: int >= 0", "nodes: list(int)", "decides: list(int)", "generation: int",
               "executed_graph: int", "dtypes: list(int)", "nums_classes: list(int)", "element_bytes: list(int)",
               "same_as: list(int)", "dims: list(int)", "has_call_site: list(int)", "call_sites: string",
               "sites: list(int)"});
  register_view_op();
  for (const char* device : {"CPU", "GPU"}) {
    register_kernel(kRecordDeviceOp, device, {"parts", "shapes"}, create_record_device, compute_record_device);
    register_kernel(kViewOp, device, {"shapes"}, create_view, compute_view, delete_view);
  }
  register_single_op(kRecordThroughOp, true);
  register_single_op(kRecordConstantOp, false);
  register_kernel(kRecordThroughOp, "CPU", {}, create_record_through, compute_record_through);
  register_kernel(kRecordConstantOp, "CPU", {}, create_record_through, compute_record_constant);
  register_kernel(kRecordConstantOp, "GPU", {"tensor"}, create_record_through, compute_record_constant);
  registered = true;
}

}  // namespace tfdbg_arrow
