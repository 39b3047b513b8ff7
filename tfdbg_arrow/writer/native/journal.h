// The journal of a recording: an append-only file beside the spool that tells what the numbers in records stand for.
//
// The Python side creates the file, locks it and owns its descriptor; it appends too. Each entry is one write to a
// descriptor opened with O_APPEND, so that entries of both sides never mix. The layout of an entry is that of
// tfdbg_arrow.spool.journal.
#pragma once

#include <cstdint>
#include <string_view>

namespace tfdbg_arrow {

constexpr char kEntryMagic[4] = {'\xf0', 'T', 'J', '1'};

// Writes the entry that tells an interned string. Returns false if it could not be written whole.
bool write_string_entry(int fd, uint32_t id, std::string_view text);

// Makes a descriptor of this process one of /dev/null; nothing for -1. Safe in a forked child.
void let_go_of(int fd);

// CRC-32 as zlib has it.
uint32_t crc32(const char* data, size_t size);

}  // namespace tfdbg_arrow
