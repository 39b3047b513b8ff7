#include "tensorflow_api.h"

#include <dlfcn.h>

#include <mutex>
#include <stdexcept>

namespace tfdbg_arrow {
namespace {

TensorFlowApi g_api;

void* open_loaded(const std::string& path) {
  void* library = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) throw std::runtime_error("TensorFlow has not loaded the library " + path);
  return library;
}

template <typename Function>
void look_up(void* library, const std::string& path, const char* symbol, Function** out) {
  *out = reinterpret_cast<Function*>(::dlsym(library, symbol));
  if (*out == nullptr) throw std::runtime_error("the function " + std::string(symbol) + " is missing in " + path);
}

TensorFlowApi found_api(const std::string& framework_path, const std::string& cc_path, const std::string& python_path) {
  TensorFlowApi api;
  // The handles stay open, because kernels are called until the process ends.
  void* framework = open_loaded(framework_path);
  void* cc = open_loaded(cc_path);
  void* python = open_loaded(python_path);
#define TFDBG_ARROW_FROM_FRAMEWORK(result, name, arguments) look_up(framework, framework_path, #name, &api.name);
#define TFDBG_ARROW_FROM_CC(result, name, arguments) look_up(cc, cc_path, #name, &api.name);
#define TFDBG_ARROW_FROM_PYTHON(result, name, arguments, symbol) look_up(python, python_path, symbol, &api.name);
  TFDBG_ARROW_FRAMEWORK_API(TFDBG_ARROW_FROM_FRAMEWORK)
  TFDBG_ARROW_EAGER_API(TFDBG_ARROW_FROM_CC)
  TFDBG_ARROW_PYTHON_API(TFDBG_ARROW_FROM_PYTHON)
  return api;
}

}  // namespace

const TensorFlowApi& tf_api() { return g_api; }

void load_tensorflow_api(const std::string& framework_path, const std::string& cc_path,
                         const std::string& python_path) {
  const TensorFlowApi found = found_api(framework_path, cc_path, python_path);
  // The functions are stored only once, because threads of TensorFlow may still run kernels of an earlier recording.
  static std::once_flag is_stored;
  std::call_once(is_stored, [&] { g_api = found; });
}

}  // namespace tfdbg_arrow
