// Reads the value of a floating-point number of any format.
#include <cmath>
#include <cstring>
#include <limits>

#include "health.h"
#include "health_formats.h"

namespace tfdbg_arrow {
namespace {

using namespace health;

template <class Format>
bool read(const void* data, double* out) {
  using U = typename Format::Unsigned;
  U pattern;
  std::memcpy(&pattern, data, sizeof(pattern));
  const U magnitude = static_cast<U>(pattern & static_cast<U>(Format::kMagnitude));
  const bool is_negative = pattern != magnitude;
  double value = 0;
  if (Format::kNegativeZeroIsNan && magnitude == 0 && is_negative) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (magnitude > static_cast<U>(Format::kTop)) {
    value = Format::kInfinity >= 0 && magnitude == static_cast<U>(Format::kInfinity)
                ? std::numeric_limits<double>::infinity()
                : std::numeric_limits<double>::quiet_NaN();
  } else if constexpr (sizeof(U) == sizeof(double)) {
    std::memcpy(&value, &magnitude, sizeof(value));  // arithmetic could flush a subnormal number to zero
  } else if (magnitude != 0) {
    // In float64, no number of these formats is subnormal.
    const int exponent = static_cast<int>(magnitude >> Format::kMantissaBits);
    const int fraction = static_cast<int>(magnitude & static_cast<U>(Format::kMinNormal - 1));
    const int mantissa = exponent == 0 ? fraction : fraction + static_cast<int>(Format::kMinNormal);
    value = std::ldexp(mantissa, (exponent == 0 ? 1 : exponent) - Format::kBias - Format::kMantissaBits);
  }
  *out = is_negative && magnitude != 0 ? -value : value;
  return true;
}

}  // namespace

bool read_scalar(int dtype, const void* data, double* out) {
  switch (dtype) {
    case 1: return read<Float32>(data, out);
    case 2: return read<Float64>(data, out);
    case 14: return read<BFloat16>(data, out);
    case 19: return read<Float16>(data, out);
    case 24: return read<Float8E5M2>(data, out);
    case 25: return read<Float8E4M3Fn>(data, out);
    case 26: return read<Float8E4M3Fnuz>(data, out);
    case 27: return read<Float8E4M3B11Fnuz>(data, out);
    case 28: return read<Float8E5M2Fnuz>(data, out);
    default: return false;
  }
}

}  // namespace tfdbg_arrow
