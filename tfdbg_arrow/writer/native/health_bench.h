// Times the health kernels in C++, without the cost of calls from Python.
#ifndef TFDBG_ARROW_WRITER_NATIVE_HEALTH_BENCH_H_
#define TFDBG_ARROW_WRITER_NATIVE_HEALTH_BENCH_H_

#include <cstdint>

namespace tfdbg_arrow {

// Return the seconds that `repeats` calls over the same data take; NaN if the dtype is not supported.
double time_count_health(int dtype, const void* data, int64_t n, int64_t repeats);
double time_measure(int dtype, const void* data, int64_t n, int64_t repeats);
double time_count_histogram(int dtype, const void* data, int64_t n, int64_t repeats);
double time_read_sum(const void* data, int64_t bytes, int64_t repeats);

// Returns the time of the kernel `name` ("count_health", "count_histogram", "measure", "read_sum") over `bytes` bytes.
// It is NaN if there is no such kernel, or if the kernel does not support the dtype. The kernel read_sum ignores the
// dtype.
double time_kernel(const char* name, int dtype, const void* data, int64_t bytes, int64_t repeats);

}  // namespace tfdbg_arrow

#endif  // TFDBG_ARROW_WRITER_NATIVE_HEALTH_BENCH_H_
