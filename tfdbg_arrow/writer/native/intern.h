// Strings by small ids: op types, devices, call sites. Process-wide, append-only; id 0 is "".
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tfdbg_arrow {

class StringTable {
 public:
  StringTable() { intern(""); }

  int32_t intern(std::string_view text) {
    {
      std::shared_lock<std::shared_mutex> lock(mutex_);
      auto found = ids_.find(text);
      if (found != ids_.end()) return found->second;
    }
    std::unique_lock<std::shared_mutex> lock(mutex_);
    auto found = ids_.find(text);
    if (found != ids_.end()) return found->second;
    strings_.emplace_back(text);  // a deque never moves its elements: the views stay valid
    auto id = static_cast<int32_t>(strings_.size() - 1);
    ids_.emplace(std::string_view(strings_.back()), id);
    return id;
  }

  std::vector<std::string> since(size_t start) const {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    if (start >= strings_.size()) return {};
    return {strings_.begin() + static_cast<std::ptrdiff_t>(start), strings_.end()};
  }

 private:
  mutable std::shared_mutex mutex_;
  std::deque<std::string> strings_;
  std::unordered_map<std::string_view, int32_t> ids_;
};

}  // namespace tfdbg_arrow
