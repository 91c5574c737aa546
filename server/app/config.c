/* Reads options from flags, environment variables and a JSON file, and checks them against the
 * table of config_options.c. */
#include "server/app/config.h"

#include <assert.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/backend/tuning_store.h"
#include "engine/base/cpu.h"
#include "engine/base/file.h"
#include "engine/base/size.h"
#include "engine/base/text.h"
#include "models/folder/repository.h"
#include "proto/json.h"
#include "server/app/config_options.h"
#include "server/image/photo_files.h"

#define CONFIG_FILE_MAX (1024 * 1024 - 1)
#define OPTIONS_MAX     160

/* For a request with a photo of 48 kB, even the smallest model needs about eight times as long as
 * the HTTP server. */
#define CORES_PER_HTTP_THREAD 8
#define MOST_HTTP_THREADS     64 /* the maximum of --http-threads */

/* ---- names ---- */

/* True if `written` is `name`; `written` may have '_' instead of '-'. */
static bool is_option_name(const char *name, const char *written)
{
    for (; *name && (*name == *written || (*name == '-' && *written == '_')); name++)
        written++;
    return !*name && !*written;
}

static const struct option *find_option(const char *name)
{
    /* KServe passes these options to the containers of its runtimes. */
    static const struct {
        const char *alias, *name;
    } aliases[] = {{"model-path", "model"},
                   {"rest-port", "port"},
                   {"http-port", "port"},
                   {"log", "log-format"}};
    for (size_t i = 0; i < COUNT_OF(aliases); i++)
        if (is_option_name(aliases[i].alias, name))
            name = aliases[i].name;
    for (size_t i = 0; i < config_option_count; i++)
        if (is_option_name(config_options[i].name, name))
            return &config_options[i];
    return NULL;
}

static const char *suggest(const char *name, unsigned commands)
{
    const char *names[OPTIONS_MAX];
    size_t count = 0;
    for (size_t i = 0; i < config_option_count && count < COUNT_OF(names); i++)
        if (config_options[i].commands & commands)
            names[count++] = config_options[i].name;
    return text_nearest(name, names, count);
}

static const char *command_name(enum command command)
{
    return config_commands[__builtin_ctz(command)].name;
}

/* ---- flags ---- */

/* What has been read so far. set[i]: a source has set option i, so weaker sources cannot. */
struct config_reading {
    struct config *config;
    bool set[OPTIONS_MAX];
    const char *empty_model; /* LENSD_MODEL or LENSD_MODELS if it is set but empty, else NULL */
    bool is_place_known;     /* a source has set --host, --port or --unix; see settle() */
};

static bool *mark_of(struct config_reading *reading, const struct option *option)
{
    return &reading->set[option - config_options];
}

static bool *mark_named(struct config_reading *reading, const char *name)
{
    return mark_of(reading, find_option(name));
}

/* Sets an option that no stronger source has set. */
static enum status take_option(struct config_reading *reading, const struct option *option,
                               const char *origin, const char *text, struct error *err)
{
    *mark_of(reading, option) = true;
    return config_set(reading->config, option, origin, text, err);
}

static enum status unknown_flag(enum command command, const char *name, struct error *err)
{
    const char *nearest = suggest(name, command);
    if (nearest)
        return error_set(err, STATUS_CONFIG,
                         "unknown option '--%s'; did you mean '--%s'? (lensd %s --help lists them)",
                         name, nearest, command_name(command));
    return error_set(err, STATUS_CONFIG, "unknown option '--%s'; lensd %s --help lists the options",
                     name, command_name(command));
}

