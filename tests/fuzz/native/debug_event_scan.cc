// Fuzzes the reader of records in dumps of Debugger V2. Built and started by tools/fuzz_native.py.
#include "debug_event_scan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

using namespace tfdbg_arrow;

namespace {

void require(bool is_true) {
  if (!is_true) std::abort();
}

void put_masked_checksum(std::vector<uint8_t>* out, const uint8_t* data, size_t size) {
  const uint32_t crc = crc32c(data, size);
  const uint32_t masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  const auto* bytes = reinterpret_cast<const uint8_t*>(&masked);
  out->insert(out->end(), bytes, bytes + sizeof(masked));
}

// Splits bytes into records, and frames the records as a TFRecord file does. A byte before each record gives its size.
std::vector<uint8_t> framed(const uint8_t* data, size_t size) {
  std::vector<uint8_t> out;
  while (size > 0) {
    const uint64_t length = std::min<size_t>(*data, size - 1);
    const auto* bytes = reinterpret_cast<const uint8_t*>(&length);
    out.insert(out.end(), bytes, bytes + sizeof(length));
    put_masked_checksum(&out, bytes, sizeof(length));
    out.insert(out.end(), data + 1, data + 1 + length);
    put_masked_checksum(&out, data + 1, length);
    data += 1 + length;
    size -= 1 + length;
  }
  return out;
}

void scan(const std::vector<uint8_t>& bytes, size_t max_records) {
  DebugEventScanner scanner;
  const DebugEventColumns found = scanner.scan(bytes.data(), bytes.size(), max_records);
  require(found.consumed <= bytes.size() && found.slot.size() <= max_records);
  const size_t num_records = found.slot.size();
  for (const auto* column : {&found.num_inputs, &found.num_outputs, &found.num_contents, &found.record_start}) {
    require(column->size() == num_records);
  }
  for (size_t i = 0; i < num_records; ++i) {
    const int64_t start = found.record_start[i], length = found.record_length[i];
    require(start >= 0 && length >= 0 && static_cast<size_t>(start + length) <= found.consumed);
    require(found.slot[i] < static_cast<int64_t>(scanner.num_slots()));
  }
  for (size_t i = 0; i < found.content_start.size(); ++i) {
    const int64_t start = found.content_start[i], length = found.content_length[i];
    require(start >= 0 && length >= 0 && static_cast<size_t>(start + length) <= bytes.size());
  }
  // Without the incomplete frame at the end, the scan gives the same records.
  DebugEventScanner other;
  const DebugEventColumns again = other.scan(bytes.data(), found.consumed, max_records);
  require(again.consumed == found.consumed && again.slot == found.slot && again.content_start == found.content_start);
}

}  // namespace

// The first byte selects raw bytes or framed records, and the number of records.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const size_t max_records = (data[0] >> 1) + 1;
  if ((data[0] & 1) != 0) {
    scan(framed(data + 1, size - 1), max_records);
  } else {
    scan(std::vector<uint8_t>(data + 1, data + size), max_records);
  }
  return 0;
}
