// One event in the spool: 256 bytes, little-endian. The Python side reads the same layout as
// tfdbg_arrow.spool.records.RECORD_DTYPE; a test compares the two field by field.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tfdbg_arrow {

constexpr int kNumInlineDims = 4;
constexpr int kPayloadLength = 19;
constexpr int64_t kNoValue = -1;
constexpr int64_t kNoStep = INT64_MIN;

enum Kind : uint8_t {
  kGraphTensor = 1,
  kExecutionTensor = 2,
  kExternalTensor = 3,
  kExecution = 4,
  kExecutionEnd = 5,
  kInputs = 6,
  kDims = 7,
  kExecutionError = 8,
  kInputValue = 9,
  kHistogram = 10,
  kStepInput = 11,
};

enum Flag : int32_t {
  kCovered = 1,
  kShape = 2,
  kBad = 4,
  kCounts = 8,
  kSigns = 16,
  kNumerics = 32,
  kOrdered = 64,
  kAnyFinite = 128,
  kValue = 256,
  kChecked = 512,
  kContext = 1024,
  kHistogramCounted = 2048,
  kPlaced = 4096,
  kScalar = 8192,
};
// The bits of `flags` from this bit on are the number of buckets of the histogram. Its counts follow in HISTOGRAM
// records.
constexpr int kBucketsShift = 16;

// The facts that a tensor record holds besides the fields that all kinds share.
struct TensorFacts {
  int64_t dims[kNumInlineDims];
  int64_t first_bad_index;  // this field and the next only with kPlaced
  int64_t num_bad_slices;   // kNoValue for a scalar
  int64_t num_neg_inf;
  int64_t num_pos_inf;
  int64_t num_nan;
  int64_t num_neg_finite;
  int64_t num_zero;
  int64_t num_pos_finite;
  int64_t num_subnormal;
  double min;
  double max;  // with kScalar, the only element, even if it is not finite
  double mean;
  double stddev;
  double max_abs;
  int64_t value_bytes;  // size of the kept elements
};

// Returns the size in bytes of one count in the histogram of a tensor with `size` elements.
constexpr int64_t histogram_width(int64_t size) {
  return size < (int64_t{1} << 8) ? 1 : size < (int64_t{1} << 16) ? 2 : size < (int64_t{1} << 32) ? 4 : 8;
}

struct Record {
  // event_index + 1, stored last with release order. Any other value means that the record is not written yet.
  uint64_t commit;
  int64_t wall_time_ns;
  uint8_t kind;
  uint8_t rank;
  int16_t dtype;
  int32_t flags;
  int32_t node;
  int32_t call_site;
  int32_t device;
  int32_t slot;
  int64_t step_id;
  int64_t execution_index;
  int64_t frame_id;
  int64_t iteration;
  union {
    int64_t tensor_id;       // of an eager tensor
    int64_t executed_graph;  // of a graph tensor: the optimized graph that it was computed in
  };
  int64_t step;
  int64_t size;
  int64_t value_offset;
  union {
    TensorFacts tensor;
    int64_t payload[kPayloadLength];
  };
};

static_assert(sizeof(Record) == 256, "a record is 256 bytes");
static_assert(offsetof(Record, payload) == 104, "the payload starts at byte 104");

}  // namespace tfdbg_arrow
