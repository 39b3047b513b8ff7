// Interned Python stacks: each distinct sequence of (code object, instruction) once.
// All functions need the GIL.
#pragma once

#include <Python.h>

#include <cstdint>

namespace tfdbg_arrow {

// Walks the calling thread's Python stack from the innermost frame, without the first `skip` frames, and returns its
// ID, which is the same for the same stack. Returns -1 if there is no frame. The code objects of a new stack are held
// until forget_stacks(), because their addresses are part of the key. Also returns -1 if the handler failed.
int64_t intern_stack(int skip);

// Sets the handler for new stacks, called as (ID, code objects, byte offsets of their instructions) before the ID is
// returned, so that no record refers to a stack that was not written. Both lists begin with the innermost frame. The
// handler returns the ID under which it wrote a stack with the same rows: this one or an earlier one. None removes the
// handler.
void set_stack_handler(PyObject* on_new_stack);

// Forgets all stacks; the next ID is 0. Each recording only has the stacks of its own events.
void forget_stacks();

}  // namespace tfdbg_arrow
