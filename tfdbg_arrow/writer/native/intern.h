// Assigns small IDs to strings: op types, devices, call sites. Process-wide and append-only; ID 0 is "".
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "journal.h"

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
    write_to_journal(id);  // before any record can refer to it
    ids_.emplace(std::string_view(strings_.back()), id);
    return id;
  }

  // Writes the existing strings to a journal, and from then on each new string. A descriptor of -1 means no journal.
  // Returns false if a string could not be written.
  bool set_journal(int fd) {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    journal_ = fd;
    unwritten_.clear();
    for (size_t id = 0; id < strings_.size(); ++id) write_to_journal(static_cast<int32_t>(id));
    return unwritten_.empty();
  }

  // For a fork: hold the lock while the process forks, so that the child gets a complete table.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  // For the child. A lock belongs to a thread id. The child's thread has another id, so the child makes a new lock.
  void renew_lock() { new (&mutex_) std::shared_mutex; }

  // For a forked child. Points the child's descriptor to another file, so that only the parent holds the lock on the
  // journal, and writes of the child are discarded.
  void forget_journal() {
    let_go_of(journal_);
    journal_ = -1;
  }

  // Writes the strings that are missing in the current journal, as far as possible. Returns how many are still missing.
  size_t write_unwritten() {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    std::vector<int32_t> ids;
    ids.swap(unwritten_);
    for (int32_t id : ids) write_to_journal(id);
    return unwritten_.size();
  }

  std::vector<std::string> since(size_t start) const {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    if (start >= strings_.size()) return {};
    return {strings_.begin() + static_cast<std::ptrdiff_t>(start), strings_.end()};
  }

 private:
  void write_to_journal(int32_t id) {
    if (journal_ < 0) return;
    if (!write_string_entry(journal_, static_cast<uint32_t>(id), strings_[static_cast<size_t>(id)])) {
      unwritten_.push_back(id);
    }
  }

  int journal_ = -1;
  std::vector<int32_t> unwritten_;
  mutable std::shared_mutex mutex_;
  std::deque<std::string> strings_;
  std::unordered_map<std::string_view, int32_t> ids_;
};

}  // namespace tfdbg_arrow
