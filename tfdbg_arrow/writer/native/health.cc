#include "health.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "health_formats.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

// These options turn off fused multiply-add, so that all instruction sets compute the same bits. They turn on
// optimization also in a debug build. No code here traps floating-point exceptions, so the compiler may compute both
// sides of a selection; otherwise it would not vectorize loops with a selection.
#if defined(__clang__)
#pragma clang fp contract(off)
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("O3", "fp-contract=off", "no-trapping-math")
#endif

// The kernels are compiled once for each instruction set. This is function multi-versioning by hand, because
// ifunc-based target_clones does not exist on musl, macOS and Windows. HEALTH_BYTES is the width of a vector, 0 for
// scalar code. HEALTH_MASKED is 1 if a comparison makes a mask register.
#if defined(__GNUC__) && defined(__x86_64__)

#define HEALTH_NAMESPACE avx512
#define HEALTH_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define HEALTH_BYTES 64
#define HEALTH_MASKED 1
#define HEALTH_NARROWS 1
#include "health_kernels.inc"

#define HEALTH_NAMESPACE avx2
#define HEALTH_TARGET __attribute__((target("avx2")))
#define HEALTH_BYTES 32
#define HEALTH_MASKED 0
#define HEALTH_NARROWS 1
#include "health_kernels.inc"

#endif

#define HEALTH_NAMESPACE baseline
#define HEALTH_TARGET
#if defined(__GNUC__) && (defined(__SSE2__) || defined(__ARM_NEON)) && !defined(TFDBG_ARROW_HEALTH_PLAIN)
#define HEALTH_BYTES 16
#else
#define HEALTH_BYTES 0
#endif
#define HEALTH_MASKED 0
#if HEALTH_BYTES && defined(__SSE2__)
#define HEALTH_NARROWS 1
#else
#define HEALTH_NARROWS 0
#endif
#include "health_kernels.inc"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

namespace tfdbg_arrow {
namespace {

// Sets the default floating-point environment while this object exists, because TensorFlow's threads flush subnormal
// numbers to zero.
class DefaultFloatingPoint {
 public:
#if defined(__x86_64__) || defined(_M_X64)
  DefaultFloatingPoint() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~DefaultFloatingPoint() { _mm_setcsr(saved_); }

 private:
  unsigned int saved_;
#elif defined(__aarch64__) && defined(__GNUC__)
  DefaultFloatingPoint() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    __asm__ volatile("msr fpcr, %0" : : "r"(uint64_t{0}) : "memory");
  }
  ~DefaultFloatingPoint() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_) : "memory"); }

 private:
  uint64_t saved_;
#else
  DefaultFloatingPoint() {}
  ~DefaultFloatingPoint() {}
#endif

 public:
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;
};

const health::Kernels& choose() {
#if defined(__GNUC__) && defined(__x86_64__)
  // NOLINTNEXTLINE(concurrency-mt-unsafe): read once, and getenv has no replacement that is safe beside setenv
  const char* wanted = std::getenv("TFDBG_ARROW_HEALTH_KERNEL");
  if (wanted == nullptr) wanted = "";
  __builtin_cpu_init();
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool below_avx512 = std::strcmp(wanted, "avx2") == 0 || std::strcmp(wanted, "baseline") == 0;
  if (has_avx512 && !below_avx512) return health::avx512::kKernels;
  if (__builtin_cpu_supports("avx2") && std::strcmp(wanted, "baseline") != 0) return health::avx2::kKernels;
#endif
  return health::baseline::kKernels;
}

const health::Kernels& kernels() {
  static const health::Kernels& chosen = choose();
  return chosen;
}

}  // namespace

int64_t element_size(int dtype) {
  switch (dtype) {
    case 4: case 6: case 10: case 24: case 25: case 26: case 27: case 28: return 1;
    case 5: case 14: case 17: case 19: return 2;
    case 1: case 3: case 22: return 4;
    case 2: case 8: case 9: case 23: return 8;
    case 18: return 16;
    default: return 0;
  }
}

bool count_health(int dtype, const void* data, int64_t n, Health* out) {
  return kernels().count_health(dtype, static_cast<const char*>(data), n, out);
}

bool measure(int dtype, const void* data, int64_t n, Health* out, Numerics* numerics) {
  const DefaultFloatingPoint environment;
  return kernels().measure(dtype, static_cast<const char*>(data), n, out, numerics);
}

uint64_t read_sum(const void* data, int64_t bytes) {
  return kernels().read_sum(static_cast<const char*>(data), bytes);
}

const char* health_kernel_name() { return kernels().name; }

}  // namespace tfdbg_arrow