/* Sets the option of `flag`, which is argv[*at] without dashes, and moves *at past its value. */
static enum status read_flag(struct config_reading *reading, const char *flag, int argc,
                             char *const *argv, int *at, struct error *err)
{
    const enum command command = reading->config->command;
    const size_t length = strcspn(flag, "=");
    char name[64], origin[80];
    snprintf(name, sizeof name, "%.*s", length < 60 ? (int)length : 60, flag);
    const struct option *option = find_option(name);
    if (!option || !(option->commands & command))
        return unknown_flag(command, name, err);
    const char *text;
    if (flag[length] == '=')
        text = flag + length + 1;
    else if (option->kind == OPTION_SWITCH)
        text = "true";
    else if (*at + 1 < argc)
        text = argv[++*at];
    else
        return error_set(err, STATUS_CONFIG, "option '--%s' needs a value: --%s %s", option->name,
                         option->name, option->value);
    snprintf(origin, sizeof origin, "--%s", option->name);
    return take_option(reading, option, origin, text, err);
}

static enum status config_add_model(struct config_reading *reading, const char *model,
                                    struct error *err)
{
    const struct option *option = find_option("model");
    if (*mark_of(reading, option))
        return error_set(err, STATUS_CONFIG, "MODEL is given twice: '%.80s' and '%.80s'",
                         reading->config->model ? reading->config->model : "", model);
    return take_option(reading, option, "MODEL", model, err);
}

static enum status check_arguments(const struct config_reading *reading, char *const *words,
                                   size_t count, struct error *err)
{
    const struct config *config = reading->config;
    const enum command command = config->command;
    if (command & (COMMAND_KEY | COMMAND_PULL) && count != 1)
        return error_set(err, STATUS_CONFIG,
                         command == COMMAND_KEY
                             ? "lensd key creates a key for one NAME: lensd key alice"
                             : "lensd pull takes one model of a hub: lensd pull hf:ORG/REPO");
    if (command & (COMMAND_DEVICES | COMMAND_HEALTH) && count > 0)
        return error_set(err, STATUS_CONFIG, "lensd %s takes no argument, but '%.80s' was given",
                         command_name(command), words[0]);
    if (command & (COMMAND_SERVE | COMMAND_INSPECT | COMMAND_BENCH | COMMAND_QUANTIZE) && count > 0)
        return error_set(err, STATUS_CONFIG,
                         "'%.80s' is one argument too many; lensd %s takes one MODEL", words[0],
                         command_name(command));
    if (!(command & (COMMAND_PREDICT | COMMAND_EMBED)))
        return STATUS_OK;
    const bool is_photo = config->model && photo_files_has_ending(config->model);
    if (command == COMMAND_PREDICT && is_photo && count > 0 && !photo_files_has_ending(words[0]))
        return error_set(err, STATUS_CONFIG,
                         "the model comes before the photos: lensd predict %.200s %.200s", words[0],
                         config->model);
    if (command == COMMAND_PREDICT && is_photo)
        return error_set(err, STATUS_CONFIG,
                         "no model given; for the built-in one: lensd predict digits %.200s",
                         config->model);
    if (config->text && count > 0)
        return error_set(err, STATUS_CONFIG,
                         "--text cannot be combined with a photo ('%.80s'); give one of them",
                         words[0]);
    if (count == 0 && !config->text)
        return error_set(err, STATUS_CONFIG,
                         "no photo given; use: lensd %s MODEL PHOTO…, or --text TEXT",
                         command_name(command));
    return STATUS_OK;
}

/* Sets the options that flags give, and copies the other arguments to `words`. */
static enum status read_flags(struct config_reading *reading, int argc, char *const *argv,
                              char **words, size_t *ret_count, struct error *err)
{
    size_t count = 0;
    bool only_words = false;
    for (int i = 0; i < argc; i++) {
        char *word = argv[i];
        if (only_words || word[0] != '-' || !word[1]) {
            words[count++] = word;
        } else if (!strcmp(word, "--")) {
            only_words = true;
        } else if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
            reading->config->wants_help = true;
            return STATUS_OK;
        } else if (!strcmp(word, "-o") &&
                   reading->config->command & (COMMAND_QUANTIZE | COMMAND_PULL)) {
            TRY(read_flag(reading, "output", argc, argv, &i, err));
        } else if (word[1] != '-') {
            return error_set(err, STATUS_CONFIG,
                             "unknown option '%.60s'; options are written --name VALUE (lensd %s "
                             "--help lists them)",
                             word, command_name(reading->config->command));
        } else {
            TRY(read_flag(reading, word + 2, argc, argv, &i, err));
        }
    }
    *ret_count = count;
    return STATUS_OK;
}

