// The function calls that are running, with the memory of their arguments.
//
// A kernel does not know in which call it runs, because TensorFlow creates the step ID inside the call. But the op that
// records an argument sees the buffer that the caller passed. The address of this buffer identifies the call if two
// threads run the same function at once.
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
  // `arguments[i]` is the address of argument i; null if the address is unknown.
  void add(int64_t execution_index, std::vector<const void*> arguments) {
    std::lock_guard<std::mutex> lock(mutex_);
    calls_.push_back({execution_index, std::move(arguments)});
  }

  void remove(int64_t execution_index) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto ended = [=](const Call& call) { return call.execution_index == execution_index; };
    calls_.erase(std::remove_if(calls_.begin(), calls_.end(), ended), calls_.end());
  }

  // Returns the only call whose argument `index` is at `data`; -1 if no call or several calls have such an argument.
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

  // Returns whether any call has an argument at `data`.
  bool has_argument(const void* data) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::any_of(calls_.begin(), calls_.end(), [=](const Call& call) {
      return std::any_of(call.arguments.begin(), call.arguments.end(), [=](const void* argument) { return argument == data; });
    });
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
