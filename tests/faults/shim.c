// A library to preload that makes file operations of this process fail. The operations are those on paths below a
// directory, and on descriptors that were opened there. Nothing is counted before `faults_arm`, and nothing fails after
// `faults_disarm`.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_DESCRIPTORS 65536
#define MAX_NAMES 100000

static char directory[4096];
static size_t directory_length;
static atomic_char tracked[MAX_DESCRIPTORS];
static atomic_int is_armed;
static atomic_long count;
static long first_failing, end_failing;
static int failing_errno;  // 0: writes are cut short
static const char *names[MAX_NAMES];

// From now on, operations are counted, from 0. Operations with a number from `first` to `end` (excluded) fail.
void faults_arm(const char *below, long first, long end, int error) {
  strncpy(directory, below, sizeof(directory) - 1);
  directory_length = strlen(directory);
  first_failing = first;
  end_failing = end;
  failing_errno = error;
  atomic_store(&count, 0);
  atomic_store(&is_armed, 1);
}

// Returns the number of operations that were counted.
long faults_disarm(void) {
  atomic_store(&is_armed, 0);
  return atomic_load(&count);
}

// The name of a counted operation.
const char *faults_name(long number) { return number < MAX_NAMES ? names[number] : "?"; }

enum Verdict { PASS, FAIL, SHORT };

static enum Verdict verdict(const char *name, int is_write) {
  long number = atomic_fetch_add(&count, 1);
  if (number < MAX_NAMES) names[number] = name;
  if (number < first_failing || number >= end_failing) return PASS;
  if (failing_errno == 0) return is_write ? SHORT : PASS;
  errno = failing_errno;
  return FAIL;
}

static int is_below(const char *path) {
  return directory_length > 0 && path != NULL && strncmp(path, directory, directory_length) == 0 &&
         (path[directory_length] == '/' || path[directory_length] == '\0');
}

static int is_tracked(int fd) { return fd >= 0 && fd < MAX_DESCRIPTORS && atomic_load(&tracked[fd]); }

static int track(int fd, const char *path) {
  if (fd >= 0 && fd < MAX_DESCRIPTORS) atomic_store(&tracked[fd], (char)is_below(path));
  return fd;
}

// Defines `real` as the function that this function replaces.
#define REAL(result, name, ...)                               \
  static result (*real)(__VA_ARGS__);                         \
  if (real == NULL) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define ON_PATH(path) (atomic_load(&is_armed) && is_below(path))
#define ON_FD(fd) (atomic_load(&is_armed) && is_tracked(fd))

#define OPEN(name)                                                               \
  int name(const char *path, int flags, ...) {                                   \
    REAL(int, name, const char *, int, ...);                                     \
    va_list arguments;                                                           \
    va_start(arguments, flags);                                                  \
    int mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, int) : 0; \
    va_end(arguments);                                                           \
    if (ON_PATH(path) && verdict("open", 0) == FAIL) return -1;                  \
    return track(real(path, flags, mode), path);                                 \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                             \
  int name(int at, const char *path, int flags, ...) {                           \
    REAL(int, name, int, const char *, int, ...);                                \
    va_list arguments;                                                           \
    va_start(arguments, flags);                                                  \
    int mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, int) : 0; \
    va_end(arguments);                                                           \
    if (ON_PATH(path) && verdict("open", 0) == FAIL) return -1;                  \
    return track(real(at, path, flags, mode), path);                             \
  }
OPENAT(openat)
OPENAT(openat64)

#define OPEN_2(name)                                            \
  int name(const char *path, int flags) {                       \
    REAL(int, name, const char *, int);                         \
    if (ON_PATH(path) && verdict("open", 0) == FAIL) return -1; \
    return track(real(path, flags), path);                      \
  }
OPEN_2(__open_2)
OPEN_2(__open64_2)

int close(int fd) {
  REAL(int, close, int);
  if (fd >= 0 && fd < MAX_DESCRIPTORS) atomic_store(&tracked[fd], 0);
  return real(fd);
}

ssize_t write(int fd, const void *data, size_t size) {
  REAL(ssize_t, write, int, const void *, size_t);
  if (ON_FD(fd)) {
    enum Verdict found = verdict("write", 1);
    if (found == FAIL) return -1;
    if (found == SHORT && size > 1) size /= 2;
  }
  return real(fd, data, size);
}

#define PWRITE(name)                                                 \
  ssize_t name(int fd, const void *data, size_t size, off_t offset) { \
    REAL(ssize_t, name, int, const void *, size_t, off_t);           \
    if (ON_FD(fd)) {                                                 \
      enum Verdict found = verdict("pwrite", 1);                     \
      if (found == FAIL) return -1;                                  \
      if (found == SHORT && size > 1) size /= 2;                     \
    }                                                                \
    return real(fd, data, size, offset);                             \
  }
PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t writev(int fd, const struct iovec *pieces, int num_pieces) {
  REAL(ssize_t, writev, int, const struct iovec *, int);
  if (ON_FD(fd)) {
    enum Verdict found = verdict("writev", 1);
    if (found == FAIL) return -1;
    if (found == SHORT && num_pieces > 1) num_pieces = 1;
  }
  return real(fd, pieces, num_pieces);
}

// Defines a function that takes a descriptor, and that returns -1 and sets errno when it fails.
#define OF_FD(result, name, label, parameters, arguments, ...)        \
  result name parameters {                                            \
    REAL(result, name, __VA_ARGS__);                                  \
    if (ON_FD(fd) && verdict(label, 0) == FAIL) return (result)-1;    \
    return real arguments;                                            \
  }
