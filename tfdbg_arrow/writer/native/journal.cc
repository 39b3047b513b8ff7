#include "journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

namespace tfdbg_arrow {
namespace {

constexpr size_t kHeadSize = 12;  // magic, length and CRC of the payload
constexpr int kAttempts = 2;      // readers find the complete entry after a truncated one

std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xedb88320u : 0u);
    table[i] = value;
  }
  return table;
}

}  // namespace

uint32_t crc32(const char* data, size_t size) {
  static const std::array<uint32_t, 256> table = make_table();
  uint32_t crc = 0xffffffffu;
  for (size_t i = 0; i < size; ++i) crc = (crc >> 8) ^ table[(crc ^ static_cast<uint8_t>(data[i])) & 0xffu];
  return crc ^ 0xffffffffu;
}

void let_go_of(int fd) {
  if (fd < 0) return;
  int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0) return;
  ::dup2(null, fd);
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  ::close(null);
}

bool write_string_entry(int fd, uint32_t id, std::string_view text) {
  uint32_t length = static_cast<uint32_t>(1 + sizeof(id) + text.size());
  std::string entry(kHeadSize, '\0');
  entry.push_back('s');
  entry.append(reinterpret_cast<const char*>(&id), sizeof(id));
  entry.append(text);
  uint32_t crc = crc32(entry.data() + kHeadSize, length);
  std::memcpy(&entry[0], kEntryMagic, sizeof(kEntryMagic));
  std::memcpy(&entry[4], &length, sizeof(length));
  std::memcpy(&entry[8], &crc, sizeof(crc));
  for (int attempt = 0; attempt < kAttempts;) {
    ssize_t written = ::write(fd, entry.data(), entry.size());
    if (written == static_cast<ssize_t>(entry.size())) return true;
    if (written >= 0 || errno != EINTR) ++attempt;
  }
  return false;
}

}  // namespace tfdbg_arrow
