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

// Passes a new stack to the handler.
void tell(int64_t id, const Frames& frames) {
  if (g_on_new_stack == nullptr) return;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* handler = g_on_new_stack;
  Py_INCREF(handler);
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(frames.size()));
  for (size_t i = 0; list != nullptr && i < frames.size(); ++i) {
    PyObject* pair = Py_BuildValue("(Oi)", frames[i].first, frames[i].second);
    if (pair == nullptr) Py_CLEAR(list);
    else PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), pair);
  }
  PyObject* result = list == nullptr ? nullptr : PyObject_CallFunction(handler, "LO", static_cast<long long>(id), list);
  if (result == nullptr) report_error("recording a stack");
  Py_XDECREF(result);
  Py_XDECREF(list);
  Py_DECREF(handler);
  PyErr_Restore(type, value, traceback);
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
  Frames own = frames;  // while the handler runs, other threads walk their stacks, and this one may walk another
  int64_t id = g_next_id++;
  tell(id, own);
  auto [place, is_new] = ids().emplace(own, id);
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
  // Releasing a code object can run callbacks of weak references, so none of our data may point to it by then.
  std::vector<PyObject*> codes;
  for (const auto& [frames, id] : ids()) {
    for (const auto& entry : frames) codes.push_back(entry.first);
  }
  ids().clear();
  g_next_id = 0;
  for (PyObject* code : codes) Py_DECREF(code);
}

}  // namespace tfdbg_arrow
