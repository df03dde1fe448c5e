/* Records what a process writes and syncs below one directory, and makes its syncs fail on request.
 *
 * Tests preload this library (LD_PRELOAD) into the node, which knows nothing of it.
 *   OSTRACA_RECORD_UNDER  only files whose path begins with this are recorded
 *   OSTRACA_RECORD_LOG    where the records go; see src/io_recorder.rs for their format
 *   OSTRACA_RECORD_DATA   if set, the written bytes are recorded too
 *   OSTRACA_RECORD_SLOW_MS  each sync takes this many milliseconds longer
 *   OSTRACA_RECORD_FAIL   while a file of this name exists, every sync fails with EIO
 *
 * A record is appended in one write after its call has returned, with the call's start and end on
 * CLOCK_MONOTONIC. So every call that returned before a sync began comes before that sync in the log.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind { CREATE = 1, WRITE, FDATASYNC, FSYNC, SYNC_RANGE, TRUNCATE, RENAME, UNLINK, MKDIR, UNSEEN };

struct head {
    uint32_t magic;
    uint32_t kind;
    uint64_t start, end;
    uint64_t offset;
    int64_t result;
    uint32_t path_len, data_len;
};

static const char *under, *fail;
static int log_fd = -1, with_data, slow_ms;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

__attribute__((constructor)) static void begin(void) {
    const char *log = getenv("OSTRACA_RECORD_LOG");
    under = getenv("OSTRACA_RECORD_UNDER");
    fail = getenv("OSTRACA_RECORD_FAIL");
    with_data = getenv("OSTRACA_RECORD_DATA") != NULL;
    const char *slow = getenv("OSTRACA_RECORD_SLOW_MS");
    slow_ms = slow ? atoi(slow) : 0;
    if (log && under)
        log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int ours(const char *path) {
    return log_fd >= 0 && strncmp(path, under, strlen(under)) == 0;
}

/* The path of a descriptor, if its file is to be recorded. */
static int path_of(int fd, char path[PATH_MAX]) {
    char link[64];
    if (log_fd < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return ours(path);
}

static int absolute(const char *name, char path[PATH_MAX]) {
    if (log_fd < 0) return 0;
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
    } else {
        char here[PATH_MAX];
        if (!getcwd(here, sizeof here)) return 0;
        if (snprintf(path, PATH_MAX, "%s/%s", here, name) >= PATH_MAX) return 0;
    }
    return ours(path);
}

static void record(enum kind kind, uint64_t start, uint64_t offset, int64_t result, const char *path,
                   const void *data, size_t length) {
    int saved = errno;
    struct head head = {0x0573ACA5, kind, start, now(), offset, result, (uint32_t)strlen(path), (uint32_t)length};
    struct iovec parts[3] = {{&head, sizeof head}, {(void *)path, head.path_len}, {(void *)data, length}};
    syscall(SYS_writev, log_fd, parts, length ? 3 : 2);
    errno = saved;
}

static int refuses(void) {
    if (!fail || syscall(SYS_faccessat, AT_FDCWD, fail, F_OK) != 0) return 0;
    errno = EIO;
    return 1;
}

#define REAL(type, name, ...)                                  \
    static type (*real)(__VA_ARGS__);                          \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

/* A write is recorded with the bytes that it actually wrote. */
static ssize_t written(int fd, const void *data, off64_t offset, uint64_t start, ssize_t result) {
    char path[PATH_MAX];
    int saved = errno;
    if (result > 0 && path_of(fd, path)) {
        if (offset < 0) offset = (off64_t)lseek64(fd, 0, SEEK_CUR) - result;
        record(WRITE, start, (uint64_t)offset, result, path, data, with_data ? (size_t)result : 0);
    }
    errno = saved;
    return result;
}

ssize_t write(int fd, const void *data, size_t length) {
    REAL(ssize_t, "write", int, const void *, size_t);
    uint64_t start = now();
    return written(fd, data, -1, start, real(fd, data, length));
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    uint64_t start = now();
    return written(fd, data, offset, start, real(fd, data, length, offset));
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
    uint64_t start = now();
    return written(fd, data, offset, start, real(fd, data, length, offset));
}

/* Not parsed: a test that reads this kind fails, and says which call to add here. */
ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    uint64_t start = now();
    ssize_t result = real(fd, parts, count);
    char path[PATH_MAX];
    if (path_of(fd, path)) record(UNSEEN, start, 0, result, path, "writev", 6);
    return result;
}

