// The event spool: a ring of records in a memory-mapped, preallocated file.
//
// Ownership: the session owns the spool. Threads: any number of threads append, and one thread drains. No lock is held
// while a record is written: a thread reserves slots with one compare-and-swap, fills them, and commits each slot by
// storing its sequence number. The file outlives the process, so that events committed before a kill can be read
// afterwards. For this purpose, a slot is reused only when its event is in sealed parts. Disk blocks are allocated when
// the file is created, so that a full disk causes an error at that time and never a signal later.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include "record.h"

namespace tfdbg_arrow {

constexpr char kSpoolMagic[8] = {'T', 'F', 'D', 'B', 'G', 'S', 'P', 'L'};
constexpr int64_t kSpoolHeaderSize = 4096;

struct SpoolHeader {
  char magic[8];
  uint32_t version;
  uint32_t record_size;
  uint64_t capacity;  // records, a power of two
  int64_t pid;
  alignas(64) std::atomic<uint64_t> head;  // sequence number of the next record to reserve
  alignas(64) std::atomic<uint64_t> tail;  // all events before this sequence number are in sealed parts
  alignas(64) std::atomic<int64_t> values_tail;  // the same for an offset in the value spool
  std::atomic<int64_t> rows_tail;                // the same for an offset in the journal of rows
};

static_assert(sizeof(SpoolHeader) <= kSpoolHeaderSize, "the header fits its page");

class Spool {
 public:
  // Creates `path` with room for `capacity` records (rounded up to a power of two). The last argument sets whether
  // threads wait for room.
  // Throws std::system_error if the file cannot be created or the disk is full.
  Spool(const std::string& path, uint64_t capacity, bool waits);
  ~Spool();
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  // Reserves `count` consecutive slots without waiting. Returns false if there is no room.
  bool try_reserve(uint64_t count, uint64_t* sequence);
  // Waits until `count` slots are free. Returns false if no record was drained for `kStallTimeout`. After that, it
  // returns without waiting until the next record is drained. Never waits if the spool was created without waiting.
  bool wait_for_room(uint64_t count);
  // Returns the slot of a reserved sequence number; its `commit` is 0.
  Record* slot(uint64_t sequence) { return &records_[sequence & mask_]; }
  // Publishes a filled slot.
  void commit(uint64_t sequence);
  // Fills a reserved slot and publishes it.
  void fill(uint64_t sequence, const Record& record);
  // Wakes the drain at once, because of a bad value or because the recording ends.
  void signal_urgent();

  // Copies up to `count` committed records, in order, to `out`; their slots stay in use until release().
  uint64_t drain(Record* out, uint64_t count);
  // Frees the slots before a drained sequence number, and notes which rows are in sealed parts.
  void release(uint64_t upto, int64_t rows_upto);
  void note_released_values(int64_t upto) { header_->values_tail.store(upto, std::memory_order_release); }
  // Waits until a bad value is signaled (returns true), `pending` records are waiting, or the timeout expires.
  bool wait(double timeout_s, uint64_t pending);

  // Returns the number of records that wait to be drained.
  uint64_t pending() const;
  // Returns the number of slots that can be reserved now.
  uint64_t num_free() const;
  uint64_t capacity() const { return capacity_; }
  uint64_t head() const { return header_->head.load(std::memory_order_acquire); }
  void count_dropped(uint64_t count) { dropped_.fetch_add(count, std::memory_order_relaxed); }
  uint64_t num_dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  // Removes the pages of released slots from the memory of the process.
  void drop_pages(uint64_t from, uint64_t upto);

  std::string path_;
  SpoolHeader* header_ = nullptr;
  Record* records_ = nullptr;
  uint64_t capacity_ = 0;
  uint64_t mask_ = 0;
  uint64_t mapped_size_ = 0;
  bool waits_;
  std::atomic<uint64_t> read_{0};  // sequence number of the next record to drain
  std::atomic<uint64_t> dropped_{0};
  std::atomic<bool> urgent_{false};
  std::atomic<bool> stalled_{false};
  std::atomic<uint64_t> wake_at_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace tfdbg_arrow
