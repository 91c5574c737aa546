/* lensd key: makes a new API key, and its line for the file of --api-keys. */
#include <stdio.h>

#include "server/app/process.h"
#include "server/cli/commands.h"
#include "server/http/transport/keys.h"

int command_key(const struct config *config)
{
    struct key_made made;
    struct error err;
    if (key_make(config->arguments[0], config->key_rate, config->key_burst, &made, &err) !=
        STATUS_OK)
        return process_failed(&err);
    printf("%s\n", made.line);
    fprintf(stderr,
            "The key, shown only this once:\n\n    %s\n\nClients send it as Authorization: Bearer "
            "KEY or X-API-Key: KEY.\n",
            made.key);
    return 0;
}