/* ---- environment, file, defaults ---- */

/* True for a variable that is no option: lensd's engine or tests read it, or Kubernetes sets it for
 * a service named lensd. `name` is without "LENSD_". */
static bool is_foreign(const char *name, const char *value)
{
    static const char *const known[] = {"SHARED",      "FAMILIES",    "SKIP_PACKAGES",
                                        "CUDA_MODULE", "CUDA_TUNING", "CUDA_GRAPHS"};
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (!strcmp(name, known[i]))
            return true;
    return strstr(name, "SERVICE_HOST") || strstr(name, "SERVICE_PORT") ||
           (!strncmp(name, "PORT_", 5) && isdigit((unsigned char)name[5])) ||
           !strncmp(value, "tcp://", 6) || !strncmp(value, "udp://", 6);
}

/* Notes an unknown variable, which is usually a typing error; lensd starts all the same. */
static void warn_of(struct config *config, const char *variable, const char *option)
{
    const char *nearest = suggest(option, config->command);
    char right[64] = "";
    for (size_t i = 0; nearest && nearest[i] && i < sizeof right - 1; i++)
        right[i] = nearest[i] == '-' ? '_' : (char)toupper(nearest[i]);
    char *note = config->notes[NOTE_ENVIRONMENT];
    text_append(note, sizeof *config->notes, "", "%s%.80s%s%s%s",
                note[0] ? ", " : "the environment has variables that lensd does not know: ",
                variable, nearest ? " (did you mean LENSD_" : "", right, nearest ? "?)" : "");
}

/* Reads a variable such as "LENSD_TOP_K=5". */
static enum status read_variable(struct config_reading *reading, const char *entry,
                                 struct error *err)
{
    char variable[80], name[80];
    size_t length = strcspn(entry, "=");
    const char *text = entry + length + (entry[length] == '=');
    if (length >= sizeof variable)
        return STATUS_OK;
    memcpy(variable, entry, length);
    variable[length] = '\0';
    for (size_t k = 0; k + 6 <= length; k++)
        name[k] = variable[k + 6] == '_' ? '-' : (char)tolower((unsigned char)variable[k + 6]);
    const struct option *option = find_option(name);
    if (!*text) { /* an empty variable counts as unset */
        if (option && !strcmp(option->name, "model"))
            reading->empty_model = "LENSD_MODEL";
        else if (option && !strcmp(option->name, "models"))
            reading->empty_model = "LENSD_MODELS";
        return STATUS_OK;
    }
    if (is_foreign(variable + 6, text))
        return STATUS_OK;
    if (!option) {
        warn_of(reading->config, variable, name);
        return STATUS_OK;
    }
    if (*mark_of(reading, option) || !(option->commands & reading->config->command))
        return STATUS_OK;
    return take_option(reading, option, variable, text, err);
}

static enum status read_environment(struct config_reading *reading, struct error *err)
{
    for (char **entry = environ; *entry; entry++)
        if (!strncmp(*entry, "LENSD_", 6))
            TRY(read_variable(reading, *entry, err));
    return STATUS_OK;
}

/* ---- Immich ---- */

/* Converts the value of an Immich variable to a value of lensd's `option`. */
static const char *immich_value(const char *option, const char *text, char room[static 64])
{
    static const char *const levels[][2] = {
        {"verbose", "debug"}, {"log", "info"}, {"warning", "warn"}, {"critical", "error"}};
    const size_t size = strlen(text);
    if (!strcmp(option, "idle-unload") && text[0] == '-')
        return "0"; /* never */
    for (size_t i = 0; !strcmp(option, "log-level") && i < COUNT_OF(levels); i++)
        if (!strcasecmp(text, levels[i][0]))
            return levels[i][1];
    if (text[0] != '[' || text[size - 1] != ']' || size >= 64)
        return text;
    memcpy(room, text + 1, size - 2); /* an IPv6 address */
    room[size - 2] = '\0';
    return room;
}

