// The example `counter`, in C.
#include "ostraca.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const ostraca_method METHODS[] = {
  { "add", OSTRACA_COMMAND, "Adds to the value, and returns it." },
  { "get", OSTRACA_QUERY, "Returns the value." },
};

void exports_ostraca_entity_methods_methods(exports_ostraca_entity_methods_list_method_t *all) {
  ostraca_list(all, METHODS, sizeof METHODS / sizeof *METHODS);
}

static uint64_t stored(ostraca_string *key) {
  ostraca_bytes bytes;
  uint64_t value = 0;
  if (ostraca_entity_state_get(key, &bytes)) {
    if (bytes.len == sizeof value) memcpy(&value, bytes.ptr, sizeof value);
    entity_list_u8_free(&bytes);
  }
  return value;
}

// A number in JSON, without a sign, a fraction and an exponent.
static bool parse(const ostraca_bytes *body, uint64_t *number) {
  char text[21];
  if (body->len == 0 || body->len >= sizeof text) return false;
  for (size_t i = 0; i < body->len; i++) {
    if (body->ptr[i] < '0' || body->ptr[i] > '9') return false;
    text[i] = body->ptr[i];
  }
  text[body->len] = 0;
  *number = strtoull(text, NULL, 10);
  return true;
}

static bool run(ostraca_string *method, ostraca_bytes *body, ostraca_bytes *reply, ostraca_error *error) {
  ostraca_string key = ostraca_text("value");
  uint64_t value = stored(&key), by;
  if (ostraca_is(method, "add")) {
    if (!parse(body, &by)) return ostraca_invalid_arguments(error, "add a whole number from 0");
    if (value + by < value) return ostraca_refuse(error, "overflow", "the counter would overflow");
    value += by;
    ostraca_bytes bytes = { (uint8_t *)&value, sizeof value };
    ostraca_entity_state_set(&key, &bytes);
  } else if (!ostraca_is(method, "get")) {
    return ostraca_unknown_method(error);
  }
  char text[21];
  return ostraca_reply(reply, text, snprintf(text, sizeof text, "%" PRIu64, value));
}

bool exports_ostraca_entity_handler_message(
    ostraca_string *method, ostraca_bytes *body, ostraca_bytes *reply, ostraca_error *error) {
  bool done = run(method, body, reply, error);
  entity_string_free(method);
  entity_list_u8_free(body);
  return done;
}
