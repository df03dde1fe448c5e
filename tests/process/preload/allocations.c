/* Counts a process's calls of the allocator, in the file that OSTRACA_ALLOCATIONS names: eight bytes, mapped.
 *
 * The bench preloads this library (LD_PRELOAD) into the node, which knows nothing of it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static uint64_t nowhere, *count = &nowhere;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("OSTRACA_ALLOCATIONS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *map = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED)
        count = map;
    close(fd);
}

static void one(void) { __atomic_fetch_add(count, 1, __ATOMIC_RELAXED); }

void *malloc(size_t size) {
    one();
    return __libc_malloc(size);
}

void *calloc(size_t many, size_t size) {
    one();
    return __libc_calloc(many, size);
}

void *realloc(void *old, size_t size) {
    one();
    return __libc_realloc(old, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    one();
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **result, size_t alignment, size_t size) {
    one();
    void *made = __libc_memalign(alignment, size);
    if (made == NULL)
        return ENOMEM;
    *result = made;
    return 0;
}