/* Sets --preload from the variables MACHINE_LEARNING_PRELOAD__…. Each has a list of models such as
 * "a,b". */
static enum status preload_immich(struct config_reading *reading, struct error *err)
{
    static const char *const variables[][2] = {{"CLIP__VISUAL", ""},
                                               {"CLIP__TEXTUAL", MODEL_TEXT_ENDING},
                                               {"FACIAL_RECOGNITION__DETECTION", ".detection"},
                                               {"FACIAL_RECOGNITION__RECOGNITION", ".recognition"},
                                               {"OCR__DETECTION", ".detection"},
                                               {"OCR__RECOGNITION", ".recognition"}};
    char names[1024] = "", variable[80];
    size_t used = 0;
    for (size_t i = 0; i < COUNT_OF(variables); i++) {
        snprintf(variable, sizeof variable, "MACHINE_LEARNING_PRELOAD__%s", variables[i][0]);
        for (const char *at = getenv(variable); at && *at; at += strspn(at, ", ")) {
            const size_t size = strcspn(at, ", ");
            if (used < sizeof names)
                used += (size_t)snprintf(names + used, sizeof names - used, "%s%.*s%s",
                                         used ? "," : "", (int)size, at, variables[i][1]);
            at += size;
        }
    }
    if (used >= sizeof names)
        return error_set(err, STATUS_CONFIG, "MACHINE_LEARNING_PRELOAD__… exceed 1,023 bytes");
    const struct option *option = find_option("preload");
    if (!used || *mark_of(reading, option))
        return STATUS_OK;
    return take_option(reading, option, "MACHINE_LEARNING_PRELOAD__…", names, err);
}

/* With --immich, sets the options that no other source has set: to the values of Immich's
 * variables, or else to the defaults of Immich's service. */
static enum status read_immich(struct config_reading *reading, struct error *err)
{
    static const struct {
        const char *option, *variable, *value;
    } settings[] = {{"load", "", "lazy"},
                    {"idle-unload", "MACHINE_LEARNING_MODEL_TTL", "300"},
                    {"host", "IMMICH_HOST", NULL},
                    {"port", "IMMICH_PORT", NULL},
                    {"log-level", "IMMICH_LOG_LEVEL", NULL},
                    {"workers", "MACHINE_LEARNING_REQUEST_THREADS", NULL},
                    {"threads", "MACHINE_LEARNING_MODEL_INTRA_OP_THREADS", NULL},
                    {"idle-timeout", "MACHINE_LEARNING_HTTP_KEEPALIVE_TIMEOUT_S", NULL}};
    struct config *config = reading->config;
    char room[64];
    if (!config->immich)
        return STATUS_OK;
    if (config->model || config->loader.models)
        return error_set(err, STATUS_CONFIG,
                         "--immich excludes MODEL and --models; give one of the three");
    config->loader.models = strdup(config->immich);
    TRY(check_memory(config->loader.models, NULL, err));
    config->http.is_immich = true;
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        const struct option *option = find_option(settings[i].option);
        const char *text = getenv(settings[i].variable);
        text = text && *text ? immich_value(option->name, text, room) : settings[i].value;
        if (text && !*mark_of(reading, option))
            TRY(take_option(reading, option, settings[i].variable, text, err));
    }
    return preload_immich(reading, err);
}

static enum status set_from_file(void *context, const char *key, const char *text,
                                 struct error *err)
{
    struct config_reading *reading = context;
    const struct option *option = find_option(key);
    if (option && !strcmp(option->name, "config"))
        return error_set(err, STATUS_CONFIG,
                         "a file of settings cannot name another one; remove \"config\"");
    if (!option) {
        const char *nearest = suggest(key, ~0u);
        return error_set(err, STATUS_CONFIG,
                         "unknown setting \"%.60s\"; %s%s%slensd %s --help lists the settings", key,
                         nearest ? "did you mean \"" : "", nearest ? nearest : "",
                         nearest ? "\"? " : "", command_name(reading->config->command));
    }
    bool *set = mark_of(reading, option);
    /* A file may have options of several commands. Options of other commands are only checked. */
    struct config scratch = {.command = reading->config->command};
    bool counts = !*set && option->commands & reading->config->command;
    char origin[80];
    snprintf(origin, sizeof origin, "\"%s\"", option->name);
    enum status status = config_set(counts ? reading->config : &scratch, option, origin, text, err);
    config_done(&scratch);
    *set = *set || counts;
    return status;
}

