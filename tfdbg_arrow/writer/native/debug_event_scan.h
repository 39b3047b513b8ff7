// Takes apart the records of a Debugger V2 dump's large files; the readable twin is debugger_v2/scan.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace tfdbg_arrow {

// Why a scan stopped before the end of its bytes.
enum class ScanStatus { kWhole = 0, kLengthChecksum = 1, kTooLong = 2, kRecordChecksum = 3 };

// The records found, as columns; see scan.py's Scan. Places are bytes from the start of what was scanned.
struct DebugEventColumns {
  std::vector<double> wall_time_s;
  std::vector<int64_t> slot;  // which distinct message; -1: not of the plain form that TensorFlow writes
  std::vector<int64_t> num_inputs, inputs, num_outputs, outputs;
  std::vector<int64_t> num_contents, content_start, content_length;
  std::vector<int64_t> record_start, record_length;
  std::vector<int64_t> first_of_slot;  // for each slot that is new: the record that showed it
  size_t consumed = 0;                 // bytes of whole frames
  ScanStatus status = ScanStatus::kWhole;
};

// Not thread-safe. Reads nothing outside of the bytes it is given, whatever they hold.
class DebugEventScanner {
 public:
  DebugEventColumns scan(const uint8_t* data, size_t size, size_t max_records);
  // Forgets all slots: they count from 0 again.
  void clear() { slots_.clear(); }
  size_t num_slots() const { return slots_.size(); }

 private:
  std::unordered_map<std::string, int64_t> slots_;
  std::string key_;
};

// The CRC32C of some bytes. Source: RFC 3720, appendix B.4.
uint32_t crc32c(const uint8_t* data, size_t size);

}  // namespace tfdbg_arrow