#define OF_PATH(result, name, label, parameters, arguments, ...)      \
  result name parameters {                                            \
    REAL(result, name, __VA_ARGS__);                                  \
    if (ON_PATH(path) && verdict(label, 0) == FAIL) return (result)-1; \
    return real arguments;                                            \
  }

OF_FD(ssize_t, read, "read", (int fd, void *data, size_t size), (fd, data, size), int, void *, size_t)
OF_FD(ssize_t, pread, "pread", (int fd, void *data, size_t size, off_t offset), (fd, data, size, offset), int, void *,
      size_t, off_t)
OF_FD(ssize_t, pread64, "pread", (int fd, void *data, size_t size, off_t offset), (fd, data, size, offset), int,
      void *, size_t, off_t)
OF_FD(ssize_t, preadv, "pread", (int fd, const struct iovec *pieces, int n, off_t offset), (fd, pieces, n, offset),
      int, const struct iovec *, int, off_t)
OF_FD(ssize_t, preadv64, "pread", (int fd, const struct iovec *pieces, int n, off_t offset), (fd, pieces, n, offset),
      int, const struct iovec *, int, off_t)
OF_FD(ssize_t, preadv2, "pread", (int fd, const struct iovec *pieces, int n, off_t offset, int flags),
      (fd, pieces, n, offset, flags), int, const struct iovec *, int, off_t, int)
OF_FD(ssize_t, preadv64v2, "pread", (int fd, const struct iovec *pieces, int n, off_t offset, int flags),
      (fd, pieces, n, offset, flags), int, const struct iovec *, int, off_t, int)
OF_FD(int, ftruncate, "ftruncate", (int fd, off_t size), (fd, size), int, off_t)
OF_FD(int, ftruncate64, "ftruncate", (int fd, off_t size), (fd, size), int, off_t)
OF_FD(int, fallocate, "fallocate", (int fd, int mode, off_t start, off_t size), (fd, mode, start, size), int, int,
      off_t, off_t)
OF_FD(int, fallocate64, "fallocate", (int fd, int mode, off_t start, off_t size), (fd, mode, start, size), int, int,
      off_t, off_t)
OF_FD(int, flock, "flock", (int fd, int kind), (fd, kind), int, int)
OF_FD(int, fstat, "fstat", (int fd, struct stat *found), (fd, found), int, struct stat *)
OF_FD(int, fstat64, "fstat", (int fd, struct stat64 *found), (fd, found), int, struct stat64 *)
OF_FD(int, futimens, "futimens", (int fd, const struct timespec times[2]), (fd, times), int, const struct timespec *)
OF_FD(void *, mmap, "mmap", (void *at, size_t size, int prot, int flags, int fd, off_t offset),
      (at, size, prot, flags, fd, offset), void *, size_t, int, int, int, off_t)
OF_FD(void *, mmap64, "mmap", (void *at, size_t size, int prot, int flags, int fd, off_t offset),
      (at, size, prot, flags, fd, offset), void *, size_t, int, int, int, off_t)
OF_PATH(int, unlink, "unlink", (const char *path), (path), const char *)
OF_PATH(int, unlinkat, "unlink", (int at, const char *path, int flags), (at, path, flags), int, const char *, int)
OF_PATH(int, mkdir, "mkdir", (const char *path, mode_t mode), (path, mode), const char *, mode_t)
OF_PATH(int, rename, "rename", (const char *path, const char *to), (path, to), const char *, const char *)
OF_PATH(int, link, "link", (const char *path, const char *to), (path, to), const char *, const char *)
OF_PATH(int, stat, "stat", (const char *path, struct stat *found), (path, found), const char *, struct stat *)
OF_PATH(int, stat64, "stat", (const char *path, struct stat64 *found), (path, found), const char *, struct stat64 *)
OF_PATH(int, lstat, "stat", (const char *path, struct stat *found), (path, found), const char *, struct stat *)
OF_PATH(int, lstat64, "stat", (const char *path, struct stat64 *found), (path, found), const char *, struct stat64 *)
OF_PATH(int, fstatat, "stat", (int at, const char *path, struct stat *found, int flags), (at, path, found, flags), int,
        const char *, struct stat *, int)
OF_PATH(int, fstatat64, "stat", (int at, const char *path, struct stat64 *found, int flags), (at, path, found, flags),
        int, const char *, struct stat64 *, int)

DIR *opendir(const char *path) {
  REAL(DIR *, opendir, const char *);
  if (ON_PATH(path) && verdict("opendir", 0) == FAIL) return NULL;
  return real(path);
}

// The tests need no data after a crash of the machine, so these functions sync nothing.
int fsync(int fd) {
  REAL(int, fsync, int);
  if (!ON_FD(fd)) return real(fd);
  return verdict("fsync", 0) == FAIL ? -1 : 0;
}

int fdatasync(int fd) {
  REAL(int, fdatasync, int);
  if (!ON_FD(fd)) return real(fd);
  return verdict("fdatasync", 0) == FAIL ? -1 : 0;
}

// These functions return the error.
#define POSIX_FALLOCATE(name)                                                  \
  int name(int fd, off_t start, off_t size) {                                  \
    REAL(int, name, int, off_t, off_t);                                        \
    if (ON_FD(fd) && verdict("posix_fallocate", 0) == FAIL) return failing_errno; \
    return real(fd, start, size);                                              \
  }
POSIX_FALLOCATE(posix_fallocate)
POSIX_FALLOCATE(posix_fallocate64)
