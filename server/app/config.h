/* Options. Their sources, the strongest first: flags, the environment (LENSD_…), a JSON file, with
 * --immich the variables of Immich's service, defaults.
 *
 * One table (config_options.c) defines each option: name, kind, range, default, commands, help.
 * Flags, variables, keys of the file, checks and --help all follow from the table. Defaults are
 * parsed like the user's values. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "server/http/transport/server.h"
#include "server/loader/loader.h"
#include "server/schedule/runtime/model_host.h"

enum command {
    COMMAND_SERVE = 1u << 0,
    COMMAND_PREDICT = 1u << 1,
    COMMAND_EMBED = 1u << 2, /* like COMMAND_PREDICT, but prints only vectors */
    COMMAND_DEVICES = 1u << 3,
    COMMAND_HEALTH = 1u << 4,
    COMMAND_INSPECT = 1u << 5,
    COMMAND_BENCH = 1u << 6,
    COMMAND_QUANTIZE = 1u << 7,
    COMMAND_PULL = 1u << 8,
    COMMAND_KEY = 1u << 9,
};
enum { COMMANDS = 10 };

/* The commands, in the order of enum command. */
struct command_help {
    const char *name, *summary;
    const char *usage, *about, *examples; /* for the command's --help; `usage` follows the name */
};
extern const struct command_help config_commands[COMMANDS];

enum config_log_format { CONFIG_LOG_TEXT, CONFIG_LOG_JSON, CONFIG_LOG_AUTO };

enum config_note {
    NOTE_ENVIRONMENT, /* variables that lensd does not know */
    NOTE_MEMORY,      /* a limit of memory for a device that is not in use */
    NOTE_THREADS,     /* more threads than cores */
    CONFIG_NOTES
};

/* The settings of one run. The struct owns its texts and lists, but not arguments[0], [1] …. */
struct config {
    enum command command;
    bool wants_help; /* only print the command's help; the other options are not read */
    char *config_file;
    char notes[CONFIG_NOTES][512]; /* sentences for the user; "" for none */

    /* config_read() sets the members that the user can choose; commands set the others in copies of
     * the structs. struct config owns the texts. */
    struct http_options http;
    struct model_host_options model_host;
    struct loader_options loader; /* pull: the new model goes to the folder loader.models */

    char *model;      /* path of an .onnx file or a folder; NULL: the embedded digits */
    char *immich;     /* serve: folder of Immich's models, also in loader.models; NULL: none */
    char **arguments; /* predict, embed: photos; key: the NAME; pull: the model */
    size_t argument_count;
    char *confidence, *iou, *classes, *masks; /* as the user wrote them; NULL: not given */
    bool agnostic, normalize;
    struct task_options
        task_options;   /* max_detections, and the values of `confidence` … `normalize` */
    char *text;         /* predict, embed: the text to embed instead of photos; NULL: none */
    char *annotate;     /* predict: destination of drawn photos; NULL: none */
    char *size;         /* predict, embed: "640x480"; NULL: not given */
    bool json;          /* print JSON instead of a table */
    bool labels;        /* inspect: print only the labels */
    bool jsonl;         /* predict: one line of JSON per photo */
    char *batch;        /* bench: "1,8,32" */
    int64_t bench_time; /* bench: milliseconds per device and batch size */
    char *calibrate,
        *output;      /* calibrate: quantize's photos; output: the new folder of quantize or pull */
    bool is_for_avx2; /* quantize: the new model must also suit CPUs without VNNI */
    char *key_rate, *key_burst; /* key: requests per second, and burst; NULL: no limit */
    char *device;               /* as the user wrote it; sets model_host.devices */
    char *memory;               /* as the user wrote it; sets model_host.memory_limits */
    int64_t gpu_memory;
    char fallback[256];    /* why --device auto did not choose a GPU; else "" */
    bool profile;          /* inspect: time the layers instead of describing the model */
    bool profile_by_time;  /* inspect --profile: the slowest layers first */
    int64_t profile_batch; /* inspect --profile: number of images */
    char *cache;           /* folder, "none", or NULL: the user's cache */
    char *cache_folder;    /* the folder that tuning_folder() finds for `cache`; NULL: none */
    char *port_file;       /* NULL: none */
    char *pid_file;        /* NULL: none */
    char *user;            /* "NAME" or "NAME:GROUP"; NULL: the user who starts lensd */
    bool check, core_dumps;
    bool old_libheif;
    bool is_unconfined;
    char *unix_mode;            /* octal digits */
    char *faces;                /* NULL: no registry */
    char *trace_endpoint;       /* NULL: export no traces */
    char *trace_sample;         /* "0" … "1" */
    char *api_key_file;         /* health: the file with the key to send; NULL: no key */
    int64_t drain_delay, grace; /* milliseconds */
    int64_t log_format;         /* enum config_log_format */
    int64_t log_level;          /* enum log_level */
};

/* Reads argv[0 … argc), the words after the command's name, then the environment, then the file of
 * --config. STATUS_CONFIG: an option is wrong, or the file cannot be read. STATUS_DEVICE: a device
 * is missing. Free *ret with config_done(), also after a failure. `argv` must outlive *ret. */
enum status config_read(enum command command, int argc, char *const *argv, struct config *ret,
                        struct error *err) MUST_USE;
void config_done(struct config *config);

/* Prints --help of a command, at most 80 columns wide. */
void config_help(enum command command, FILE *out);

/* Prints `text` from column `at` on, at most 80 columns wide. Indents further lines by `indent`. */
void config_print_wrapped(FILE *out, const char *text, size_t at, size_t indent);
