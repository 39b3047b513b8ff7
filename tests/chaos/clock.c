// A library to preload that moves the wall clock of a process.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

static atomic_long step_s;

// Moves the clock by this many seconds from the real time.
void chaos_step_clock(long seconds) { atomic_store(&step_s, seconds); }

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (real == NULL) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int status = real(clock, now);
  if (status == 0 && clock == CLOCK_REALTIME) now->tv_sec += atomic_load(&step_s);
  return status;
}
