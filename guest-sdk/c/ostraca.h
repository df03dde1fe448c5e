// What an entity in C includes: the WIT package in C (entity.h, which `ostraca build` writes), and a few helpers.
//
// Whoever receives a text or a list from the host frees it (`entity_string_free`, `entity_list_u8_free`). What is
// returned to the host is freed by the host: it must come from malloc, as the helpers here do it.
#ifndef OSTRACA_H
#define OSTRACA_H

#include "entity.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef entity_string_t ostraca_string;
typedef entity_list_u8_t ostraca_bytes;
typedef exports_ostraca_entity_handler_message_error_t ostraca_error;

// A method that messages can call.
typedef struct {
  const char *name;
  ostraca_entity_types_message_kind_t kind;
  // One line for people.
  const char *summary;
} ostraca_method;

#define OSTRACA_COMMAND OSTRACA_ENTITY_TYPES_MESSAGE_KIND_COMMAND
#define OSTRACA_QUERY OSTRACA_ENTITY_TYPES_MESSAGE_KIND_QUERY

// Lists these methods: the body of `exports_ostraca_entity_methods_methods`.
void ostraca_list(exports_ostraca_entity_methods_list_method_t *all, const ostraca_method *methods, size_t count);

// Whether a text is this one.
bool ostraca_is(const ostraca_string *text, const char *other);

// Wraps a C string without copying it. For arguments of imports only: do not return it to the host, and do not free it.
ostraca_string ostraca_text(const char *text);

// Returns these bytes, which are copied. Always true, for `return`.
bool ostraca_reply(ostraca_bytes *reply, const void *bytes, size_t len);

// Refuses the message with a code of the entity's own; nothing of the turn is kept. Always false, for `return`.
bool ostraca_refuse(ostraca_error *error, const char *code, const char *message);

// Refuses the message for its arguments (`invalid-arguments`). Always false.
bool ostraca_invalid_arguments(ostraca_error *error, const char *message);

// Refuses the message because there is no such method (`unknown-method`). Always false.
bool ostraca_unknown_method(ostraca_error *error);

// Ends the turn: the message did not run, and the next one starts another instance.
_Noreturn void ostraca_panic(const char *message);

#ifdef __cplusplus
}
#endif

#endif
