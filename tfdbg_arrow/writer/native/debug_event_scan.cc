#include "debug_event_scan.h"

#include <array>
#include <cstring>

namespace tfdbg_arrow {
namespace {

constexpr size_t kHeaderBytes = 12;
constexpr size_t kFooterBytes = 4;
constexpr uint64_t kMaxRecordBytes = 0x7fffffff;

// -- CRC32C ---------------------------------------------------------------------------------------------------------

using Tables = std::array<std::array<uint32_t, 256>, 8>;

Tables make_tables() {
  Tables tables;
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78u : 0u);
    tables[0][i] = crc;
  }
  for (uint32_t i = 0; i < 256; ++i) {
    for (size_t t = 1; t < 8; ++t) tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 0xff];
  }
  return tables;
}

uint32_t crc_by_table(uint32_t crc, const uint8_t* data, size_t size) {
  static const Tables tables = make_tables();
  for (; size >= 8; data += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    word ^= crc;
    crc = 0;
    for (size_t t = 0; t < 8; ++t) crc ^= tables[7 - t][(word >> (8 * t)) & 0xff];
  }
  for (; size > 0; ++data, --size) crc = (crc >> 8) ^ tables[0][(crc ^ *data) & 0xff];
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc_by_instruction(uint32_t crc, const uint8_t* data, size_t size) {
  uint64_t wide = crc;
  for (; size >= 8; data += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  auto narrow = static_cast<uint32_t>(wide);
  for (; size > 0; ++data, --size) narrow = __builtin_ia32_crc32qi(narrow, *data);
  return narrow;
}
#endif

uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

uint32_t read_u32(const uint8_t* data) {
  uint32_t value;
  std::memcpy(&value, data, 4);
  return value;
}

// -- Protobuf's wire format -----------------------------------------------------------------------------------------

struct Bytes {
  const uint8_t* begin;
  const uint8_t* end;
  size_t size() const { return static_cast<size_t>(end - begin); }
};

bool read_varint(Bytes& in, uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (in.begin == in.end) return false;
    uint8_t byte = *in.begin++;
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

bool read_payload(Bytes& in, Bytes& payload) {
  uint64_t length;
  if (!read_varint(in, length) || length > in.size()) return false;
  payload = {in.begin, in.begin + length};
  in.begin += length;
  return true;
}

constexpr int kVarint = 0, kFixed64 = 1, kLength = 2;

// One field: all of its bytes, and its value.
struct Field {
  uint32_t number = 0;
  int wire = 0;
  Bytes whole{}, payload{};
  uint64_t value = 0;
};

bool read_field(Bytes& in, Field& field) {
  field.whole.begin = in.begin;
  uint64_t tag;
  if (!read_varint(in, tag) || tag > 0xffffffffu) return false;
  field.number = static_cast<uint32_t>(tag >> 3);
  field.wire = static_cast<int>(tag & 7);
  if (field.number == 0) return false;
  switch (field.wire) {
    case kVarint:
      if (!read_varint(in, field.value)) return false;
      break;
    case kFixed64:
      if (in.size() < 8) return false;
      std::memcpy(&field.value, in.begin, 8);
      in.begin += 8;
      break;
    case kLength:
      if (!read_payload(in, field.payload)) return false;
      break;
    default:
      return false;
  }
  field.whole.end = in.begin;
  return true;
}

bool read_ids(Bytes in, std::vector<int64_t>& out, int64_t& count) {
  while (in.begin != in.end) {
    uint64_t value;
    if (!read_varint(in, value)) return false;
    out.push_back(static_cast<int64_t>(value));
    ++count;
  }
  return true;
}

// Returns the number of first bytes of a content that stay in the message (see summaries.py); -1 means all bytes.
int64_t num_kept(uint64_t mode) {
  switch (mode) {
    case 2:  // CURT_HEALTH
    case 3:  // CONCISE_HEALTH
      return 8;
    case 4:  // FULL_HEALTH
      return 24;
    case 5:  // SHAPE
      return 16;
    case 7:  // FULL_TENSOR
      return 0;
    default:
      return -1;
  }
}

// Parses one record. Every protobuf runtime writes fields in the order of their numbers, and repeats a field only for a
// list. For any other form, read() returns false, and the Python implementation reads the record.
class RecordScan {
 public:
  RecordScan(const uint8_t* origin, DebugEventColumns& out, std::string& key) : origin_(origin), out_(out), key_(key) {}

  bool read(Bytes record) {
    uint32_t last = 0;
    bool has_event = false;
    Field field;
    while (record.begin != record.end) {
      if (!read_field(record, field) || field.number <= last) return false;
      last = field.number;
      if (field.number == 1 && field.wire == kFixed64) {
        std::memcpy(&wall_time_s, &field.value, 8);
      } else if (field.number == 2 && field.wire == kVarint) {
        keep(field);
      } else if ((field.number == 9 || field.number == 10) && field.wire == kLength && !has_event) {
        has_event = true;
        key_.push_back(static_cast<char>(field.number));
        if (!(field.number == 9 ? read_execution(field.payload) : read_trace(field.payload))) return false;
      } else {
        return false;
      }
    }
    return has_event;
  }

  double wall_time_s = 0;
  int64_t num_inputs = 0, num_outputs = 0, num_contents = 0;

 private:
  void keep(const Field& field) { key_.append(reinterpret_cast<const char*>(field.whole.begin), field.whole.size()); }

  bool read_execution(Bytes in) {
    uint32_t last = 0;
    uint64_t mode = 0;
    Field field;
    while (in.begin != in.end) {
      if (!read_field(in, field)) return false;
      if (field.number < last || (field.number == last && field.number != 7)) return false;
      last = field.number;
      bool is_number = field.number == 2 || field.number == 6;
      if (field.number > 9 || field.wire != (is_number ? kVarint : kLength)) return false;
      if (field.number == 4) {
        if (!read_ids(field.payload, out_.inputs, num_inputs)) return false;
      } else if (field.number == 5) {
        if (!read_ids(field.payload, out_.outputs, num_outputs)) return false;
      } else if (field.number == 7) {
        if (!read_tensor(field.payload, mode)) return false;
      } else {
        if (field.number == 6) mode = field.value;
        keep(field);
      }
    }
    return true;
  }

  bool read_trace(Bytes in) {
    uint32_t last = 0;
    uint64_t mode = 0;
    Field field;
    while (in.begin != in.end) {
      if (!read_field(in, field) || field.number <= last) return false;
      last = field.number;
      bool is_number = field.number == 3 || field.number == 4;
      if (field.number > 6 || field.wire != (is_number ? kVarint : kLength)) return false;
      if (field.number == 5) {
        if (!read_tensor(field.payload, mode)) return false;
      } else {
        if (field.number == 4) mode = field.value;
        keep(field);
      }
    }
    return true;
  }

  bool read_tensor(Bytes in, uint64_t mode) {
    uint32_t last = 0;
    const uint8_t* start = origin_;
    int64_t length = 0;
    Field field;
    key_.push_back('\x3a');
    while (in.begin != in.end) {
      if (!read_field(in, field) || field.number < last) return false;
      if (field.number == last && field.number < 5) return false;
      last = field.number;
      int64_t kept = num_kept(mode);
      if (field.number != 4 || kept < 0 || static_cast<int64_t>(field.payload.size()) <= kept) {
        if (field.number == 4 && field.wire != kLength) return false;
        if (field.number != 4 || field.payload.size() > 0) keep(field);
        continue;
      }
      if (field.wire != kLength) return false;
      start = field.payload.begin + kept;
      length = static_cast<int64_t>(field.payload.size()) - kept;
      if (kept > 0) {
        key_.push_back('\x22');
        key_.push_back(static_cast<char>(kept));
        key_.append(reinterpret_cast<const char*>(field.payload.begin), static_cast<size_t>(kept));
      }
    }
    key_.push_back('\0');  // no field begins with this byte
    out_.content_start.push_back(start - origin_);
    out_.content_length.push_back(length);
    ++num_contents;
    return true;
  }

  const uint8_t* origin_;
  DebugEventColumns& out_;
  std::string& key_;
};

}  // namespace

uint32_t crc32c(const uint8_t* data, size_t size) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return ~crc_by_instruction(~0u, data, size);
#endif
  return ~crc_by_table(~0u, data, size);
}

DebugEventColumns DebugEventScanner::scan(const uint8_t* data, size_t size, size_t max_records) {
  DebugEventColumns out;
  while (out.slot.size() < max_records && size - out.consumed >= kHeaderBytes) {
    const uint8_t* frame = data + out.consumed;
    uint64_t length;
    std::memcpy(&length, frame, 8);
    if (masked(crc32c(frame, 8)) != read_u32(frame + 8)) {
      out.status = ScanStatus::kLengthChecksum;
      break;
    }
    if (length > kMaxRecordBytes) {
      out.status = ScanStatus::kTooLong;
      break;
    }
    if (size - out.consumed < kHeaderBytes + length + kFooterBytes) break;
    const uint8_t* record = frame + kHeaderBytes;
    if (masked(crc32c(record, length)) != read_u32(record + length)) {
      out.status = ScanStatus::kRecordChecksum;
      break;
    }
    key_.clear();
    size_t num_inputs = out.inputs.size(), num_outputs = out.outputs.size(), num_contents = out.content_start.size();
    RecordScan found(data, out, key_);
    int64_t slot = -1;
    if (found.read({record, record + length})) {
      auto [place, is_new] = slots_.try_emplace(key_, static_cast<int64_t>(slots_.size()));
      slot = place->second;
      if (is_new) out.first_of_slot.push_back(static_cast<int64_t>(out.slot.size()));
    } else {
      out.inputs.resize(num_inputs);
      out.outputs.resize(num_outputs);
      out.content_start.resize(num_contents);
      out.content_length.resize(num_contents);
      found.num_inputs = found.num_outputs = found.num_contents = 0;
    }
    out.slot.push_back(slot);
    out.wall_time_s.push_back(found.wall_time_s);
    out.num_inputs.push_back(found.num_inputs);
    out.num_outputs.push_back(found.num_outputs);
    out.num_contents.push_back(found.num_contents);
    out.record_start.push_back(record - data);
    out.record_length.push_back(static_cast<int64_t>(length));
    out.consumed += kHeaderBytes + length + kFooterBytes;
  }
  return out;
}

}  // namespace tfdbg_arrow
