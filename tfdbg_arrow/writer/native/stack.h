// Interned Python stacks: each distinct sequence of (code object, instruction) is stored once.
// All functions need the GIL.
#pragma once

#include <Python.h>

#include <cstdint>

namespace tfdbg_arrow {

// Walks the calling thread's Python stack from the innermost frame, without the first `skip` frames, and returns the ID
// of the stack. Equal stacks have the same ID. The code objects of a new stack are held until forget_stacks(), because
// their addresses are part of the key. Returns -1 if there is no frame or if the handler failed.
int64_t intern_stack(int skip);

// Sets the handler for new stacks. Its arguments are the ID, the code objects, and the byte offsets of their
// instructions; both lists begin with the innermost frame. It is called before the ID is returned, so that no record
// refers to a stack that was not written. The handler returns the ID under which it wrote a stack with the same rows:
// the given ID or an earlier ID. None removes the handler.
void set_stack_handler(PyObject* on_new_stack);

// Forgets all stacks; the next ID is 0. Each recording only has the stacks of its own events.
void forget_stacks();

}  // namespace tfdbg_arrow
