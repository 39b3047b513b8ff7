// The health of a tensor: counts and magnitudes of its elements.
//
// `reference.py` in this directory defines the counts, and `tests/writer/magnitudes.py` the magnitudes. The functions
// here compute the same numbers faster. They need neither Python nor TensorFlow. They do not allocate memory, throw or
// take a lock, so any thread may call them.
#ifndef TFDBG_ARROW_WRITER_NATIVE_HEALTH_H_
#define TFDBG_ARROW_WRITER_NATIVE_HEALTH_H_

#include <cstdint>

#include "measures.h"

namespace tfdbg_arrow {

// Magnitudes of the finite elements, as float64. The first six counts of `Health` add up to the number of elements.
// `num_subnormal` of a complex dtype counts the finite elements with a subnormal part. `stddev` is that of a
// population. `min`, `max`, `mean` and `stddev` are 0 if not `ordered`. `max_abs` is the largest modulus of a complex
// dtype, and 0 if not `any_finite`.
struct Numerics : Magnitudes {
  bool any_finite;  // max_abs exists
  bool ordered;  // min, max, mean and stddev exist: a real dtype with a finite element
};

// The finite elements other than zero, by their sign and power of two. Bucket i counts the magnitudes from
// 2^(exponent + i) up to, but not including, the next power of two. The first and the last bucket are not empty.
constexpr int kMaxHistogramBuckets = 2098;  // of float64, which has magnitudes from 2^-1074 to below 2^1024
struct Histogram {
  int exponent;  // undefined if there are no buckets
  int num_buckets;
  int64_t counts[kMaxHistogramBuckets][2];  // only the first num_buckets: negative and positive elements
};

// Returns the size of an element of a TensorFlow DataType in bytes; 0 if the kernels do not support it.
int64_t element_size(int dtype);

// Counts the elements of each kind among the `n` elements at `data`, which needs no alignment. Returns false and leaves
// `out` unchanged if the dtype is not supported. Works on bit patterns, and so does not depend on the floating-point
// environment (flush to zero, rounding).
bool count_health(int dtype, const void* data, int64_t n, Health* out);

// Counts like count_health(), and also measures the finite elements. Computes in the default floating-point
// environment, and then restores the caller's environment. The result is the same in every run and for every
// instruction set. Only the last bit of the largest modulus depends on the C library, whose std::hypot computes it.
bool measure(int dtype, const void* data, int64_t n, Health* out, Numerics* numerics);

// Counts the finite elements by their sign and power of two. `num_zero` is the count of count_health() for the same
// elements. Returns false and leaves `out` unchanged if the dtype is not a real floating-point type. Works on bit
// patterns, like count_health().
bool count_histogram(int dtype, const void* data, int64_t n, int64_t num_zero, Histogram* out);

// Reads the only element of a tensor exactly, but any NaN becomes a quiet NaN, and -0 becomes 0. Returns false and
// leaves `out` unchanged if the dtype is not a real floating-point type. Works on bit patterns, like count_health().
bool read_scalar(int dtype, const void* data, double* out);

// The positions of the infinite and NaN elements of a tensor.
struct BadPlace {
  int64_t first;       // index of the first bad element; the number of elements if no element is bad
  int64_t num_slices;  // number of slices with a bad element
};

// Finds the elements that count_health() counts as infinite or NaN. Call it only for a tensor that has such an element.
// A slice has `slice_size` elements, at least 1. Works on bit patterns, like count_health().
void find_bad(int dtype, const void* data, int64_t n, int64_t slice_size, BadPlace* out);

// Returns the sum (mod 2^64) of the 64-bit words at `data`; the last word is padded with zero bytes. This plain memory
// read is the baseline of benchmarks/kernel.py.
uint64_t read_sum(const void* data, int64_t bytes);

// Returns the name of the instruction set in use: "avx512", "avx2" or "baseline" on x86-64, "baseline" elsewhere. It is
// the best set of the processor. If the environment variable TFDBG_ARROW_HEALTH_KERNEL named a set of the processor at
// the first call of a kernel, it is that set.
const char* health_kernel_name();

}  // namespace tfdbg_arrow

#endif  // TFDBG_ARROW_WRITER_NATIVE_HEALTH_H_
