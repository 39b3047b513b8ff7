// The graph optimizer that TensorFlow loads as a plugin, and calls with each graph that it is about to run.
//
// Source: tensorflow/c/experimental/grappler/grappler.h, version 0.0.1 (TensorFlow 2.18 to 2.21).
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "executed.h"
#include "graph_def.h"
#include "session.h"
#include "tensorflow_api.h"

namespace tfdbg_arrow {
namespace {

// TensorFlow's own passes run twice. Record ops that the first round added would hinder the second round.
constexpr int kNumRounds = 2;
// TensorFlow runs only one round for a smaller graph. But the record ops make the graph larger, so TensorFlow runs a
// second round, which removes some of the record ops.
constexpr size_t kMinNodes = 4;
// The types of devices for whose graphs TensorFlow calls the optimizer, in the order in which it loads the library.
constexpr const char* kDeviceTypes[] = {"CPU", "GPU"};

// TensorFlow makes one State for each graph.
struct State {
  int num_rounds = 0;
  std::string edited;  // the graph with record ops, if the first round added them
};

void* create_optimizer() { return new (std::nothrow) State(); }
void destroy_optimizer(void* optimizer) { delete static_cast<State*>(optimizer); }
void free_buffer(void* data, size_t) { std::free(data); }

void hand_back(std::string_view bytes, TF_Buffer* out, TF_Status* status) {
  void* copy = std::malloc(std::max<size_t>(bytes.size(), 1));
  if (copy == nullptr) {
    constexpr int kResourceExhausted = 8;
    tf_api().TF_SetStatus(status, kResourceExhausted, "tfdbg_arrow has no memory for a copy of the graph");
    return;
  }
  std::memcpy(copy, bytes.data(), bytes.size());
  out->data = copy;
  out->length = bytes.size();
  out->data_deallocator = free_buffer;
}

// TensorFlow calls this function in any thread. The thread may hold locks of TensorFlow, so it must not wait for
// Python.
void optimize(void* optimizer, const TF_Buffer* in, const void*, TF_Buffer* out, TF_Status* status) {
  const std::string_view bytes(static_cast<const char*>(in->data), in->length);
  State* state = static_cast<State*>(optimizer);
  const bool is_last_round = state == nullptr || ++state->num_rounds >= kNumRounds;
  std::string edited;
  SessionGuard session;
  if (session && bytes.find(kGraphAttr) != std::string_view::npos) {
    try {
      if (is_last_round) {
        edited = state != nullptr && !state->edited.empty() ? std::move(state->edited) : with_record_ops(bytes, *session);
      } else if (const std::optional<GraphView> graph = parse_graph(bytes); graph && graph->nodes.size() < kMinNodes) {
        edited = state->edited = with_record_ops(bytes, *session);
      }
    } catch (...) {
      edited.clear();
      session->executed.count_unreadable();
    }
  }
  hand_back(edited.empty() ? bytes : std::string_view(edited), out, status);
}

// Whether TensorFlow's passes are on or off; 0 keeps the program's choice.
struct OptimizerConfigs {
  size_t struct_size;
  void* ext;
  int switches[19];
};
struct Optimizer {
  size_t struct_size;
  void* ext;
  void* (*create_func)();
  void (*optimize_func)(void*, const TF_Buffer*, const void*, TF_Buffer*, TF_Status*);
  void (*destroy_func)(void*);
};
struct RegistrationParams {
  size_t struct_size;
  void* ext;
  int32_t major_version;
  int32_t minor_version;
  int32_t patch_version;
  const char* device_type;
  OptimizerConfigs* optimizer_configs;
  Optimizer* optimizer;
};

}  // namespace
}  // namespace tfdbg_arrow

// TensorFlow calls this when it loads the library as a plugin.
extern "C" __attribute__((visibility("default"))) void TF_InitGraph(void* opaque, tfdbg_arrow::TF_Status* status) {
  using namespace tfdbg_arrow;
  auto* params = static_cast<RegistrationParams*>(opaque);
  if (params->major_version != 0 || params->minor_version != 0 || params->struct_size != sizeof(RegistrationParams)) {
    constexpr int kUnimplemented = 12;
    tf_api().TF_SetStatus(status, kUnimplemented, "tfdbg_arrow does not know this version of TensorFlow's optimizers");
    return;
  }
  params->struct_size = sizeof(RegistrationParams);
  static std::atomic<size_t> num_loads{0};
  params->device_type = kDeviceTypes[std::min(num_loads.fetch_add(1), std::size(kDeviceTypes) - 1)];
  params->optimizer_configs->struct_size = offsetof(OptimizerConfigs, switches) + 19 * sizeof(int);
  params->optimizer->struct_size = sizeof(Optimizer);
  params->optimizer->create_func = create_optimizer;
  params->optimizer->optimize_func = optimize;
  params->optimizer->destroy_func = destroy_optimizer;
}
