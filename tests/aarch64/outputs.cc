// Prints what the parts of the core that need neither Python nor TensorFlow compute for random bytes. tools/aarch64.py
// builds it for two processors and compares what the two print. Only integers make the bytes, so both get the same.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "debug_event_scan.h"
#include "graph_def.h"
#include "health.h"
#include "journal.h"
#include "spool.h"

using namespace tfdbg_arrow;

namespace {

constexpr int kDtypes[] = {1, 2, 3, 4, 5, 6, 8, 9, 10, 14, 17, 18, 19, 22, 23, 24, 25, 26, 27, 28};
// Around a vector, a row and a block of the kernels; see tests/writer/test_health.py.
constexpr int64_t kSizes[] = {0, 1, 2, 3, 7, 15, 16, 17, 63, 64, 65, 511, 513, 2047, 2048, 2049, 5000, 66000};

uint64_t random_word() {
  static uint64_t state = 1;
  uint64_t word = state += 0x9e3779b97f4a7c15;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

void print(const char* name, const void* data, size_t size) {
  std::printf(" %s=", name);
  for (size_t i = 0; i < size; ++i) std::printf("%02x", static_cast<const uint8_t*>(data)[i]);
}

// How the numbers of a tensor are made of random bytes, so that each branch of the kernels runs.
enum Fill { kAnyBits, kSmallExponents, kTypical, kHuge, kRepeated, kNumFills };

void fill(Fill how, size_t width, std::vector<uint8_t>* bytes) {
  for (uint8_t& byte : *bytes) byte = static_cast<uint8_t>(random_word());
  // The last byte of a number has the sign and the top of the exponent.
  for (size_t at = width - 1; at < bytes->size(); at += width) {
    uint8_t& top = (*bytes)[at];
    if (how == kSmallExponents) top &= 0x80;
    if (how == kTypical) top = static_cast<uint8_t>((top & 0x80) | 0x38 | (top & 0x03));
    if (how == kHuge) top = static_cast<uint8_t>((top & 0x80) | 0x70 | (top & 0x0b));
  }
  if (how == kRepeated) {
    for (size_t at = width; at < bytes->size(); ++at) (*bytes)[at] = (*bytes)[at - width];
  }
}

void print_tensor(int dtype, int64_t n, Fill how) {
  const bool is_complex = dtype == 8 || dtype == 18;
  const auto width = static_cast<size_t>(element_size(dtype));
  std::vector<uint8_t> bytes(static_cast<size_t>(n) * width);
  fill(how, is_complex ? width / 2 : width, &bytes);
  Health health{}, again{};
  Numerics numerics{};
  count_health(dtype, bytes.data(), n, &health);
  measure(dtype, bytes.data(), n, &again, &numerics);
  std::printf("dtype %d, %lld elements, fill %d:", dtype, static_cast<long long>(n), how);
  print("counted", &health, sizeof(health));
  print("measured", &again, sizeof(again));
  print("subnormal", &numerics.num_subnormal, sizeof(numerics.num_subnormal));
  for (double value : {numerics.min, numerics.max, numerics.mean, numerics.stddev}) print("double", &value, 8);
  print(is_complex ? "modulus" : "max_abs", &numerics.max_abs, 8);
  std::printf(" %d%d", numerics.any_finite, numerics.ordered);
  auto histogram = std::make_unique<Histogram>();
  if (count_histogram(dtype, bytes.data(), n, health.num_zero, histogram.get())) {
    if (histogram->num_buckets > 0) print("exponent", &histogram->exponent, sizeof(histogram->exponent));
    print("buckets", histogram->counts, static_cast<size_t>(histogram->num_buckets) * sizeof(histogram->counts[0]));
  }
  double scalar = 0;
  if (n > 0 && read_scalar(dtype, bytes.data(), &scalar)) print("scalar", &scalar, 8);
  if (health.num_nan + health.num_neg_inf + health.num_pos_inf > 0) {
    BadPlace place{};
    find_bad(dtype, bytes.data(), n, 7, &place);
    print("bad", &place, sizeof(place));
  }
  const uint64_t sum = read_sum(bytes.data(), static_cast<int64_t>(bytes.size()));
  const uint32_t crcs[] = {crc32c(bytes.data(), bytes.size()),
                           crc32(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
  print("sum", &sum, sizeof(sum));
  print("crcs", crcs, sizeof(crcs));
  std::printf("\n");
}

// Bytes above 127 are negative where `char` is signed.
void print_texts() {
  for (int i = 0; i < 20000; ++i) {
    std::string text(random_word() % 4 + 1, '\0');
    for (char& byte : text) byte = static_cast<char>(random_word() % 3 == 0 ? random_word() % 128 : random_word());
    std::printf("%d%d", is_utf8(text), parse_graph(text).has_value());
    const auto value = attr_int(text);
    if (value) print("int", &*value, sizeof(*value));
  }
  std::printf("\n");
}

// Prints the records of a spool as the file has them, in which Python reads them.
void print_spool(const char* path) {
  Spool spool(path, 1024, false);
  for (int i = 0; i < 100; ++i) {
    Record record;
    for (size_t at = 0; at < sizeof(record); at += 8) {
      const uint64_t word = random_word();
      std::memcpy(reinterpret_cast<char*>(&record) + at, &word, 8);
    }
    uint64_t sequence = 0;
    if (spool.try_reserve(1, &sequence)) spool.fill(sequence, record);
  }
  std::FILE* file = std::fopen(path, "rb");
  std::vector<char> content(kSpoolHeaderSize + 100 * sizeof(Record));
  if (file == nullptr || std::fread(content.data(), 1, content.size(), file) != content.size()) std::abort();
  std::fclose(file);
  std::memset(content.data() + offsetof(SpoolHeader, pid), 0, sizeof(SpoolHeader::pid));
  print("spool", content.data(), content.size());
  std::printf("\n");
}

}  // namespace

int main(int, char** arguments) {
  for (int dtype : kDtypes) {
    for (int64_t n : kSizes) {
      for (int how = 0; how < kNumFills; ++how) print_tensor(dtype, n, static_cast<Fill>(how));
    }
  }
  print_texts();
  print_spool(arguments[1]);
  return 0;
}
