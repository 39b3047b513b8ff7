#include "compiled_call.h"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <system_error>

#include "health.h"
#include "record_op.h"
#include "session.h"

namespace tfdbg_arrow {
namespace {

constexpr int kRow = 0;  // instead of a DataType

// Turns the row of a tensor into the row of a tensor of another size, which contains each element equally often.
void repeat(double* row, double size) {
  const double times = row[kColumnSize] > 0 ? size / row[kColumnSize] : 0;
  for (int i = 0; i < kNumCounts + kNumMagnitudes; ++i) {
    if (kIsCount[i]) row[kColumnHealth + i] *= times;
  }
  row[kColumnNumFinite] *= times;
  row[kColumnFirstBad] = row[kColumnNumBadSlices] = 0;
  if (size == 0) std::fill(row + kColumnMagnitudes, row + kColumnNumFinite, 0.0);
}

// Has the signature of XLA's custom calls with API_VERSION_STATUS_RETURNING_UNIFIED. A status that is not set means
// success.
void summarize(void* result, const void** operands, const char* configuration, size_t length, void*) {
  int numbers[3] = {};
  const char* at = configuration;
  const char* const end = configuration + length;
  for (int& number : numbers) {
    while (at != end && *at == ' ') ++at;
    const auto [behind, error] = std::from_chars(at, end, number);
    if (error != std::errc()) return;
    at = behind;
  }
  const auto [dtype, mode_number, rank] = numbers;
  const auto mode = static_cast<Mode>(mode_number);
  const auto* dims = static_cast<const int64_t*>(operands[1]);
  auto* row = static_cast<double*>(result);
  if (dtype == kRow) {
    std::copy_n(static_cast<const double*>(operands[0]), kNumCompiledColumns, row);
  } else {
    std::fill_n(row, kNumSummaryColumns, 0.0);
    std::fill(row + kColumnIteration, row + kNumCompiledColumns, -1.0);
  }
  const int64_t size = num_elements(rank, dims);
  if (dtype == kRow) repeat(row, static_cast<double>(size));
  row[kColumnRank] = rank;
  row[kColumnSize] = static_cast<double>(size);
  const int num_shown = std::min(rank, kNumSummaryDims);
  std::fill_n(row + kColumnDim0, kNumSummaryDims, 0.0);
  for (int i = 0; i < num_shown; ++i) row[kColumnDim0 + i] = static_cast<double>(dims[rank - num_shown + i]);
  if (dtype == kRow || mode == Mode::kShape || mode == Mode::kNoTensor) return;
  Health health = {};
  if (mode == Mode::kFullNumerics) {
    Numerics numerics = {};
    if (!measure(dtype, operands[0], size, &health, &numerics)) return;
    write_row(numerics, row + kColumnMagnitudes);
    row[kColumnNumFinite] = static_cast<double>(health.num_neg_finite + health.num_zero + health.num_pos_finite);
  } else if (!count_health(dtype, operands[0], size, &health)) {
    return;
  } else if (Magnitudes only = {}; size == 1 && read_scalar(dtype, operands[0], &only.max) && std::isfinite(only.max)) {
    write_row(only, row + kColumnMagnitudes);
    row[kColumnNumFinite] = 1;
  }
  write_row(health, row + kColumnHealth);
  if ((health.num_neg_inf | health.num_pos_inf | health.num_nan) == 0) return;
  BadPlace place;
  find_bad(dtype, operands[0], size, rank == 0 ? size : size / dims[0], &place);
  if (place.first == size) return;  // another thread changed the elements after they were counted
  row[kColumnFirstBad] = static_cast<double>(place.first + 1);
  if (rank > 0) row[kColumnNumBadSlices] = static_cast<double>(place.num_slices + 1);
}

void join(void* result, const void** operands, const char* configuration, size_t length, void*) {
  const std::string text(configuration, length);
  auto* out = static_cast<double*>(result);
  const char* at = text.c_str();
  for (size_t i = 0; *at != '\0'; ++i) {
    char* end = nullptr;
    const long num_rows = std::strtol(at, &end, 10);
    if (end == at) return;
    at = end;
    out = std::copy_n(static_cast<const double*>(operands[i]), num_rows * kNumCompiledColumns, out);
  }
}

}  // namespace

// Source: xla/service/custom_call_target_registry.h. The registry has no C API. The names are mangled by the Itanium
// C++ ABI with libstdc++'s strings, as in TensorFlow's packages for Linux.
bool register_compiled_calls(const std::string& cc_path) {
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
  add(global(), kJoinCall, reinterpret_cast<void*>(join), "Host");
  is_registered = true;
  return true;
}

}  // namespace tfdbg_arrow
