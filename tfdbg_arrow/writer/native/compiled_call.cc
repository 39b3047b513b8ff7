#include "compiled_call.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "health.h"
#include "record_op.h"
#include "session.h"

namespace tfdbg_arrow {
namespace {

// In the form API_VERSION_STATUS_RETURNING_UNIFIED of XLA's custom calls; a status that is not set means success.
void summarize(void* result, const void** operands, const char*, size_t, void*) {
  const auto* about = static_cast<const int64_t*>(operands[1]);
  const int dtype = static_cast<int>(about[0]);
  const auto mode = static_cast<Mode>(about[1]);
  const int rank = static_cast<int>(about[2]);
  const int64_t* dims = about + 3;
  // One result comes as it is or in a tuple of one; the columns are XLA's to lay out, the row is ours.
  auto* row = static_cast<double*>(result);
  std::fill_n(row, kNumSummaryColumns, 0.0);
  std::fill(row + kColumnIteration, row + kNumCompiledColumns, -1.0);
  const int64_t size = num_elements(rank, dims);
  row[kColumnRank] = rank;
  row[kColumnSize] = static_cast<double>(size);
  const int num_shown = std::min(rank, kNumInlineDims);
  for (int i = 0; i < num_shown; ++i) row[kColumnDim0 + i] = static_cast<double>(dims[rank - num_shown + i]);
  Health health = {};
  if (mode == Mode::kFullNumerics) {
    Numerics numerics = {};
    if (!measure(dtype, operands[0], size, &health, &numerics)) return;
    row[kColumnNumSubnormal] = static_cast<double>(numerics.num_subnormal);
    row[kColumnMin] = numerics.min;
    row[kColumnMax] = numerics.max;
    row[kColumnMean] = numerics.mean;
    row[kColumnStddev] = numerics.stddev;
    row[kColumnMaxAbs] = numerics.max_abs;
    row[kColumnNumFinite] = static_cast<double>(health.num_neg_finite + health.num_zero + health.num_pos_finite);
  } else if (!count_health(dtype, operands[0], size, &health)) {
    return;
  }
  row[kColumnNumNegInf] = static_cast<double>(health.num_neg_inf);
  row[kColumnNumPosInf] = static_cast<double>(health.num_pos_inf);
  row[kColumnNumNan] = static_cast<double>(health.num_nan);
  row[kColumnNumNegFinite] = static_cast<double>(health.num_neg_finite);
  row[kColumnNumZero] = static_cast<double>(health.num_zero);
  row[kColumnNumPosFinite] = static_cast<double>(health.num_pos_finite);
}

}  // namespace

// Source: xla/service/custom_call_target_registry.h. It has no C API; the names are those of the Itanium C++ ABI with
// libstdc++'s strings, by which TensorFlow's packages for Linux are built.
bool register_compiled_call(const std::string& cc_path) {
  static bool is_registered = false;
  if (is_registered) return true;
  using Global = void* (*)();
  using Register = void (*)(void* registry, const std::string& name, void* address, const std::string& platform);
  void* library = ::dlopen(cc_path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  auto global = reinterpret_cast<Global>(::dlsym(library, "_ZN3xla24CustomCallTargetRegistry6GlobalEv"));
  auto add = reinterpret_cast<Register>(
      ::dlsym(library,
              "_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEPvS8_"));
  if (global == nullptr || add == nullptr) return false;
  add(global(), kSummarizeCall, reinterpret_cast<void*>(summarize), "Host");
  is_registered = true;
  return true;
}

}  // namespace tfdbg_arrow
