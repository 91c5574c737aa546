/* The answers of lensd predict as text for people. */
#pragma once

#include "server/schedule/runtime/model_host.h"

/* Prints the results for a photo, or its error, on standard output. */
void print_image(const char *path, const struct predict_image *image);
