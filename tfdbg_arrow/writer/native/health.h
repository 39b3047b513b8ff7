// The health of a tensor: counts and magnitudes of its elements.
//
// `reference.py` in this directory defines every number. These functions compute the same numbers fast. They do not
// need Python or TensorFlow, and do not allocate, throw or take a lock, so any thread may call them.
#ifndef TFDBG_ARROW_WRITER_NATIVE_HEALTH_H_
#define TFDBG_ARROW_WRITER_NATIVE_HEALTH_H_

#include <cstdint>

namespace tfdbg_arrow {

// The number of elements of each kind. The six counts add up to the number of elements.
struct Health {
  int64_t num_neg_inf, num_pos_inf, num_nan, num_neg_finite, num_zero, num_pos_finite;
};

// Magnitudes of the finite elements, as float64.
struct Numerics {
  int64_t num_subnormal;  // complex: finite elements with a subnormal part
  double min, max, mean, stddev;  // population standard deviation; 0 if not `ordered`
  double max_abs;  // complex: the largest modulus; 0 if not `any_finite`
  bool any_finite;  // max_abs exists
  bool ordered;  // min, max, mean and stddev exist: a real dtype with a finite element
};

// The finite elements other than zero, by their sign and power of two: bucket i has the magnitudes from
// 2^(exponent + i) up to, but not including, the next power. The first and the last bucket have elements.
constexpr int kMaxHistogramBuckets = 2098;  // of float64, which has magnitudes from 2^-1074 to below 2^1024
struct Histogram {
  int exponent;  // undefined if there are no buckets
  int num_buckets;
  int64_t counts[kMaxHistogramBuckets][2];  // of the first num_buckets: negative, positive elements
};

// Returns the size of an element of a TensorFlow DataType in bytes; 0 if the kernels do not support it.
int64_t element_size(int dtype);

// Counts the kinds of `n` elements at `data`, which needs no alignment. Returns false and leaves `out` unchanged if the
// dtype is not supported. Works on bit patterns, independent of the floating-point environment (flush to zero,
// rounding).
bool count_health(int dtype, const void* data, int64_t n, Health* out);

// Like count_health, and also measures the finite elements. Computes in the default floating-point environment, and
// restores the caller's. The result is the same in every run and for every instruction set. Only the last bit of the
// largest modulus depends on the C library, whose std::hypot computes it.
bool measure(int dtype, const void* data, int64_t n, Health* out, Numerics* numerics);

// Counts the finite elements by their sign and power of two. `num_zero` is the count of count_health() for the same
// elements. Returns false and leaves `out` unchanged if the dtype is not a real floating-point type. Works on bit
// patterns, like count_health().
bool count_histogram(int dtype, const void* data, int64_t n, int64_t num_zero, Histogram* out);

// Reads the only element of a tensor: exactly, a NaN as a quiet one, and -0 as 0. Returns false and leaves `out` unchanged
// if the dtype is not a real floating-point type. Works on bit patterns, like count_health().
bool read_scalar(int dtype, const void* data, double* out);

// Where the infinite and NaN elements of a tensor are.
struct BadPlace {
  int64_t first;       // index of the first one; the number of elements if there is none
  int64_t num_slices;  // how many slices have one
};

// Finds the elements that count_health() counts as infinite or NaN. Call it only for a tensor that has one. A slice has
// `slice_size` elements, at least 1. Works on bit patterns, like count_health().
void find_bad(int dtype, const void* data, int64_t n, int64_t slice_size, BadPlace* out);

// Returns the sum (mod 2^64) of the 64-bit words at `data`, with the last one padded with zero bytes. This plain memory
// read is the baseline of benchmarks/kernel.py.
uint64_t read_sum(const void* data, int64_t bytes);

// Returns the name of the instruction set in use: "avx512", "avx2" or "baseline" on x86-64, "baseline" elsewhere. It is
// the best one that the processor has, or the value of the environment variable TFDBG_ARROW_HEALTH_KERNEL at the first
// call of a kernel, if the processor has it.
const char* health_kernel_name();

}  // namespace tfdbg_arrow

#endif  // TFDBG_ARROW_WRITER_NATIVE_HEALTH_H_
