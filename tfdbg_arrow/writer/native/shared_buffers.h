// The tensors that one run of a kernel has measured, so that those that share a buffer are measured once.
// TensorFlow holds all inputs of a kernel until it returns, and writes to no buffer that anybody else holds: what is at
// the same place, of the same dtype and size, has the same elements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "record.h"

namespace tfdbg_arrow {

class SharedBuffers {
 public:
  // One a thread, and empty: a kernel must not allocate for each run.
  static SharedBuffers& of_thread() {
    thread_local SharedBuffers buffers;
    buffers.measured_.clear();
    return buffers;
  }

  // The record of a tensor with the same elements; null where none is known.
  const Record* find(const void* data, int dtype, int64_t size) const {
    if (size < kMinSharedSize) return nullptr;
    auto last = measured_.rbegin();
    for (const auto end = last + std::min<ptrdiff_t>(measured_.rend() - last, kMaxLooks); last != end; ++last) {
      const auto& [place, record] = *last;
      if (place == data && record.dtype == dtype && record.size == size) return &record;
    }
    return nullptr;
  }

  void add(const void* data, const Record& record) {
    if (record.size >= kMinSharedSize && (record.flags & kChecked) != 0) measured_.emplace_back(data, record);
  }

 private:
  // Smaller tensors are measured again sooner than looked up: elements.
  static constexpr int64_t kMinSharedSize = 1 << 9;
  // At how many others it is looked.
  static constexpr ptrdiff_t kMaxLooks = 32;

  std::vector<std::pair<const void*, Record>> measured_;
};

}  // namespace tfdbg_arrow
