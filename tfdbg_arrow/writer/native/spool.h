// The event spool: a ring of records in a memory-mapped, preallocated file.
//
// Ownership: the session owns it. Threads: any number append, one drains. Nothing is locked while a
// record is written: a thread reserves slots with one compare-and-swap, fills them and commits each
// by storing its sequence number. The file outlives the process, so that what was committed before
// a kill can be read afterwards: a slot is used again only once what it held is in sealed parts. Disk blocks are allocated when it is created: a full disk is an
// error there, never a signal later.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include "record.h"

namespace tfdbg_arrow {

constexpr char kSpoolMagic[8] = {'T', 'F', 'D', 'B', 'G', 'S', 'P', 'L'};
constexpr uint32_t kSpoolVersion = 2;
constexpr int64_t kSpoolHeaderSize = 4096;

struct SpoolHeader {
  char magic[8];
  uint32_t version;
  uint32_t record_size;
  uint64_t capacity;  // records, a power of two
  int64_t pid;
  alignas(64) std::atomic<uint64_t> head;  // sequence number of the next record to reserve
  alignas(64) std::atomic<uint64_t> tail;  // everything before this sequence number is in sealed parts
  alignas(64) std::atomic<int64_t> values_tail;  // likewise, an offset in the value spool
  std::atomic<int64_t> rows_tail;                // likewise, an offset in the journal of rows
};

static_assert(sizeof(SpoolHeader) <= kSpoolHeaderSize, "the header fits its page");

class Spool {
 public:
  // Creates `path` with room for `capacity` records (rounded up to a power of two). Whoever finds no room then waits for
  // it, or does not.
  // Throws std::system_error if the file cannot be made or the disk is full.
  Spool(const std::string& path, uint64_t capacity, bool waits);
  ~Spool();
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  // Reserves `count` consecutive slots without waiting. Returns false if there is no room.
  bool try_reserve(uint64_t count, uint64_t* sequence);
  // Waits until `count` slots are free, but not for ever: returns false when nothing was drained for
  // `kStallTimeout`, and at once from then on until something is; always at once in a spool that does not wait.
  bool wait_for_room(uint64_t count);
  // The slot of a reserved sequence number; its `commit` is 0.
  Record* slot(uint64_t sequence) { return &records_[sequence & mask_]; }
  // Publishes a filled slot.
  void commit(uint64_t sequence);
  // Fills a reserved slot and publishes it.
  void fill(uint64_t sequence, const Record& record);
  // Wakes the drain at once: a bad value was seen.
  void signal_urgent();

  // Copies up to `count` committed records, in order, to `out`; their slots stay theirs until they are released.
  uint64_t drain(Record* out, uint64_t count);
  // Frees the slots before a sequence number that was drained, and notes what of the rows is in sealed parts.
  void release(uint64_t upto, int64_t rows_upto);
  void note_released_values(int64_t upto) { header_->values_tail.store(upto, std::memory_order_release); }
  // Blocks until a bad value was signalled (true), `pending` records wait, or the time is out.
  bool wait(double timeout_s, uint64_t pending);

  // Records that wait to be drained.
  uint64_t pending() const;
  // Slots that can be reserved now.
  uint64_t num_free() const;
  uint64_t capacity() const { return capacity_; }
  uint64_t head() const { return header_->head.load(std::memory_order_acquire); }
  void count_dropped(uint64_t count) { dropped_.fetch_add(count, std::memory_order_relaxed); }
  uint64_t num_dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
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
