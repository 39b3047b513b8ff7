#include "graph_def.h"

#include <algorithm>
#include <charconv>

namespace tfdbg_arrow {
namespace {

constexpr uint32_t kVarint = 0;
constexpr uint32_t kFixed64 = 1;
constexpr uint32_t kBytes = 2;
constexpr uint32_t kFixed32 = 5;

constexpr size_t kMaxOutputs = 1 << 16;  // per node; more means that an attribute is damaged

// Reads the fields of a protocol buffer one after the other.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  // Moves to the next field. Returns false at the end. Also returns false for bytes that are not a field; then failed()
  // is true.
  bool next() {
    if (at_ == end_ || failed_) return false;
    start_ = at_;
    uint64_t tag = 0;
    if (!varint(&tag) || tag >> 3 == 0 || tag >> 3 > UINT32_MAX) return fail();
    field_ = static_cast<uint32_t>(tag >> 3);
    wire_ = static_cast<uint32_t>(tag & 7);
    switch (wire_) {
      case kVarint:
        return varint(&number_) || fail();
      case kFixed64:
        return skip(8) || fail();
      case kFixed32:
        return skip(4) || fail();
      case kBytes: {
        uint64_t size = 0;
        if (!varint(&size) || size > static_cast<uint64_t>(end_ - at_)) return fail();
        value_ = std::string_view(at_, static_cast<size_t>(size));
        at_ += size;
        return true;
      }
      default:
        return fail();  // groups, which TensorFlow's messages do not have
    }
  }

  bool failed() const { return failed_; }
  bool at_end() const { return at_ == end_; }
  uint32_t field() const { return field_; }
  bool is_bytes(uint32_t field) const { return wire_ == kBytes && field_ == field; }
  bool is_number(uint32_t field) const { return wire_ == kVarint && field_ == field; }
  uint64_t number() const { return number_; }
  std::string_view value() const { return value_; }
  std::string_view whole() const { return std::string_view(start_, static_cast<size_t>(at_ - start_)); }

  bool varint(uint64_t* out) {
    uint64_t result = 0;
    for (int shift = 0; shift < 70 && at_ < end_; shift += 7) {
      const uint64_t byte = static_cast<unsigned char>(*at_++);
      if (shift == 63 && byte > 1) return false;
      result |= (byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) {
        *out = result;
        return true;
      }
    }
    return false;
  }

 private:
  bool fail() {
    failed_ = true;
    return false;
  }
  bool skip(std::ptrdiff_t count) {
    if (end_ - at_ < count) return false;
    at_ += count;
    return true;
  }