static enum status read_config_file(struct config_reading *reading, struct error *err)
{
    const char *path = reading->config->config_file;
    if (!path)
        return STATUS_OK;
    uint8_t *text;
    size_t size;
    struct error cause;
    enum status status = file_read(path, CONFIG_FILE_MAX, &text, &size, &cause);
    if (status != STATUS_OK)
        return error_set(err, status == STATUS_NO_MEMORY ? status : STATUS_CONFIG,
                         "cannot read the settings in '%.200s': %s", path, cause.message);
    status = json_settings((const char *)text, size, set_from_file, reading, err);
    free(text);
    return status == STATUS_OK ? status : error_prefix(err, "%.200s", path);
}

/* Lowers the default of --max-upload-memory to an eighth of the process's memory, but not below
 * --max-body: bodies must leave room for the model and for decoded images. */
static void fit_upload_memory(struct config *config)
{
    uint64_t total, available;
    cpu_memory(&total, &available);
    size_t share = (size_t)(total / 8);
    share = share > config->http.max_body ? share : config->http.max_body;
    if (share < config->http.max_upload_memory)
        config->http.max_upload_memory = share;
}

static enum status read_defaults(struct config_reading *reading, struct error *err)
{
    struct config *config = reading->config;
    for (size_t i = 0; i < config_option_count; i++) {
        const struct option *option = &config_options[i];
        if (reading->set[i] || !option->fallback)
            continue;
        TRY(config_set(config, option, option->name, option->fallback, err));
        if (!strcmp(option->name, "max-upload-memory")) /* --max-body comes earlier in the table */
            fit_upload_memory(config);
    }
    return STATUS_OK;
}

/* True if `name` is a device's name such as "cpu" or "cuda:0", even if this machine lacks it. */
static bool names_device(const char *name)
{
    const size_t digits = strncmp(name, "cuda:", 5) ? 0 : strspn(name + 5, "0123456789");
    return !strcmp(name, "cpu") || (digits > 0 && digits <= 3 && !name[5 + digits]);
}

/* Notes a limit for a device that is not in use. Such a limit is no error, because machines with
 * different devices may share their settings. */
static void note_memory(struct config *config, const char *option, const char *names)
{
    if (!config->notes[NOTE_MEMORY][0])
        snprintf(config->notes[NOTE_MEMORY], sizeof *config->notes,
                 "%s sets a limit for %s, which --device %.80s does not use; it has no effect",
                 option, names, config->device);
}

/* Reads one "BYTES" or "DEVICE=BYTES" of --memory. */
static enum status set_memory(struct config *config, char *part, struct error *err)
{
    char *equals = strchr(part, '=');
    int64_t value;
    bool found = !equals;
    if (!config_read_bytes(equals ? equals + 1 : part, &value) || value < 0)
        return error_set(err, STATUS_CONFIG,
                         "--memory is '%.60s'; it must be bytes, such as 512M or 4G, or those of "
                         "each device: cpu=2G,cuda:0=12G",
                         part);
    if (equals)
        *equals = '\0'; /* `part` is now the device's name */
    for (size_t i = 0; i < config->model_host.device_count; i++) {
        if (equals && strcmp(DEVICE_STRING(config->model_host.devices[i]), part) != 0)
            continue;
        config->model_host.memory_limits[i] = (size_t)value;
        found = true;
    }
    if (!found && !names_device(part))
        return error_set(err, STATUS_CONFIG,
                         "--memory has a limit for '%.40s', which is not a device; devices are "
                         "cpu, cuda:0, cuda:1, …",
                         part);
    if (!found)
        note_memory(config, "--memory", part);
    return STATUS_OK;
}

