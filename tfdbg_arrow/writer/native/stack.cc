#include "stack.h"

#include <deque>
#include <unordered_map>

namespace tfdbg_arrow {
namespace {

using Frames = std::vector<std::pair<PyObject*, int>>;

struct FramesHash {
  size_t operator()(const Frames& frames) const {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (const auto& [code, instruction] : frames) {
      hash ^= (reinterpret_cast<uintptr_t>(code) >> 4) * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(instruction);
      hash *= 0x100000001b3ull;
    }
    return hash ^ (hash >> 29);
  }
};

std::unordered_map<Frames, int64_t, FramesHash>& ids() {
  static auto* map = new std::unordered_map<Frames, int64_t, FramesHash>();
  return *map;
}

// The keys of the map, by id; a map's node never moves.
std::deque<const Frames*>& by_id() {
  static auto* list = new std::deque<const Frames*>();
  return *list;
}

}  // namespace

int64_t intern_stack(int skip) {
  static Frames* scratch = new Frames();  // guarded by the GIL
  Frames& frames = *scratch;
  frames.clear();
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  for (int depth = 0; frame != nullptr; ++depth) {
    if (depth >= skip) {
      PyCodeObject* code = PyFrame_GetCode(frame);
      // The frame keeps its code alive while we walk; interning takes a reference of its own.
      frames.emplace_back(reinterpret_cast<PyObject*>(code), PyFrame_GetLasti(frame));
      Py_DECREF(code);
    }
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  if (frames.empty()) return -1;
  auto found = ids().find(frames);
  if (found != ids().end()) return found->second;
  for (auto& entry : frames) Py_INCREF(entry.first);
  auto id = static_cast<int64_t>(by_id().size());
  auto inserted = ids().emplace(frames, id).first;
  by_id().push_back(&inserted->first);
  return id;
}

void forget_stacks() {
  // Dropping a code object can run weak references' callbacks: nothing of ours may point to it by then.
  std::vector<PyObject*> codes;
  for (const Frames* frames : by_id()) {
    for (const auto& entry : *frames) codes.push_back(entry.first);
  }
  by_id().clear();
  ids().clear();
  for (PyObject* code : codes) Py_DECREF(code);
}

const Frames& stack_frames(int64_t id) { return *by_id().at(static_cast<size_t>(id)); }

int64_t num_stacks() { return static_cast<int64_t>(by_id().size()); }

}  // namespace tfdbg_arrow
