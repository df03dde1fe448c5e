// What wasi-libc asks of an operating system, which an entity does not have: what is printed goes to the entity's log,
// time and random numbers are those of the turn, and everything else fails.
#include "ostraca.h"

#include <stdlib.h>
#include <string.h>

enum { DONE = 0, BAD_FD = 8, NOT_SUPPORTED = 58 };

#define IMPORTED(name) __imported_wasi_snapshot_preview1_##name

typedef struct {
  const uint8_t *ptr;
  size_t len;
} part;

int32_t IMPORTED(fd_write)(int32_t fd, int32_t parts, int32_t count, int32_t written) {
  if (fd != 1 && fd != 2) return BAD_FD;
  const part *all = (const part *)parts;
  size_t len = 0;
  for (int32_t i = 0; i < count; i++) len += all[i].len;
  ostraca_string line = { malloc(len + 1), 0 };
  if (line.ptr == NULL) abort();
  for (int32_t i = 0; i < count; i++) {
    memcpy(line.ptr + line.len, all[i].ptr, all[i].len);
    line.len += all[i].len;
  }
  while (line.len > 0 && line.ptr[line.len - 1] == '\n') line.len--;
  if (line.len > 0) {
    ostraca_entity_log_log(fd == 1 ? OSTRACA_ENTITY_LOG_LEVEL_INFO : OSTRACA_ENTITY_LOG_LEVEL_WARN, &line);
  }
  free(line.ptr);
  *(size_t *)written = len;
  return DONE;
}

int32_t IMPORTED(fd_close)(int32_t fd) {
  (void)fd;
  return BAD_FD;
}

int32_t IMPORTED(fd_seek)(int32_t fd, int64_t offset, int32_t whence, int32_t at) {
  (void)fd, (void)offset, (void)whence, (void)at;
  return BAD_FD;
}

int32_t IMPORTED(fd_read)(int32_t fd, int32_t parts, int32_t count, int32_t read) {
  (void)fd, (void)parts, (void)count, (void)read;
  return BAD_FD;
}

int32_t IMPORTED(fd_fdstat_get)(int32_t fd, int32_t stat) {
  (void)fd, (void)stat;
  return BAD_FD;
}

int32_t IMPORTED(clock_time_get)(int32_t clock, int64_t precision, int32_t time) {
  (void)clock, (void)precision;
  *(uint64_t *)time = ostraca_entity_clock_now() * 1000000;
  return DONE;
}

int32_t IMPORTED(random_get)(int32_t at, int32_t len) {
  ostraca_bytes bytes;
  ostraca_entity_random_get_bytes(len, &bytes);
  memcpy((void *)at, bytes.ptr, bytes.len);
  entity_list_u8_free(&bytes);
  return DONE;
}

int32_t IMPORTED(environ_sizes_get)(int32_t count, int32_t bytes) {
  *(size_t *)count = 0;
  *(size_t *)bytes = 0;
  return DONE;
}

int32_t IMPORTED(environ_get)(int32_t variables, int32_t texts) {
  (void)variables, (void)texts;
  return NOT_SUPPORTED;
}

_Noreturn void IMPORTED(proc_exit)(int32_t code) {
  (void)code;
  ostraca_panic("exit was called");
}