static enum status read_memory(struct config *config, struct error *err)
{
    char *copy = strdup(config->memory), *rest = copy;
    enum status status = check_memory(copy, NULL, err);
    while (status == STATUS_OK && rest)
        status = set_memory(config, strsep(&rest, ","), err);
    free(copy);
    TRY(status);
    bool has_gpu = false;
    for (size_t i = 0; i < config->model_host.device_count; i++) {
        if (config->model_host.devices[i].kind == DEVICE_CPU)
            continue;
        has_gpu = true;
        if (config->gpu_memory > 0)
            config->model_host.memory_limits[i] = (size_t)config->gpu_memory;
    }
    if (config->gpu_memory > 0 && !has_gpu)
        note_memory(config, "--gpu-memory", "GPUs");
    return STATUS_OK;
}

/* True for an Origin header as browsers send it: a scheme and a host only (RFC 6454, section 6.2),
 * or "null" from a file or a sandbox. */
static bool is_origin(const char *text, size_t length)
{
    char origin[256];
    if (length >= sizeof origin)
        return false;
    snprintf(origin, sizeof origin, "%.*s", (int)length, text);
    const char *host = strstr(origin, "://");
    return !strcmp(origin, "null") || (host && host != origin && host[3] &&
                                       !strpbrk(origin, " \t*?#") && !strchr(host + 3, '/'));
}

/* Refuses an origin that no browser sends, because no request would ever match. */
static enum status check_origins(const struct config *config, struct error *err)
{
    const char *list = config->http.cors_origin;
    if (!list || !strcmp(list, "*"))
        return STATUS_OK;
    while (*list) {
        size_t length = strcspn(list, ",");
        if (!is_origin(list, length))
            return error_set(
                err, STATUS_CONFIG,
                "--cors-origin has '%.*s', which no browser sends; an origin is a scheme, a host "
                "and perhaps a port, without a path: https://app.example; for all of them * alone",
                length < 100 ? (int)length : 100, list);
        list += length;
        list += strspn(list, ", ");
    }
    return STATUS_OK;
}

/* Returns the number of forward passes that may run on the CPU at the same time. */
static int cpu_lanes(const struct config *config)
{
    int lanes = 0;
    for (size_t i = 0; i < config->model_host.device_count; i++)
        lanes += config->model_host.devices[i].kind == DEVICE_CPU;
    return config->command & (COMMAND_SERVE | COMMAND_PREDICT | COMMAND_EMBED) ? lanes : 1;
}

/* Notes options that set too many threads: --threads above the number of cores, --workers or
 * --http-threads above four times this number. Too many threads wait for each other. */
static void note_threads(struct config *config)
{
    const int cores = device_cpu_threads(), lanes = cpu_lanes(config);
    char each[48] = "", names[160] = "";
    if (lanes > 1)
        snprintf(each, sizeof each, " for each of %d passes at a time", lanes);
    const struct {
        const char *name, *what;
        int64_t count, most;
    } kinds[] = {
        {"--threads", each, lanes ? config->model_host.threads : 0, cores / (lanes ? lanes : 1)},
        {"--workers", "", config->model_host.workers, 4 * (int64_t)cores},
        {"--http-threads", "", config->http.threads, 4 * (int64_t)cores}};
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        if (kinds[i].count > 1 && kinds[i].count > kinds[i].most)
            text_append(names, sizeof names, ", ", "%s is %lld%s", kinds[i].name,
                        (long long)kinds[i].count, kinds[i].what);
    if (names[0])
        snprintf(config->notes[NOTE_THREADS], sizeof *config->notes,
                 "%s, but this process may use %d core%s (affinity mask and cgroup quota): more "
                 "threads than that make answers slower and use memory; without the option lensd "
                 "chooses a good number",
                 names, cores, cores == 1 ? "" : "s");
}

