// The helpers of ostraca.h, and a default for each optional export. The defaults are weak symbols: an entity's own
// definition replaces them.
#include "ostraca.h"

#include <stdlib.h>
#include <string.h>

void ostraca_list(exports_ostraca_entity_methods_list_method_t *all, const ostraca_method *methods, size_t count) {
  all->ptr = calloc(count, sizeof *all->ptr);
  if (count > 0 && all->ptr == NULL) abort();
  all->len = count;
  for (size_t i = 0; i < count; i++) {
    entity_string_dup(&all->ptr[i].name, methods[i].name);
    entity_string_dup(&all->ptr[i].summary, methods[i].summary);
    all->ptr[i].kind = methods[i].kind;
  }
}

bool ostraca_is(const ostraca_string *text, const char *other) {
  return text->len == strlen(other) && memcmp(text->ptr, other, text->len) == 0;
}

ostraca_string ostraca_text(const char *text) {
  ostraca_string borrowed;
  entity_string_set(&borrowed, text);
  return borrowed;
}

bool ostraca_reply(ostraca_bytes *reply, const void *bytes, size_t len) {
  reply->ptr = malloc(len > 0 ? len : 1);
  if (reply->ptr == NULL) abort();
  memcpy(reply->ptr, bytes, len);
  reply->len = len;
  return true;
}

bool ostraca_refuse(ostraca_error *error, const char *code, const char *message) {
  error->tag = OSTRACA_ENTITY_TYPES_MESSAGE_ERROR_APPLICATION;
  entity_string_dup(&error->val.application.code, code);
  entity_string_dup(&error->val.application.message, message);
  return false;
}

bool ostraca_invalid_arguments(ostraca_error *error, const char *message) {
  error->tag = OSTRACA_ENTITY_TYPES_MESSAGE_ERROR_INVALID_ARGUMENTS;
  entity_string_dup(&error->val.invalid_arguments, message);
  return false;
}

bool ostraca_unknown_method(ostraca_error *error) {
  error->tag = OSTRACA_ENTITY_TYPES_MESSAGE_ERROR_UNKNOWN_METHOD;
  return false;
}

_Noreturn void ostraca_panic(const char *message) {
  ostraca_string text = ostraca_text(message), file = ostraca_text("");
  ostraca_entity_log_report_panic(&text, &file, 0);
  abort();
}

__attribute__((weak)) bool exports_ostraca_entity_handler_start(
    exports_ostraca_entity_handler_start_reason_t reason, entity_string_t *error) {
  (void)reason, (void)error;
  return true;
}

__attribute__((weak)) void exports_ostraca_entity_stop_stop(exports_ostraca_entity_stop_stop_reason_t reason) {
  (void)reason;
}

__attribute__((weak)) bool exports_ostraca_entity_timer_handler_timer(
    exports_ostraca_entity_timer_handler_firing_t *firing,
    exports_ostraca_entity_timer_handler_application_error_t *error) {
  (void)firing;
  entity_string_dup(&error->code, "no-timer-handler");
  entity_string_dup(&error->message, "the entity does not define exports_ostraca_entity_timer_handler_timer");
  return false;
}

__attribute__((weak)) void exports_ostraca_entity_schemas_schemas(
    exports_ostraca_entity_schemas_list_method_schema_t *all) {
  all->ptr = NULL;
  all->len = 0;
}

__attribute__((weak)) uint32_t exports_ostraca_entity_migration_schema_version(void) { return 0; }

__attribute__((weak)) uint32_t exports_ostraca_entity_migration_newest_schema(void) {
  return exports_ostraca_entity_migration_schema_version();
}

__attribute__((weak)) bool exports_ostraca_entity_migration_migrate(uint32_t from, entity_string_t *error) {
  (void)from;
  entity_string_dup(error, "the entity does not define exports_ostraca_entity_migration_migrate");
  return false;
}