  const char* at_;
  const char* end_;
  const char* start_ = nullptr;
  uint32_t field_ = 0;
  uint32_t wire_ = 0;
  uint64_t number_ = 0;
  std::string_view value_;
  bool failed_ = false;
};

void put_varint(std::string* out, uint64_t value) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>((value & 0x7f) | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

// An entry with two keys or two values would have to be merged, but no program writes one.
bool read_attr(std::string_view entry, NodeView* node) {
  std::string_view key, value;
  int num_keys = 0, num_values = 0;
  FieldReader reader(entry);
  while (reader.next()) {
    if (reader.is_bytes(1)) {
      key = reader.value();
      ++num_keys;
    }
    if (reader.is_bytes(2)) {
      value = reader.value();
      ++num_values;
    }
  }
  node->attrs.emplace_back(key, value);
  return !reader.failed() && num_keys <= 1 && num_values <= 1 && is_utf8(key);
}

bool read_debug_info(std::string_view bytes, NodeView* node) {
  FieldReader reader(bytes);
  while (reader.next()) {
    if (!reader.is_bytes(1)) continue;
    if (!is_utf8(reader.value())) return false;
    node->original_names.push_back(reader.value());
  }
  return !reader.failed();
}

bool read_node(std::string_view bytes, NodeView* node) {
  node->bytes = bytes;
  FieldReader reader(bytes);
  while (reader.next()) {
    if (reader.is_bytes(1)) node->name = reader.value();
    if (reader.is_bytes(2)) node->op = reader.value();
    if (reader.is_bytes(3)) node->inputs.push_back(reader.value());
    if (reader.is_bytes(4)) node->device = reader.value();
    const bool is_text = reader.field() >= 1 && reader.field() <= 4 && reader.is_bytes(reader.field());
    if (is_text && !is_utf8(reader.value())) return false;
    if (reader.is_bytes(5) && !read_attr(reader.value(), node)) return false;
    if (reader.is_bytes(6) && !read_debug_info(reader.value(), node)) return false;
  }
  return !reader.failed() && !node->name.empty() && !node->op.empty();
}

// Returns true if a field of an AttrValue is one of its kinds of value. If there are several, the last one counts.
bool is_attr_kind(const FieldReader& reader) { return reader.field() >= 1 && reader.field() <= 10; }

// Returns the number in a field of an AttrValue; nullopt if the attribute holds another kind of value.
std::optional<uint64_t> attr_number(std::string_view attr_value, uint32_t field) {
  std::optional<uint64_t> found;
  FieldReader reader(attr_value);
  while (reader.next()) {
    if (is_attr_kind(reader)) found.reset();
    if (reader.is_number(field)) found = reader.number();
  }
  return reader.failed() ? std::nullopt : found;
}

// Reads a field of packed or unpacked numbers; returns false if the bytes are not numbers or there are too many.
bool read_numbers(const FieldReader& field, uint32_t number, std::vector<int>* out) {
  if (field.is_number(number)) out->push_back(static_cast<int>(field.number()));
  if (field.is_bytes(number)) {
    FieldReader packed(field.value());
    while (!packed.at_end()) {
      uint64_t value = 0;
      if (out->size() > kMaxOutputs || !packed.varint(&value)) return false;
      out->push_back(static_cast<int>(value));
    }
  }
  return out->size() <= kMaxOutputs;
}

}  // namespace

const std::string_view* NodeView::attr(std::string_view wanted) const {
  for (auto at = attrs.rbegin(); at != attrs.rend(); ++at) {
    if (at->first == wanted) return &at->second;
  }
  return nullptr;
}

std::optional<GraphView> parse_graph(std::string_view bytes) {
  GraphView graph;
  graph.bytes = bytes;
  FieldReader reader(bytes);
  while (reader.next()) {
    if (!reader.is_bytes(1)) continue;
    NodeView node;
    node.field = reader.whole();
    if (!read_node(reader.value(), &node)) return std::nullopt;
    graph.nodes.push_back(std::move(node));
  }
  if (reader.failed()) return std::nullopt;
  return graph;
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const size_t size = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if ((first >= 0x80 && first < 0xc2) || first > 0xf4 || size > text.size() - i) return false;
    for (size_t k = 1; k < size; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      // After some first bytes, not all continuation bytes are valid: the character would need fewer bytes or does not
      // exist.
      const unsigned char least = k > 1 ? 0x80 : first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
      const unsigned char most = k > 1 ? 0xbf : first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
      if (next < least || next > most) return false;
    }
    i += size;
  }
  return true;
}

std::optional<NodeInput> parse_input(std::string_view text) {
  NodeInput input;
  if (text.empty()) return std::nullopt;
  if (text[0] == '^') {
    input.node = text.substr(1);
    input.is_control = true;
    return input;
  }
  const size_t colon = text.rfind(':');
  input.node = text.substr(0, colon);
  if (colon == std::string_view::npos) return input;
  const char* end = text.data() + text.size();
  uint32_t slot = 0;
  const auto [at, error] = std::from_chars(text.data() + colon + 1, end, slot);
  if (error != std::errc() || at != end || slot > INT32_MAX || input.node.empty()) return std::nullopt;
  input.slot = static_cast<int32_t>(slot);
  return input;
}

std::optional<int64_t> attr_int(std::string_view attr_value) {
  const std::optional<uint64_t> found = attr_number(attr_value, 3);
  return found ? std::optional<int64_t>(static_cast<int64_t>(*found)) : std::nullopt;
}

std::optional<bool> attr_bool(std::string_view attr_value) {
  const std::optional<uint64_t> found = attr_number(attr_value, 5);
  return found ? std::optional<bool>(*found != 0) : std::nullopt;
}

std::optional<int> attr_type(std::string_view attr_value) {
  const std::optional<uint64_t> found = attr_number(attr_value, 6);
  return found ? std::optional<int>(static_cast<int>(*found)) : std::nullopt;
}