static int synced(enum kind kind, int fd, int (*real)(int)) {
    char path[PATH_MAX];
    if (!path_of(fd, path)) return real(fd);
    uint64_t start = now();
    if (slow_ms > 0) {
        struct timespec wait = {slow_ms / 1000, (slow_ms % 1000) * 1000000L};
        nanosleep(&wait, NULL);
    }
    int result = refuses() ? -1 : real(fd);
    record(kind, start, 0, result, path, NULL, 0);
    return result;
}

int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    return synced(FDATASYNC, fd, real);
}

int fsync(int fd) {
    REAL(int, "fsync", int);
    return synced(FSYNC, fd, real);
}

int sync_file_range(int fd, off64_t offset, off64_t length, unsigned int flags) {
    REAL(int, "sync_file_range", int, off64_t, off64_t, unsigned int);
    char path[PATH_MAX];
    if (!path_of(fd, path)) return real(fd, offset, length, flags);
    uint64_t start = now();
    int result = refuses() ? -1 : real(fd, offset, length, flags);
    record(SYNC_RANGE, start, (uint64_t)offset, result, path, NULL, 0);
    return result;
}

static int truncated(int fd, off64_t length, uint64_t start, int result) {
    char path[PATH_MAX];
    if (result == 0 && path_of(fd, path)) record(TRUNCATE, start, (uint64_t)length, 0, path, NULL, 0);
    return result;
}

int ftruncate64(int fd, off64_t length) {
    REAL(int, "ftruncate64", int, off64_t);
    uint64_t start = now();
    return truncated(fd, length, start, real(fd, length));
}

int ftruncate(int fd, off_t length) {
    REAL(int, "ftruncate", int, off_t);
    uint64_t start = now();
    return truncated(fd, length, start, real(fd, length));
}

static int opened(int flags, int existed, uint64_t start, int fd) {
    char path[PATH_MAX];
    int saved = errno;
    if (fd >= 0 && (flags & (O_CREAT | O_TRUNC)) && path_of(fd, path)) {
        if (!existed)
            record(CREATE, start, 0, 0, path, NULL, 0);
        else if (flags & O_TRUNC)
            record(TRUNCATE, start, 0, 0, path, NULL, 0);
    }
    errno = saved;
    return fd;
}

static int exists(int at, const char *name) {
    int saved = errno;
    int there = syscall(SYS_faccessat, at, name, F_OK) == 0;
    errno = saved;
    return there;
}

#define MODE(flags)                                   \
    mode_t mode = 0;                                  \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {          \
        va_list more;                                 \
        va_start(more, flags);                        \
        mode = va_arg(more, mode_t);                  \
        va_end(more);                                 \
    }

int open64(const char *name, int flags, ...) {
    REAL(int, "open64", const char *, int, ...);
    MODE(flags)
    int there = exists(AT_FDCWD, name);
    uint64_t start = now();
    return opened(flags, there, start, real(name, flags, mode));
}

int open(const char *name, int flags, ...) {
    REAL(int, "open", const char *, int, ...);
    MODE(flags)
    int there = exists(AT_FDCWD, name);
    uint64_t start = now();
    return opened(flags, there, start, real(name, flags, mode));
}

int openat64(int at, const char *name, int flags, ...) {
    REAL(int, "openat64", int, const char *, int, ...);
    MODE(flags)
    int there = exists(at, name);
    uint64_t start = now();
    return opened(flags, there, start, real(at, name, flags, mode));
}

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    char path[PATH_MAX], target[PATH_MAX];
    uint64_t start = now();
    int result = real(from, to);
    if (result == 0 && absolute(from, path) && absolute(to, target))
        record(RENAME, start, 0, 0, path, target, strlen(target));
    return result;
}

int unlink(const char *name) {
    REAL(int, "unlink", const char *);
    char path[PATH_MAX];
    uint64_t start = now();
    int result = real(name);
    if (result == 0 && absolute(name, path)) record(UNLINK, start, 0, 0, path, NULL, 0);
    return result;
}

int mkdir(const char *name, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    char path[PATH_MAX];
    uint64_t start = now();
    int result = real(name, mode);
    if (result == 0 && absolute(name, path)) record(MKDIR, start, 0, 0, path, NULL, 0);
    return result;
}
