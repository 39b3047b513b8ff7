// The calls of functions that are in flight, with the memory of their arguments.
//
// A kernel cannot know which call it runs in: TensorFlow's step id is made inside the call. But the op that
// records an argument sees the very buffer that the caller passed in. Where two threads are inside the same
// function at once, that tells their calls apart.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace tfdbg_arrow {

class CallsInFlight {
 public:
  // `arguments[i]` is the address of argument i, null where it is not known.
  void add(int64_t execution_index, std::vector<const void*> arguments) {
    std::lock_guard<std::mutex> lock(mutex_);
    calls_.push_back({execution_index, std::move(arguments)});
  }

  void remove(int64_t execution_index) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto ended = [=](const Call& call) { return call.execution_index == execution_index; };
    calls_.erase(std::remove_if(calls_.begin(), calls_.end(), ended), calls_.end());
  }

  // The one call whose argument `index` is at `data`; -1 where there is none or more than one.
  int64_t find(size_t index, const void* data) const {
    if (data == nullptr) return -1;
    std::lock_guard<std::mutex> lock(mutex_);
    int64_t found = -1;
    for (const Call& call : calls_) {
      if (index >= call.arguments.size() || call.arguments[index] != data) continue;
      if (found != -1) return -1;
      found = call.execution_index;
    }
    return found;
  }

 private:
  struct Call {
    int64_t execution_index;
    std::vector<const void*> arguments;
  };

  mutable std::mutex mutex_;
  std::vector<Call> calls_;
};

}  // namespace tfdbg_arrow
