// Finds the elements of a bad tensor that are not finite.
//
// It runs only for tensors that count_health() found to be bad. So speed matters less, and all instruction sets run the
// same code. In each slice, it reads only the elements up to the first bad element.
#include <algorithm>
#include <cstring>

#include "health.h"
#include "health_formats.h"

namespace tfdbg_arrow {
namespace {

using namespace health;

template <class Format>
bool is_bad(typename Format::Unsigned pattern) {
  using U = typename Format::Unsigned;
  if constexpr (Format::kNegativeZeroIsNan) {
    return pattern == static_cast<U>(Format::kNegativeZero);
  } else {
    return static_cast<U>(pattern & static_cast<U>(Format::kMagnitude)) > static_cast<U>(Format::kTop);
  }
}

template <class Format>
bool is_bad_at(const char* data, int64_t at) {
  typename Format::Unsigned pattern;
  std::memcpy(&pattern, data + at * static_cast<int64_t>(sizeof(pattern)), sizeof(pattern));
  return is_bad<Format>(pattern);
}

// Returns the index of the first bad number from `begin` on; `n` if there is no bad number.
template <class Format>
int64_t next_bad(const char* data, int64_t begin, int64_t n) {
  using U = typename Format::Unsigned;
  constexpr int64_t kFew = 8;  // numbers to read one by one: a number after a bad number is often bad too
  constexpr int64_t kBlock = 64;
  int64_t at = begin;
  for (const int64_t end = std::min(begin + kFew, n); at < end; ++at) {
    if (is_bad_at<Format>(data, at)) return at;
  }
  for (; at + kBlock <= n; at += kBlock) {
    U patterns[kBlock];
    std::memcpy(patterns, data + at * static_cast<int64_t>(sizeof(U)), sizeof(patterns));
    // Most blocks have no bad number, and the compiler vectorizes this loop.
    U any = 0;
    for (U pattern : patterns) any = static_cast<U>(any | static_cast<U>(is_bad<Format>(pattern)));
    if (any != 0) break;
  }
  while (at < n && !is_bad_at<Format>(data, at)) ++at;
  return at;
}

// `parts` is the number of numbers in an element: two if the element is complex.
template <class Format>
void find(const char* data, int64_t n, int64_t slice_size, int64_t parts, BadPlace* out) {
  const int64_t num_numbers = n * parts, numbers_in_slice = slice_size * parts;
  out->first = n;
  out->num_slices = 0;
  for (int64_t at = 0; at < num_numbers;) {
    const int64_t bad = next_bad<Format>(data, at, num_numbers);
    if (bad == num_numbers) break;
    if (out->num_slices++ == 0) out->first = bad / parts;
    at = (bad / numbers_in_slice + 1) * numbers_in_slice;
  }
}

}  // namespace

void find_bad(int dtype, const void* data, int64_t n, int64_t slice_size, BadPlace* out) {
  const auto* bytes = static_cast<const char*>(data);
  switch (dtype) {
    case 1: return find<Float32>(bytes, n, slice_size, 1, out);
    case 2: return find<Float64>(bytes, n, slice_size, 1, out);
    case 8: return find<Float32>(bytes, n, slice_size, 2, out);
    case 14: return find<BFloat16>(bytes, n, slice_size, 1, out);
    case 18: return find<Float64>(bytes, n, slice_size, 2, out);
    case 19: return find<Float16>(bytes, n, slice_size, 1, out);
    case 24: return find<Float8E5M2>(bytes, n, slice_size, 1, out);
    case 25: return find<Float8E4M3Fn>(bytes, n, slice_size, 1, out);
    case 26: return find<Float8E4M3Fnuz>(bytes, n, slice_size, 1, out);
    case 27: return find<Float8E4M3B11Fnuz>(bytes, n, slice_size, 1, out);
    case 28: return find<Float8E5M2Fnuz>(bytes, n, slice_size, 1, out);
    default: *out = {n, 0};  // other dtypes have no infinity and no NaN
  }
}

}  // namespace tfdbg_arrow
