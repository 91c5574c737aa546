/* The default model's three files and processors.json, which embed.py makes part of the binary. A
 * zero byte follows each. */
#pragma once

#include <stddef.h>

extern const unsigned char digits_model[], digits_labels[], digits_preprocessor[];
extern const size_t digits_model_size, digits_labels_size, digits_preprocessor_size;
extern const unsigned char processor_table[];
extern const size_t processor_table_size;
