/* UTF-8, for names and labels that come from files and end up in JSON. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Well-formed UTF-8 (Unicode 15, table 3-7): no overlong forms, no surrogates. */
bool utf8_valid(const char *text, size_t size);
