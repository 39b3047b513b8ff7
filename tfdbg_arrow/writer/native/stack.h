// Interned Python stacks: each distinct sequence of (code object, instruction) once.
// All functions need the GIL.
#pragma once

#include <Python.h>

#include <cstdint>

namespace tfdbg_arrow {

// Walks the calling thread's Python stack, innermost frame first, leaving out the first `skip`
// frames, and returns its id, the same for the same stack. -1 if there is no frame.
// The code objects of a new stack are held until forget_stacks(): their addresses are part of the key.
int64_t intern_stack(int skip);

// Who is told of a new stack, as (id, [(code object, byte offset of the instruction)]), before its id is given to
// anyone: so no record names a stack of which nothing was written. None: nobody.
void set_stack_handler(PyObject* on_new_stack);

// Ids count from 0 again: a recording has the stacks of its own events, not those of the ones before.
void forget_stacks();

}  // namespace tfdbg_arrow