std::optional<std::vector<int>> attr_types(std::string_view attr_value) {
  std::optional<std::vector<int>> found;
  FieldReader reader(attr_value);
  while (reader.next()) {
    if (!reader.is_bytes(1)) {
      if (is_attr_kind(reader)) found.reset();
      continue;
    }
    if (!found) found.emplace();
    FieldReader list(reader.value());
    while (list.next()) {
      if (!read_numbers(list, 6, &*found)) return std::nullopt;
    }
    if (list.failed()) return std::nullopt;
  }
  if (reader.failed()) return std::nullopt;
  return found;
}

std::optional<std::string_view> attr_string(std::string_view attr_value) {
  std::optional<std::string_view> found;
  FieldReader reader(attr_value);
  while (reader.next()) {
    if (is_attr_kind(reader)) found.reset();
    if (reader.is_bytes(2)) found = reader.value();
  }
  return reader.failed() ? std::nullopt : found;
}

std::vector<std::string_view> attr_functions(std::string_view attr_value) {
  std::vector<std::string_view> found;
  const auto add = [&](std::string_view function) {  // a NameAttrList
    std::string_view name;
    FieldReader reader(function);
    while (reader.next()) {
      if (reader.is_bytes(1)) name = reader.value();
    }
    if (!reader.failed() && is_utf8(name)) found.push_back(name);
  };
  FieldReader reader(attr_value);
  while (reader.next()) {
    if (is_attr_kind(reader)) found.clear();
    if (reader.is_bytes(10)) add(reader.value());
    if (!reader.is_bytes(1)) continue;
    FieldReader list(reader.value());
    while (list.next()) {
      if (list.is_bytes(9)) add(list.value());
    }
  }
  return found;
}

void put_bytes_field(std::string* out, uint32_t field, std::string_view value) {
  put_varint(out, (static_cast<uint64_t>(field) << 3) | kBytes);
  put_varint(out, value.size());
  out->append(value);
}

void put_int_field(std::string* out, uint32_t field, uint64_t value) {
  put_varint(out, (static_cast<uint64_t>(field) << 3) | kVarint);
  put_varint(out, value);
}

NodeBuilder::NodeBuilder(std::string_view name, std::string_view op, std::string_view device) {
  put_bytes_field(&bytes_, 1, name);
  put_bytes_field(&bytes_, 2, op);
  if (!device.empty()) put_bytes_field(&bytes_, 4, device);
}

NodeBuilder& NodeBuilder::input(std::string_view text) {
  put_bytes_field(&bytes_, 3, text);
  return *this;
}

NodeBuilder& NodeBuilder::attr(std::string_view name, std::string_view attr_value) {
  std::string entry;
  put_bytes_field(&entry, 1, name);
  put_bytes_field(&entry, 2, attr_value);
  put_bytes_field(&bytes_, 5, entry);
  return *this;
}

NodeBuilder& NodeBuilder::attr_int(std::string_view name, int64_t value) {
  std::string attr_value;
  put_int_field(&attr_value, 3, static_cast<uint64_t>(value));
  return attr(name, attr_value);
}

NodeBuilder& NodeBuilder::attr_ints(std::string_view name, const std::vector<int32_t>& values) {
  std::string list, attr_value;
  for (int32_t value : values) put_int_field(&list, 3, static_cast<uint64_t>(static_cast<int64_t>(value)));
  put_bytes_field(&attr_value, 1, list);
  return attr(name, attr_value);
}

NodeBuilder& NodeBuilder::attr_bool(std::string_view name, bool value) {
  std::string attr_value;
  put_int_field(&attr_value, 5, value ? 1 : 0);
  return attr(name, attr_value);
}

NodeBuilder& NodeBuilder::attr_type(std::string_view name, int type) {
  std::string attr_value;
  put_int_field(&attr_value, 6, static_cast<uint64_t>(type));
  return attr(name, attr_value);
}

NodeBuilder& NodeBuilder::attr_types(std::string_view name, const std::vector<int>& types) {
  std::string list, attr_value;
  for (int type : types) put_int_field(&list, 6, static_cast<uint64_t>(type));
  put_bytes_field(&attr_value, 1, list);
  return attr(name, attr_value);
}

