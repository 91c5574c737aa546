/* `lensd serve`: the life of the daemon. */
#pragma once

#include "server/app/config.h"

/* Serves until a signal ends the process, or with --check only checks the settings and the model.
 * Returns the exit status of the process: 0, or that of process_failed() after one line on standard
 * error; a missing model gives 1. */
int command_serve(const struct config *config);
