// Parses the records in the large files of a Debugger V2 dump. debugger_v2/scan.py is the readable Python version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace tfdbg_arrow {

// The reason why a scan stopped before the end of its bytes.
enum class ScanStatus { kWhole = 0, kLengthChecksum = 1, kTooLong = 2, kRecordChecksum = 3 };

// The records as columns; see Scan in scan.py. Places are byte offsets from the start of the scanned bytes.
struct DebugEventColumns {
  std::vector<double> wall_time_s;
  std::vector<int64_t> slot;  // the distinct message; -1 for a form that TensorFlow does not write
  std::vector<int64_t> num_inputs, inputs, num_outputs, outputs;
  std::vector<int64_t> num_contents, content_start, content_length;
  std::vector<int64_t> record_start, record_length;
  std::vector<int64_t> first_of_slot;  // for each new slot, the first record that has it
  size_t consumed = 0;                 // the size of the complete frames in bytes
  ScanStatus status = ScanStatus::kWhole;
};

// Not thread-safe. Never reads outside of the given bytes, even if they are damaged.
class DebugEventScanner {
 public:
  DebugEventColumns scan(const uint8_t* data, size_t size, size_t max_records);
  // Forgets all slots; the next slot is 0.
  void clear() { slots_.clear(); }
  size_t num_slots() const { return slots_.size(); }

 private:
  std::unordered_map<std::string, int64_t> slots_;
  std::string key_;
};

// Returns the CRC32C of bytes. Source: RFC 3720, appendix B.4.
uint32_t crc32c(const uint8_t* data, size_t size);

}  // namespace tfdbg_arrow