/* Checks addresses and certificate options. */
static enum status check_listening(struct config *config, struct error *err)
{
    char *end;
    unsigned long bits = strtoul(config->unix_mode, &end, 8);
    if (*end || end == config->unix_mode || bits == 0 || bits > 0777)
        return error_set(
            err, STATUS_CONFIG,
            "--unix-mode is '%.20s'; it must be permissions in octal digits, such as 0660 or 0666",
            config->unix_mode);
    config->http.unix_mode = (unsigned)bits;
    if (config->http.admin_port && config->http.admin_port == config->http.port &&
        !config->http.unix_path)
        return error_set(err, STATUS_CONFIG, "--port and --admin-port are both %d; choose two",
                         config->http.port);
    if (config->http.grpc_port &&
        ((config->http.grpc_port == config->http.port && !config->http.unix_path) ||
         config->http.grpc_port == config->http.admin_port))
        return error_set(err, STATUS_CONFIG,
                         "--grpc-port is %d, and so is --port or --admin-port; choose another",
                         config->http.grpc_port);
    if (config->http.unix_path && config->port_file)
        return error_set(
            err, STATUS_CONFIG,
            "--port-file and --unix exclude each other: a Unix socket has no port; leave one out");
    if (!config->http.tls_cert != !config->http.tls_key)
        return error_set(err, STATUS_CONFIG,
                         "--tls-cert and --tls-key belong together; give %s as well",
                         config->http.tls_cert ? "--tls-key" : "--tls-cert");
    return STATUS_OK;
}

static enum status read_task_options(struct config *config, struct error *err)
{
    const struct {
        const char *name, *text;
    } texts[] = {{"confidence", config->confidence},
                 {"iou", config->iou},
                 {"classes", config->classes},
                 {"masks", config->masks}};
    struct task_options *options = &config->task_options;
    options->agnostic = config->agnostic ? 1 : -1;
    options->normalize = config->normalize ? 1 : -1;
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct error why;
        if (texts[i].text &&
            task_option_set(options, texts[i].name, texts[i].text, &why) != STATUS_OK)
            return error_set(err, STATUS_CONFIG, "--%s", why.message);
    }
    return STATUS_OK;
}

static enum status check_together(struct config *config, struct error *err)
{
    if (config->command == COMMAND_SERVE)
        TRY(check_listening(config, err));
    TRY(check_origins(config, err));
    if (config->command == COMMAND_SERVE && config->http.max_upload_memory < config->http.max_body)
        return error_set(err, STATUS_CONFIG,
                         "--max-upload-memory (%zu) is less than --max-body (%zu): no request of "
                         "that size could be accepted; raise the first or lower the second",
                         config->http.max_upload_memory, config->http.max_body);
    if (config->http.response_cache && config->http.response_cache < 65536)
        return error_set(
            err, STATUS_CONFIG,
            "--response-cache is %zu bytes; it must be at least 65536, or 0 to keep no answers",
            config->http.response_cache);
    if (config->loader.model_name && (strlen(config->loader.model_name) > MODEL_NAME_MAX ||
                                      strchr(config->loader.model_name, '/')))
        return error_set(err, STATUS_CONFIG,
                         "--model-name is '%.140s'; a name has at most %d bytes and no '/'",
                         config->loader.model_name, MODEL_NAME_MAX);
    if (config->command == COMMAND_INSPECT && !config->model)
        return error_set(
            err, STATUS_CONFIG,
            "no model given; use: lensd inspect MODEL (an .onnx file or a model folder)");
    if (config->command == COMMAND_QUANTIZE && (!config->model || !config->calibrate))
        return error_set(err, STATUS_CONFIG,
                         "no %s given; use: lensd quantize MODEL --calibrate PHOTOS (a folder)",
                         config->model ? "photos" : "model");
    if (config->command == COMMAND_SERVE && config->loader.models &&
        (config->model || config->loader.model_name))
        return error_set(err, STATUS_CONFIG,
                         "--models and %s exclude each other: a folder of models, or one model",
                         config->model ? "MODEL" : "--model-name");
    if (config->model && !strcmp(config->model, "digits") && access(config->model, F_OK) != 0) {
        free(config->model);
        config->model = NULL; /* the embedded model */
    }
    if (config->command & (COMMAND_SERVE | COMMAND_PREDICT | COMMAND_EMBED)) {
        TRY(device_parse(config->device, config->model_host.devices,
                         &config->model_host.device_count, config->fallback,
                         sizeof config->fallback, err));
        TRY(read_memory(config, err));
        TRY(read_task_options(config, err));
    }
    note_threads(config);
    if (config->http.threads == 0) {
        const int threads =
            (device_cpu_threads() + CORES_PER_HTTP_THREAD - 1) / CORES_PER_HTTP_THREAD;
        config->http.threads = threads < MOST_HTTP_THREADS ? threads : MOST_HTTP_THREADS;
    }
    return STATUS_OK;
}

