/* JSON answers and requests of lensd's own endpoints, through cJSON.
 *
 * proto/ knows wire formats, not the server: these functions take plain descriptions and return
 * malloc'ed text (the caller frees; NULL when out of memory). They never read a clock, a socket or a
 * model. Floats are printed shortest-exact; NaN and Inf never reach JSON (null instead). */
#pragma once

#include "engine/base/status.h"
