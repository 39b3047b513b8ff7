#include "health_bench.h"

#include <chrono>
#include <cstring>
#include <limits>

#include "health.h"

namespace tfdbg_arrow {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kUnsupported = std::numeric_limits<double>::quiet_NaN();

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Written after each call, so that the compiler cannot remove a call.
volatile uint64_t sink;

}  // namespace

double time_count_health(int dtype, const void* data, int64_t n, int64_t repeats) {
  if (element_size(dtype) == 0) return kUnsupported;
  Health health{};
  const Clock::time_point start = Clock::now();
  for (int64_t i = 0; i < repeats; ++i) {
    count_health(dtype, data, n, &health);
    sink = static_cast<uint64_t>(health.num_zero);
  }
  return seconds_since(start);
}

double time_measure(int dtype, const void* data, int64_t n, int64_t repeats) {
  if (element_size(dtype) == 0) return kUnsupported;
  Health health{};
  Numerics numerics{};
  const Clock::time_point start = Clock::now();
  for (int64_t i = 0; i < repeats; ++i) {
    measure(dtype, data, n, &health, &numerics);
    sink = static_cast<uint64_t>(health.num_zero);
  }
  return seconds_since(start);
}

double time_count_histogram(int dtype, const void* data, int64_t n, int64_t repeats) {
  Health health{};
  Histogram histogram;
  if (!count_health(dtype, data, n, &health)) return kUnsupported;
  if (!count_histogram(dtype, data, n, health.num_zero, &histogram)) return kUnsupported;
  const Clock::time_point start = Clock::now();
  for (int64_t i = 0; i < repeats; ++i) {
    count_histogram(dtype, data, n, health.num_zero, &histogram);
    sink = static_cast<uint64_t>(histogram.num_buckets);
  }
  return seconds_since(start);
}

double time_read_sum(const void* data, int64_t bytes, int64_t repeats) {
  const Clock::time_point start = Clock::now();
  for (int64_t i = 0; i < repeats; ++i) sink = read_sum(data, bytes);
  return seconds_since(start);
}

double time_kernel(const char* name, int dtype, const void* data, int64_t bytes, int64_t repeats) {
  if (std::strcmp(name, "read_sum") == 0) return time_read_sum(data, bytes, repeats);
  const int64_t size = element_size(dtype);
  if (size == 0) return kUnsupported;
  if (std::strcmp(name, "count_health") == 0) return time_count_health(dtype, data, bytes / size, repeats);
  if (std::strcmp(name, "measure") == 0) return time_measure(dtype, data, bytes / size, repeats);
  if (std::strcmp(name, "count_histogram") == 0) return time_count_histogram(dtype, data, bytes / size, repeats);
  return kUnsupported;
}

}  // namespace tfdbg_arrow
