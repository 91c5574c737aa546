/* What was found out about the ways of layers: tuned.c. All functions are thread-safe. */
#pragma once

#include "engine/cuda/cuda.h"

/* A hash to begin keys with: the kind of device and all software that runs there. */
struct graph_hash tuned_device(int device);

/* The fastest of `count` ways; false when it is not known. */
bool tuned_find(const struct graph_hash *key, int count, int *ret_way);
void tuned_keep(const struct graph_hash *key, int way, int count);

/* As engine/cuda/module.h has them. */
char *tuned_text(void);
bool tuned_add(const char *text);
size_t tuned_made(void);
void tuned_forget(void);
