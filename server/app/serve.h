/* `lensd serve`: the life of the daemon. */
#pragma once

#include "server/app/config.h"

/* Serves until a signal ends it. Returns the exit status of the process: 0, or 2 for a problem that
 * the user can fix, after one line on standard error. */
int command_serve(const struct config *config);
