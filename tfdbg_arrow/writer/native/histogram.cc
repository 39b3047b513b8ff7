// The histogram kernel: counts finite elements by their sign and power of two.
//
// How counting works: the upper bits of a bit pattern, sign and exponent, are the index of a counter. An increment of a
// counter must wait for an earlier write to this counter. So there are several copies of the counters, which
// neighboring elements use in turn. Subnormal numbers share one exponent, so a second pass over the elements counts
// them by their highest bit. This pass runs only if there are subnormal numbers. All instruction sets run the same
// code, because vectors do not make the counting faster.
#include <algorithm>
#include <cstring>

#include "health.h"
#include "health_formats.h"

namespace tfdbg_arrow {
namespace {

using namespace health;

// With fewer elements, clearing the copies and adding them up takes longer than the time that the copies save.
constexpr int64_t kFewElements = 512;
// Number of elements that are counted before the 32-bit counters are added up.
constexpr int64_t kMaxCounted = int64_t{1} << 31;

template <class Format>
struct Layout {
  using U = typename Format::Unsigned;
  static constexpr int kBits = 8 * static_cast<int>(sizeof(U));
  // Some formats of 8 bits have finite numbers and NaN with the same exponent, so their whole pattern is the index.
  static constexpr bool kIsWhole = sizeof(U) == 1;
  static constexpr int kShift = kIsWhole ? 0 : Format::kMantissaBits;
  static constexpr int kIndexes = 1 << (kBits - kShift);
  static constexpr int kCopies = kIndexes > 1024 ? 2 : 8;
  // Buckets from the least subnormal number to the greatest number. The buckets of subnormal numbers come first.
  static constexpr int kFirstExponent = 1 - Format::kBias - Format::kMantissaBits;
  static constexpr int kFields = static_cast<int>(Format::kTop >> Format::kMantissaBits) + 1;
  static constexpr int kBuckets = Format::kMantissaBits + kFields - 1;
};

static_assert(Layout<Float64>::kBuckets == kMaxHistogramBuckets, "float64 has the most buckets");

template <class T>
int highest_bit(T magnitude) {
#if defined(__GNUC__)
  return 63 - __builtin_clzll(static_cast<unsigned long long>(magnitude));
#else
  int bit = 0;
  while (magnitude >>= 1) ++bit;
  return bit;
#endif
}

template <class Format>
void count_few(const char* data, int64_t n, int64_t* totals) {
  for (int64_t i = 0; i < n; ++i) {
    typename Format::Unsigned pattern;
    std::memcpy(&pattern, data + i * static_cast<int64_t>(sizeof(pattern)), sizeof(pattern));
    ++totals[pattern >> Layout<Format>::kShift];
  }
}

// Adds the elements to totals[index]; at most kMaxCounted.
template <class Format>
void count_many(const char* data, int64_t n, int64_t* totals) {
  using L = Layout<Format>;
  using U = typename L::U;
  uint32_t copies[L::kCopies][L::kIndexes] = {};
  // Words of 64 bits, because loads are as scarce as stores.
  constexpr int kInWord = 8 / static_cast<int>(sizeof(U));
  constexpr int64_t kStride = std::max(kInWord, L::kCopies);
  int64_t i = 0;
  for (; i + kStride <= n; i += kStride) {
    for (int w = 0; w < kStride / kInWord; ++w) {
      uint64_t word;
      std::memcpy(&word, data + i * static_cast<int64_t>(sizeof(U)) + int64_t{w} * 8, 8);
      for (int k = 0; k < kInWord; ++k) {
        const auto pattern = static_cast<U>(word >> (k * L::kBits));
        ++copies[(w * kInWord + k) % L::kCopies][pattern >> L::kShift];
      }
    }
  }
  count_few<Format>(data + i * static_cast<int64_t>(sizeof(U)), n - i, totals);
  for (int index = 0; index < L::kIndexes; ++index) {
    uint64_t sum = 0;
    for (int copy = 0; copy < L::kCopies; ++copy) sum += copies[copy][index];
    totals[index] += static_cast<int64_t>(sum);
  }
}

// Adds the subnormal elements to the buckets of their sign, by their highest bit.
template <class Format>
void count_subnormal(const char* data, int64_t n, int64_t (*counts)[2]) {
  using U = typename Layout<Format>::U;
  constexpr U kMagnitude = static_cast<U>(Format::kMagnitude);
  auto is_subnormal = [](U pattern) {
    // One comparison, because zero wraps around.
    return static_cast<U>((pattern & kMagnitude) - 1) < static_cast<U>(Format::kMinNormal - 1);
  };
  constexpr int64_t kBlock = 64;
  for (int64_t done = 0; done < n; done += kBlock) {
    U patterns[kBlock] = {};
    const int64_t block = std::min(kBlock, n - done);
    std::memcpy(patterns, data + done * static_cast<int64_t>(sizeof(U)), static_cast<size_t>(block) * sizeof(U));
    // Most blocks have no subnormal number, and the compiler vectorizes this loop.
    U any = 0;
    for (U pattern : patterns) any |= is_subnormal(pattern);
    if (any == 0) continue;
    for (U pattern : patterns) {
      if (is_subnormal(pattern)) ++counts[highest_bit(pattern & kMagnitude)][pattern > kMagnitude ? 0 : 1];
    }
  }
}

template <class Format>
void count_format(const char* data, int64_t n, int64_t num_zero, Histogram* out) {
  using L = Layout<Format>;
  int64_t totals[L::kIndexes] = {};
  if (n < kFewElements) {
    count_few<Format>(data, n, totals);
  } else {
    for (int64_t done = 0; done < n; done += kMaxCounted) {
      const char* start = data + done * static_cast<int64_t>(sizeof(typename L::U));
      count_many<Format>(start, std::min(kMaxCounted, n - done), totals);
    }
  }
  int64_t subnormal[Format::kMantissaBits][2] = {};
  const int64_t* sides[2] = {totals + L::kIndexes / 2, totals};
  if constexpr (L::kIsWhole) {
    // Turns the counters by pattern into counters by exponent, which the other formats have.
    for (int side = 0; side < 2; ++side) {
      for (int magnitude = 1; magnitude < Format::kMinNormal; ++magnitude) {
        subnormal[highest_bit(magnitude)][side] += sides[side][magnitude];
      }
    }
  } else if (sides[0][0] + sides[1][0] != num_zero) {
    count_subnormal<Format>(data, n, subnormal);
  }
  auto count_of = [&](int bucket, int side) {
    if (bucket < Format::kMantissaBits) return subnormal[bucket][side];
    const int field = bucket - Format::kMantissaBits + 1;
    if constexpr (L::kIsWhole) {
      const int begin = field << Format::kMantissaBits;
      const int end = std::min(begin + Format::kMinNormal, Format::kTop + 1);
      int64_t sum = 0;
      for (int magnitude = begin; magnitude < end; ++magnitude) sum += sides[side][magnitude];
      return sum;
    } else {
      return sides[side][field];
    }
  };
  int first = 0;
  while (first < L::kBuckets && (count_of(first, 0) | count_of(first, 1)) == 0) ++first;
  int end = L::kBuckets;
  while (end > first && (count_of(end - 1, 0) | count_of(end - 1, 1)) == 0) --end;
  out->exponent = L::kFirstExponent + first;
  out->num_buckets = end - first;
  for (int bucket = first; bucket < end; ++bucket) {
    for (int side = 0; side < 2; ++side) out->counts[bucket - first][side] = count_of(bucket, side);
  }
}

}  // namespace

bool count_histogram(int dtype, const void* data, int64_t n, int64_t num_zero, Histogram* out) {
  const auto* bytes = static_cast<const char*>(data);
  switch (dtype) {
    case 1: count_format<Float32>(bytes, n, num_zero, out); return true;
    case 2: count_format<Float64>(bytes, n, num_zero, out); return true;
    case 14: count_format<BFloat16>(bytes, n, num_zero, out); return true;
    case 19: count_format<Float16>(bytes, n, num_zero, out); return true;
    case 24: count_format<Float8E5M2>(bytes, n, num_zero, out); return true;
    case 25: count_format<Float8E4M3Fn>(bytes, n, num_zero, out); return true;
    case 26: count_format<Float8E4M3Fnuz>(bytes, n, num_zero, out); return true;
    case 27: count_format<Float8E4M3B11Fnuz>(bytes, n, num_zero, out); return true;
    case 28: count_format<Float8E5M2Fnuz>(bytes, n, num_zero, out); return true;
    default: return false;
  }
}

}  // namespace tfdbg_arrow
