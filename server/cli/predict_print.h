/* The answers of lensd predict as text for people. */
#pragma once

#include "server/schedule/runtime/model_host.h"

/* Prints what was found in a photo on standard output, or why it failed. */
void print_image(const char *path, const struct predict_image *image);
