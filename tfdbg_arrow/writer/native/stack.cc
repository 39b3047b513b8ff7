#include "stack.h"

#include <unordered_map>
#include <utility>
#include <vector>

#include "eager.h"

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

int64_t g_next_id = 0;
PyObject* g_on_new_stack = nullptr;

enum class Told { kYes, kFailed, kInterrupted };

// Passes a new stack to the handler, which writes the stack's rows, and replaces the ID by the ID that the handler
// returns. Returns kInterrupted if an exception of the program was raised meanwhile.
Told tell(int64_t& id, const Frames& frames) {
  if (g_on_new_stack == nullptr) return Told::kYes;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* handler = g_on_new_stack;
  Py_INCREF(handler);
  // With a pair for each frame, Python's garbage collector would have to examine a hundred objects.
  PyObject* codes = PyList_New(static_cast<Py_ssize_t>(frames.size()));
  PyObject* instructions = PyList_New(static_cast<Py_ssize_t>(frames.size()));
  bool is_complete = codes != nullptr && instructions != nullptr;
  for (size_t i = 0; is_complete && i < frames.size(); ++i) {
    PyObject* instruction = PyLong_FromLong(frames[i].second);
    is_complete = instruction != nullptr;
    Py_INCREF(frames[i].first);
    PyList_SET_ITEM(codes, static_cast<Py_ssize_t>(i), frames[i].first);
    PyList_SET_ITEM(instructions, static_cast<Py_ssize_t>(i), instruction);
  }
  PyObject* result =
      is_complete ? PyObject_CallFunction(handler, "LOO", static_cast<long long>(id), codes, instructions) : nullptr;
  Told told = Told::kYes;
  const int64_t written = result == nullptr ? -1 : PyLong_AsLongLong(result);
  if (PyErr_Occurred() != nullptr) told = report_error("recording a stack") ? Told::kInterrupted : Told::kFailed;
  if (told == Told::kYes) id = written;
  Py_XDECREF(result);
  Py_XDECREF(codes);
  Py_XDECREF(instructions);
  Py_DECREF(handler);
  PyErr_Restore(type, value, traceback);
  return told;
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
      // The frame keeps its code alive during the walk; interning takes its own reference.
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
  Frames own = frames;  // while the handler runs, any thread may walk another stack
  int64_t id = g_next_id++;
  const Told told = tell(id, own);
  if (told == Told::kInterrupted) {  // its rows may be missing: write them, with another ID, the next time
    for (auto& entry : own) Py_DECREF(entry.first);
    return -1;
  }
  auto [place, is_new] = ids().emplace(own, told == Told::kYes ? id : -1);
  if (!is_new) {  // another thread added the same stack meanwhile: use its ID
    for (auto& entry : own) Py_DECREF(entry.first);
  }
  return place->second;
}

void set_stack_handler(PyObject* on_new_stack) {
  PyObject* before = g_on_new_stack;
  g_on_new_stack = on_new_stack == Py_None ? nullptr : on_new_stack;
  Py_XINCREF(g_on_new_stack);
  Py_XDECREF(before);
}

void forget_stacks() {
  // Releasing a code object can run callbacks of weak references, so first remove all pointers to it from our data.
  std::vector<PyObject*> codes;
  for (const auto& [frames, id] : ids()) {
    for (const auto& entry : frames) codes.push_back(entry.first);
  }
  ids().clear();
  g_next_id = 0;
  for (PyObject* code : codes) Py_DECREF(code);
}

}  // namespace tfdbg_arrow
