// Interned Python stacks: each distinct sequence of (code object, instruction) once.
// All functions need the GIL.
#pragma once

#include <Python.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace tfdbg_arrow {

// Walks the calling thread's Python stack, innermost frame first, leaving out the first `skip`
// frames, and returns its id, the same for the same stack. -1 if there is no frame.
// The code objects of a new stack are held until forget_stacks(): their addresses are part of the key.
int64_t intern_stack(int skip);

// Ids count from 0 again: a recording has the stacks of its own events, not those of the ones before.
void forget_stacks();

// The frames of stack `id` as (code object (borrowed), byte offset of the instruction).
const std::vector<std::pair<PyObject*, int>>& stack_frames(int64_t id);
int64_t num_stacks();

}  // namespace tfdbg_arrow
