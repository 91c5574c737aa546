/* Settings of the operator, and the cache. The first byte picks options, a file of keys, a tuning
 * store, or a choice of precision in the cache. They are refused with a sentence, or give values in
 * range. A damaged store adds nothing. */
#include <inttypes.h>
#include <string.h>

#include "engine/backend/tuning_store.h"
#include "engine/base/size.h"
#include "server/app/config.h"
#include "server/http/transport/keys.h"
#include "server/precision/internal.h"
#include "tests/fuzz/scratch.h"

static void check_config(const struct config *config)
{
    HOLDS(config->http.port >= 0 && config->http.port <= 65535);
    HOLDS(config->http.unix_mode > 0 && config->http.unix_mode <= 0777);
    HOLDS(config->http.max_body > 0 && config->http.max_body <= config->http.max_upload_memory);
    HOLDS(config->http.max_connections > 0 && config->http.max_json_depth > 0);
    HOLDS(config->http.threads > 0);
    HOLDS(config->model_host.device_count >= 1 && config->model_host.device_count <= DEVICE_MAX);
    HOLDS(config->task_options.confidence <= 1 && config->task_options.iou <= 1);
}

static void read_config(int argc, char *const *argv)
{
    struct config config;
    struct error err = {0};
    const enum status status = config_read(COMMAND_SERVE, argc, argv, &config, &err);
    if (status != STATUS_OK)
        HOLDS(err.message[0] && (status == STATUS_CONFIG || status == STATUS_DEVICE));
    else if (!config.wants_help)
        check_config(&config);
    config_done(&config);
}

static void try_file(const char *text, size_t size)
{
    static char flag[] = "--config";
    char *argv[] = {flag, (char *)(uintptr_t)scratch_write("config", text, size)};
    read_config((int)COUNT_OF(argv), argv);
}

/* One word per line. Words that begin with LENSD_ are environment variables. No word names a
 * configuration file. */
static void try_words(char *text)
{
    enum { MOST = 24 };
    char *argv[MOST], *variables[MOST + 1], *rest = text;
    int count = 0;
    size_t variable_count = 0;
    for (char *word; (word = strsep(&rest, "\n")) && count < MOST && variable_count < MOST;) {
        if (strstr(word, "config") || strstr(word, "CONFIG"))
            continue;
        if (!strncmp(word, "LENSD_", 6))
            variables[variable_count++] = word;
        else
            argv[count++] = word;
    }
    variables[variable_count] = NULL;
    char **before = environ;
    environ = variables;
    read_config(count, argv);
    environ = before;
}

static void try_keys(const char *text, size_t size)
{
    struct keyring *keys = NULL;
    struct error err = {0};
    char name[KEY_NAME_MAX + 1];
    size_t count, admins;
    int wait_s = 0;
    const struct keyring_options options = {.keys_file = scratch_write("keys", text, size)};
    if (keyring_create(&options, &keys, &err) != STATUS_OK) {
        HOLDS(err.message[0]);
        keyring_free(keys);
        return;
    }
    keyring_count(keys, &count, &admins);
    HOLDS(count >= 1 && count <= (size_t)KEYS_MAX && admins == 0);
    const enum key_verdict verdict = keyring_check(keys, ROUTE_KEY, "secret", name, &wait_s);
    HOLDS(verdict == KEY_GRANTED ? name[0] != '\0' : verdict == KEY_UNKNOWN);
    HOLDS(keyring_reload(keys, &err) == STATUS_OK);
    keyring_free(keys);
}

static void count_text(void *context, const struct graph_hash *key, const char *text)
{
    (void)key;
    HOLDS(strlen(text) < TUNING_TEXT);
    ++*(size_t *)context;
}

/* Lines between the first and the last of a real file, so that only they decide. */
static void try_store(const char *text, size_t size)
{
    static const char end_format[] = "end %016" PRIx64 "%016" PRIx64 "\n";
    static char name[NAME_MAX + 1], first[128];
    static const struct graph_hash key = {{1, 2}};
    struct error err = {0};
    if (!name[0]) {
        tuning_keep(TUNING_PRECISION, &key, "winograd");
        HOLDS(tuning_write(scratch_folder(), &err) == STATUS_OK);
        DIR *folder = opendir(scratch_folder());
        HOLDS(folder);
        for (const struct dirent *entry; (entry = readdir(folder));)
            if (!strncmp(entry->d_name, "tunings-", 8))
                snprintf(name, sizeof name, "%s", entry->d_name);
        closedir(folder);
        const int length = snprintf(first, sizeof first, "lensd tunings 1 %s\n", name + 8);
        HOLDS(length < (int)sizeof first);
    }
    tuning_forget();
    char *file = malloc(sizeof first + size + 64);
    HOLDS(file);
    size_t used = strlen(first), count = 0;
    memcpy(file, first, used);
    memcpy(file + used, text, size);
    used += size;
    struct graph_hash sum = {{0, 0}};
    graph_hash_bytes(&sum, file, used);
    used += (size_t)snprintf(file + used, 64, end_format, sum.words[0], sum.words[1]);
    (void)scratch_write(name, file, used);
    free(file);
    const enum status status = tuning_read(scratch_folder(), &err);
    for (int kind = TUNING_PRECISION; kind <= TUNING_PRECISION; kind++)
        tuning_each((enum tuning_kind)kind, count_text, &count);
    HOLDS(status == STATUS_OK || (status == STATUS_IO && err.message[0] && count == 0));
    tuning_forget();
}

static void try_choice(const char *text)
{
    static const struct graph_hash key = {{3, 4}};
    struct precision_choice choice;
    tuning_keep(TUNING_PRECISION, &key, text);
    if (choice_find(&key, &choice)) {
        HOLDS(choice.precision < PRECISION_COUNT && choice.trial_count <= PRECISION_TRIALS);
        choice_keep(&key, &choice);
        HOLDS(choice_find(&key, &choice));
    }
    tuning_forget();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    const size_t length = size - 1;
    char *text = strndup((const char *)data + 1, length);
    HOLDS(text);
    switch (data[0] % 5) {
    case 0:
        try_file((const char *)data + 1, length);
        break;
    case 1:
        try_words(text);
        break;
    case 2:
        try_keys((const char *)data + 1, length);
        break;
    case 3:
        try_store((const char *)data + 1, length);
        break;
    default:
        try_choice(text);
    }
    free(text);
    return 0;
}
