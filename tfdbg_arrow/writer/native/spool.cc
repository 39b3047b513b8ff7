#include "spool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>
#include <type_traits>

namespace tfdbg_arrow {
namespace {

constexpr auto kStallTimeout = std::chrono::seconds(5);
constexpr auto kPollInterval = std::chrono::microseconds(100);

uint64_t round_up_to_power_of_two(uint64_t n) {
  uint64_t power = 1024;
  while (power < n) power <<= 1;
  return power;
}

// Returns the field `commit` of a record as an atomic. The field is not declared as std::atomic, because records are
// copied as bytes and must stay trivially copyable. std::atomic_ref is made for this, but it needs C++20, and the core is
// built as C++17 (CMakeLists.txt). The cast works because, on the platforms that the assertions allow, an atomic consists
// only of its value.
std::atomic<uint64_t>& commit_of(Record* record) {
  using Commit = std::atomic<uint64_t>;
  static_assert(sizeof(Commit) == sizeof(record->commit), "an atomic has no other members");
  static_assert(alignof(Commit) == alignof(Record), "the first field of a record is aligned like an atomic");
  static_assert(Commit::is_always_lock_free, "a lock would be in the memory of one process");
  static_assert(std::is_trivially_copyable_v<Record>, "records are copied as bytes");
  return reinterpret_cast<Commit&>(record->commit);
}

[[noreturn]] void throw_errno(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

}  // namespace

Spool::Spool(const std::string& path, uint64_t capacity, bool waits)
    : path_(path), capacity_(round_up_to_power_of_two(capacity)), mask_(capacity_ - 1), waits_(waits) {
  mapped_size_ = static_cast<uint64_t>(kSpoolHeaderSize) + capacity_ * sizeof(Record);
  int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) throw_errno(errno, "cannot create the event spool " + path);
  int error = ::posix_fallocate(fd, 0, static_cast<off_t>(mapped_size_));
  void* memory = MAP_FAILED;
  if (error == 0) {
    memory = ::mmap(nullptr, mapped_size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) error = errno;
  }
  ::close(fd);
  if (memory == MAP_FAILED) {
    ::unlink(path.c_str());
    throw_errno(error, "cannot allocate " + std::to_string(mapped_size_) + " bytes for the event spool " + path);
  }
  header_ = new (memory) SpoolHeader();
  header_->record_size = sizeof(Record);
  header_->capacity = capacity_;
  header_->pid = ::getpid();
  header_->version = kSpoolVersion;
  std::memcpy(header_->magic, kSpoolMagic, sizeof(kSpoolMagic));
  records_ = reinterpret_cast<Record*>(static_cast<char*>(memory) + kSpoolHeaderSize);
}

Spool::~Spool() { ::munmap(header_, mapped_size_); }

bool Spool::try_reserve(uint64_t count, uint64_t* sequence) {
  uint64_t head = header_->head.load(std::memory_order_relaxed);
  do {
    uint64_t tail = header_->tail.load(std::memory_order_acquire);
    if (head + count - tail > capacity_) return false;
  } while (!header_->head.compare_exchange_weak(head, head + count, std::memory_order_relaxed));
  *sequence = head;
  return true;
}

bool Spool::wait_for_room(uint64_t count) {
  using Clock = std::chrono::steady_clock;
  if (!waits_) {
    wake_.notify_one();
    return false;
  }
  uint64_t seen = header_->tail.load(std::memory_order_acquire);
  auto deadline = Clock::now() + kStallTimeout;
  for (;;) {
    uint64_t tail = header_->tail.load(std::memory_order_acquire);
    uint64_t head = header_->head.load(std::memory_order_relaxed);
    if (head + count - tail <= capacity_) {
      stalled_.store(false, std::memory_order_relaxed);
      return true;
    }
    if (stalled_.load(std::memory_order_relaxed)) return false;
    if (tail != seen) {
      seen = tail;
      deadline = Clock::now() + kStallTimeout;
    } else if (Clock::now() > deadline) {
      stalled_.store(true, std::memory_order_relaxed);
      return false;
    }
    wake_.notify_one();
    std::this_thread::sleep_for(kPollInterval);
  }
}

void Spool::commit(uint64_t sequence) {
  std::atomic_thread_fence(std::memory_order_release);
  commit_of(slot(sequence)).store(sequence + 1, std::memory_order_release);
  if (sequence == wake_at_.load(std::memory_order_relaxed)) wake_.notify_one();
}

void Spool::fill(uint64_t sequence, const Record& record) {
  // Copy everything after `commit`, which keeps its old value until the record is complete.
  std::memcpy(&slot(sequence)->wall_time_ns, &record.wall_time_ns, sizeof(Record) - offsetof(Record, wall_time_ns));
  commit(sequence);
}

void Spool::signal_urgent() {
  if (urgent_.exchange(true, std::memory_order_acq_rel)) return;
  wake_.notify_one();
}

uint64_t Spool::pending() const {
  return header_->head.load(std::memory_order_relaxed) - read_.load(std::memory_order_relaxed);
}

uint64_t Spool::num_free() const {
  uint64_t tail = header_->tail.load(std::memory_order_relaxed);
  return capacity_ - (header_->head.load(std::memory_order_relaxed) - tail);
}

uint64_t Spool::drain(Record* out, uint64_t count) {
  uint64_t first = read_.load(std::memory_order_relaxed);
  uint64_t drained = 0;
  while (drained < count) {
    Record* record = slot(first + drained);
    if (commit_of(record).load(std::memory_order_acquire) != first + drained + 1) break;
    std::memcpy(&out[drained], record, sizeof(Record));
    ++drained;
  }
  read_.store(first + drained, std::memory_order_relaxed);
  return drained;
}

void Spool::release(uint64_t upto, int64_t rows_upto) {
  uint64_t tail = header_->tail.load(std::memory_order_relaxed);
  upto = std::min(upto, read_.load(std::memory_order_relaxed));
  if (upto > tail) {
    // A slot's old commit never equals the commit of the slot's next use, so it need not be cleared.
    drop_pages(tail, upto);
    header_->tail.store(upto, std::memory_order_release);
    stalled_.store(false, std::memory_order_relaxed);
  }
  header_->rows_tail.store(rows_upto, std::memory_order_release);
}

void Spool::drop_pages(uint64_t from, uint64_t upto) {
  // Otherwise a long run would touch every page of the ring, and the process would seem to need the memory of the whole
  // ring.
  static const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  while (from < upto) {
    uint64_t end = std::min(upto, (from | mask_) + 1);  // at most the end of the ring
    uintptr_t first = (reinterpret_cast<uintptr_t>(slot(from)) + page - 1) / page * page;
    uintptr_t last = reinterpret_cast<uintptr_t>(slot(end - 1) + 1) / page * page;
    // The file keeps the content of the pages. If the call fails, the pages only stay in memory.
    if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
    from = end;
  }
}

bool Spool::wait(double timeout_s, uint64_t pending_records) {
  std::unique_lock<std::mutex> lock(mutex_);
  // Records that were drained but not yet released take room too.
  uint64_t read = read_.load(std::memory_order_relaxed);
  uint64_t room = capacity_ - (read - header_->tail.load(std::memory_order_relaxed));
  uint64_t limit = std::min<uint64_t>(pending_records, room / 2);
  wake_at_.store(read + limit, std::memory_order_relaxed);
  // Producers notify without the lock, so a wake-up can be missed. Waiting in short slices limits the delay.
  auto deadline = std::chrono::steady_clock::now() +
                  std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(timeout_s));
  while (!urgent_.load(std::memory_order_acquire) && pending() < limit) {
    auto now = std::chrono::steady_clock::now();
    if (now >= deadline) break;
    auto slice = std::min<std::chrono::steady_clock::duration>(deadline - now, std::chrono::milliseconds(100));
    wake_.wait_for(lock, slice);
  }
  return urgent_.exchange(false, std::memory_order_acq_rel);
}

}  // namespace tfdbg_arrow
