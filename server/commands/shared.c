#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/commands/commands.h"

int command_failed(const struct error *err)
{
    fprintf(stderr, "lensd: %s\n", err->message);
    return 2;
}

void command_notes(const struct config *config)
{
    if (config->memory_note[0])
        fprintf(stderr, "lensd: %s\n", config->memory_note);
    if (config->thread_note[0])
        fprintf(stderr, "lensd: %s\n", config->thread_note);
}

bool model_is_embedded(const char *model)
{
    return !model || (!strcmp(model, "digits") && access(model, F_OK) != 0);
}

enum status model_open(const char *model, const char *name, struct model **ret, struct error *err)
{
    if (!model_is_embedded(model))
        return model_load(model, name, NULL, ret, err);
    TRY(model_load_embedded(ret, err));
    char *copy = name ? strdup(name) : NULL;
    if (name && !copy) {
        model_free(*ret);
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    }
    if (copy) {
        free((*ret)->name);
        (*ret)->name = copy;
    }
    return STATUS_OK;
}

const char *size_text(uint64_t bytes, char text[static SIZE_TEXT])
{
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1000 && unit < sizeof units / sizeof *units - 1) {
        value /= 1000;
        unit++;
    }
    snprintf(text, SIZE_TEXT, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return text;
}

int print_json(char *json)
{
    if (!json) {
        fprintf(stderr, "lensd: out of memory\n");
        return 2;
    }
    fputs(json, stdout);
    free(json);
    return 0;
}
