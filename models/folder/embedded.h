/* The default model's three files and processors.json, embedded in the binary by embed.py. A zero
 * byte follows each. */
#pragma once

#include <stddef.h>

extern const unsigned char digits_model[], digits_labels[], digits_preprocessor[];
extern const size_t digits_model_size, digits_labels_size, digits_preprocessor_size;
extern const unsigned char processor_table[];
extern const size_t processor_table_size;
