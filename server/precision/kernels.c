/* The tuning store in the server's words: what fails is a line of the log. */
#include <stdlib.h>

#include "engine/tuning/tuning_store.h"
#include "server/observe/log.h"
#include "server/precision/internal.h"

void kernels_recall(const char *option)
{
    struct error err;
    char *folder = tuning_folder(option);
    if (folder && tuning_read(folder, &err) != STATUS_OK)
        log_event(LOG_WARN, "cache", LOG_STR("text", err.message));
    free(folder);
}

void precision_keep_kernels(const char *cache)
{
    struct error err;
    char *folder = tuning_folder(cache);
    if (folder && tuning_write(folder, &err) != STATUS_OK)
        choice_say_lost(err.message);
    free(folder);
}
