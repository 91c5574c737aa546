/* Reads answers of a trace collector (OTLP/HTTP, JSON). */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Returns the number of spans that the collector has rejected, 0 if the answer has none. `message`
 * receives the reason, or "". */
int64_t otlp_rejected(const char *json, size_t size, char *message, size_t message_size);