/* Call this after each source. Only one of MODEL, --models and --immich applies: the one that the
 * strongest source sets. So a flag can name one model for a container image whose environment names
 * a folder. The strongest source also decides between --unix and --host or --port; one source must
 * not set --unix and --host or --port. */
static enum status settle(struct config_reading *reading, struct error *err)
{
    bool *model = mark_named(reading, "model"), *models = mark_named(reading, "models"),
         *immich = mark_named(reading, "immich");
    if (*model || *models || *immich)
        *model = *models = *immich = true;
    const bool by_name = reading->config->http.unix_path != NULL;
    const bool has_port = *mark_named(reading, "port");
    const bool by_port = has_port || *mark_named(reading, "host");
    if (reading->is_place_known)
        return STATUS_OK;
    if (by_name && by_port)
        return error_set(
            err, STATUS_CONFIG,
            "--unix and --%s exclude each other, because lensd listens in one place; leave one out",
            has_port ? "port" : "host");
    if (by_port)
        *mark_named(reading, "unix") = true;
    reading->is_place_known = by_name || by_port;
    return STATUS_OK;
}

enum status config_read(enum command command, int argc, char *const *argv, struct config *ret,
                        struct error *err)
{
    struct config *config = ret;
    struct config_reading state = {.config = config}, *reading = &state;
    *config = (struct config){.command = command, .task_options = TASK_OPTIONS_NONE};
    assert(config_option_count <= COUNT_OF(reading->set));
    char **words = alloc_array((size_t)argc, sizeof *words);
    TRY(check_memory(words, NULL, err));
    config->arguments = words;
    size_t count = 0;
    TRY(read_flags(reading, argc, argv, words, &count, err));
    if (config->wants_help)
        return STATUS_OK;
    size_t first = 0;
    if (count > 0 &&
        !(config->command & (COMMAND_DEVICES | COMMAND_HEALTH | COMMAND_KEY | COMMAND_PULL)) &&
        !(config->command & (COMMAND_PREDICT | COMMAND_EMBED) && config->model)) {
        TRY(config_add_model(reading, words[0], err));
        first = 1;
    }
    TRY(check_arguments(reading, words + first, count - first, err));
    for (size_t i = first; i < count; i++)
        words[i - first] = words[i];
    config->argument_count = count - first;
    TRY(settle(reading, err));
    TRY(read_environment(reading, err));
    TRY(settle(reading, err));
    TRY(read_config_file(reading, err));
    TRY(settle(reading, err));
    if (reading->empty_model && !*mark_named(reading, "model"))
        return error_set(err, STATUS_CONFIG,
                         "%s is empty; leave it out, or name a model (digits: the built-in one)",
                         reading->empty_model);
    TRY(read_immich(reading, err));
    TRY(read_defaults(reading, err));
    config->cache_folder = tuning_folder(config->cache);
    config->model_host.cache = config->cache_folder;
    config->model_host.trials = command == COMMAND_SERVE ? TRIALS_LATER : TRIALS_NONE;
    config->model_host.task_options = &config->task_options;
    return check_together(config, err);
}

void config_done(struct config *config)
{
    for (size_t i = 0; i < config_option_count; i++) {
        if (config_options[i].kind != OPTION_TEXT)
            continue;
        char **field = (char **)(void *)((char *)config + config_options[i].offset);
        free(*field);
        *field = NULL;
    }
    FREE_ALL(config->cache_folder, config->arguments);
    config->cache_folder = NULL;
    config->arguments = NULL;
}
