/* Expected numbers, which tests read from .npy files beside them. */
#pragma once

#include "engine/tensor/tensor.h"

/* Reads tests/unit/PATH, an array of float32, and fails the test if it cannot. The tensor stays
 * until the process ends. */
const struct tensor *golden_read(const char *path);
