// The journal of a recording: an append-only file next to the spool that defines the numbers in records.
//
// The Python side creates the file, locks it and owns its descriptor. Both sides append. Each entry is one write to a
// descriptor opened with O_APPEND, so that entries of both sides never mix. tfdbg_arrow.spool.journal defines the
// layout of an entry.
#pragma once

#include <cstdint>
#include <string_view>

namespace tfdbg_arrow {

constexpr char kEntryMagic[4] = {'\xf0', 'T', 'J', '1'};

// Writes the entry of an interned string. Returns false if it could not be written completely.
bool write_string_entry(int fd, uint32_t id, std::string_view text);

// Points a descriptor of this process to /dev/null; does nothing for -1. Safe in a forked child.
void let_go_of(int fd);

// Returns the CRC-32 of zlib.
uint32_t crc32(const char* data, size_t size);

}  // namespace tfdbg_arrow