NodeBuilder& NodeBuilder::attr_string(std::string_view name, std::string_view value) {
  std::string attr_value;
  put_bytes_field(&attr_value, 2, value);
  return attr(name, attr_value);
}

std::string with_inputs(const NodeView& node, const std::vector<std::string>& inputs) {
  std::string bytes;
  bytes.reserve(node.bytes.size() + 64 * inputs.size());
  FieldReader reader(node.bytes);
  while (reader.next()) {
    if (!reader.is_bytes(3)) bytes.append(reader.whole());
  }
  for (const std::string& input : inputs) put_bytes_field(&bytes, 3, input);
  return bytes;
}

std::optional<OpTable::Op> OpTable::read_op(std::string_view bytes, std::string* name) {
  Op op;
  FieldReader reader(bytes);
  while (reader.next()) {
    if (reader.is_bytes(1)) *name = std::string(reader.value());
    if (reader.is_bytes(3)) {
      Output output;
      FieldReader arg(reader.value());
      while (arg.next()) {
        if (arg.is_number(3)) output.type = static_cast<int>(arg.number());
        if (arg.is_bytes(4)) output.type_attr = std::string(arg.value());
        if (arg.is_bytes(5)) output.number_attr = std::string(arg.value());
        if (arg.is_bytes(6)) output.type_list_attr = std::string(arg.value());
        if (arg.is_number(16)) output.is_ref = arg.number() != 0;
      }
      if (arg.failed()) return std::nullopt;
      op.outputs.push_back(std::move(output));
    }
    if (reader.is_bytes(4)) {
      std::string key;
      std::optional<std::string> value;
      FieldReader attr(reader.value());
      while (attr.next()) {
        if (attr.is_bytes(1)) key = std::string(attr.value());
        if (attr.is_bytes(3)) value = std::string(attr.value());
      }
      if (attr.failed()) return std::nullopt;
      if (value) op.defaults[key] = *value;
    }
  }
  if (reader.failed()) return std::nullopt;
  return op;
}

bool OpTable::read(std::string_view op_list) {
  ops_.clear();
  FieldReader reader(op_list);
  while (reader.next()) {
    if (!reader.is_bytes(1)) continue;
    std::string name;
    std::optional<Op> op = read_op(reader.value(), &name);
    if (!op) {
      ops_.clear();
      return false;
    }
    ops_[name] = std::move(*op);
  }
  if (reader.failed()) ops_.clear();
  return !reader.failed();
}

std::optional<std::vector<int>> OpTable::output_types(const NodeView& node) const {
  const auto found = ops_.find(std::string(node.op));
  if (found == ops_.end()) return std::nullopt;
  const Op& op = found->second;
  auto value_of = [&](const std::string& name) -> std::optional<std::string_view> {
    if (const std::string_view* value = node.attr(name)) return *value;
    const auto set = op.defaults.find(name);
    if (set == op.defaults.end()) return std::nullopt;
    return std::string_view(set->second);
  };
  std::vector<int> types;
  for (const Output& output : op.outputs) {
    if (!output.type_list_attr.empty()) {
      const auto value = value_of(output.type_list_attr);
      const auto list = value ? attr_types(*value) : std::nullopt;
      if (!list || list->size() > kMaxOutputs - types.size()) return std::nullopt;
      types.insert(types.end(), list->begin(), list->end());
      continue;
    }
    int type = output.type;
    if (!output.type_attr.empty()) {
      const auto value = value_of(output.type_attr);
      const auto set = value ? attr_type(*value) : std::nullopt;
      if (!set) return std::nullopt;
      type = *set;
    }
    int64_t number = 1;
    if (!output.number_attr.empty()) {
      const auto value = value_of(output.number_attr);
      const auto set = value ? attr_int(*value) : std::nullopt;
      if (!set || *set < 0) return std::nullopt;
      number = *set;
    }
    if (number > static_cast<int64_t>(kMaxOutputs - types.size())) return std::nullopt;
    constexpr int kFirstReference = 100;  // DT_FLOAT_REF is 101
    const int value_type = type > kFirstReference ? type - kFirstReference : type;
    const bool is_reference = output.is_ref || type > kFirstReference;
    types.insert(types.end(), static_cast<size_t>(number), is_reference ? -value_type : type);
  }
  return types;
}

}  // namespace tfdbg_arrow
