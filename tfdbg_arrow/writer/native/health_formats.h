// The number formats of the health kernels, and code that the kernels of all instruction sets share.
#ifndef TFDBG_ARROW_WRITER_NATIVE_HEALTH_FORMATS_H_
#define TFDBG_ARROW_WRITER_NATIVE_HEALTH_FORMATS_H_

#include <cstdint>
#include <limits>
#include <type_traits>

#include "health.h"

namespace tfdbg_arrow::health {

// The kind of a format, which selects its kernel.
struct AnyFloat {};
struct AnyInteger {};
struct AnyComplex {};

// A binary floating-point format in a signed integer lane: sign, exponent, and a mantissa of `mantissa_bits` bits. The
// magnitude is the lane without its sign bit. The integer order of magnitudes is their numeric order.
//
// kTop: magnitude of the largest finite number; larger magnitudes are infinite (kInfinity) or NaN.
// kInfinity: magnitude of infinity; -1, which is never a magnitude, in a format without infinity.
// kNegativeZeroIsNan: the "fnuz" formats, whose only NaN is the pattern of -0.
template <class LaneT, int mantissa_bits, int bias, LaneT top, LaneT infinity, bool negative_zero_is_nan>
struct FloatFormat : AnyFloat {
  using Lane = LaneT;
  using Unsigned = std::make_unsigned_t<Lane>;
  static constexpr int kMantissaBits = mantissa_bits;
  static constexpr int kBias = bias;
  static constexpr Lane kTop = top;
  static constexpr Lane kInfinity = infinity;
  static constexpr Lane kMinNormal = static_cast<Lane>(Lane{1} << mantissa_bits);
  static constexpr Lane kMagnitude = std::numeric_limits<Lane>::max();
  static constexpr Lane kNegativeZero = std::numeric_limits<Lane>::min();
  static constexpr bool kNegativeZeroIsNan = negative_zero_is_nan;
};

using Float64 = FloatFormat<int64_t, 52, 1023, 0x7fefffffffffffff, 0x7ff0000000000000, false>;
using Float32 = FloatFormat<int32_t, 23, 127, 0x7f7fffff, 0x7f800000, false>;
using BFloat16 = FloatFormat<int16_t, 7, 127, 0x7f7f, 0x7f80, false>;
using Float16 = FloatFormat<int16_t, 10, 15, 0x7bff, 0x7c00, false>;
using Float8E5M2 = FloatFormat<int8_t, 2, 15, 0x7b, 0x7c, false>;
using Float8E4M3Fn = FloatFormat<int8_t, 3, 7, 0x7e, -1, false>;
using Float8E4M3Fnuz = FloatFormat<int8_t, 3, 8, 0x7f, -1, true>;
using Float8E4M3B11Fnuz = FloatFormat<int8_t, 3, 11, 0x7f, -1, true>;
using Float8E5M2Fnuz = FloatFormat<int8_t, 2, 16, 0x7f, -1, true>;

// An integer dtype. bool is also an integer dtype: every byte except 0 is True.
template <class ValueT, bool boolean = false>
struct IntegerFormat : AnyInteger {
  using Value = ValueT;
  using Lane = std::make_signed_t<ValueT>;
  static constexpr bool kSigned = std::is_signed_v<ValueT>;
  static constexpr bool kBoolean = boolean;
};

// The two parts of a complex element, real part first.
template <class PartT>
struct ComplexFormat : AnyComplex {
  using Part = PartT;
};

// The kernels of one instruction set, with the signatures of the functions in health.h.
struct Kernels {
  const char* name;
  bool (*count_health)(int dtype, const char* data, int64_t n, Health* out);
  bool (*measure)(int dtype, const char* data, int64_t n, Health* out, Numerics* numerics);
  uint64_t (*read_sum)(const char* data, int64_t bytes);
};

}  // namespace tfdbg_arrow::health

#endif  // TFDBG_ARROW_WRITER_NATIVE_HEALTH_FORMATS_H_
