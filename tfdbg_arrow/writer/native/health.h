// Health of a tensor: what its elements are, counted and measured.
//
// `reference.py` beside this file defines the meaning of every number; these functions compute the same
// ones fast. Nothing here needs Python or TensorFlow, allocates, throws or takes a lock: any thread may call.
#ifndef TFDBG_ARROW_WRITER_NATIVE_HEALTH_H_
#define TFDBG_ARROW_WRITER_NATIVE_HEALTH_H_

#include <cstdint>

namespace tfdbg_arrow {

// How many elements are of each kind. The six counts sum to the number of elements.
struct Health {
  int64_t num_neg_inf, num_pos_inf, num_nan, num_neg_finite, num_zero, num_pos_finite;
};

// Magnitudes over the finite elements, as float64.
struct Numerics {
  int64_t num_subnormal;  // complex: finite elements of which either part is subnormal
  double min, max, mean, stddev;  // population standard deviation; 0 where not `ordered`
  double max_abs;  // complex: the largest modulus; 0 where not `any_finite`
  bool any_finite;  // max_abs exists
  bool ordered;  // min, max, mean and stddev exist: a real dtype with a finite element
};

// Bytes of one element of a TensorFlow DataType; 0 where the kernels do not support it.
int64_t element_size(int dtype);

// Counts the kinds of `n` elements at `data`, which needs no alignment. False: dtype not supported, `out`
// untouched. Works on bit patterns: the floating-point environment (flush to zero, rounding) plays no role.
bool count_health(int dtype, const void* data, int64_t n, Health* out);

// As count_health, and measures the finite elements. Computes in the default floating-point environment and
// restores the caller's. The result is the same on every run and every x86-64 instruction set.
bool measure(int dtype, const void* data, int64_t n, Health* out, Numerics* numerics);

// Sum (mod 2^64) of the 64-bit words at `data`, the last one filled up with zero bytes: a plain memory read,
// the yardstick of benchmarks/kernel.py.
uint64_t read_sum(const void* data, int64_t bytes);

// Name of the instruction set in use: "avx512", "avx2" or "baseline" on x86-64, "baseline" elsewhere. The
// best that the processor has, or the one that the environment variable TFDBG_ARROW_HEALTH_KERNEL named (if the
// processor has it) when the first kernel was called.
const char* health_kernel_name();

}  // namespace tfdbg_arrow

#endif  // TFDBG_ARROW_WRITER_NATIVE_HEALTH_H_
