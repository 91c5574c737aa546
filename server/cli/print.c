/* Functions that several commands use. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "server/cli/commands.h"

struct session_options command_session_options(const struct model *model)
{
    return (struct session_options){
        .device = DEVICE_HOST,
        .image_input = model->image_input,
        .image_layout = model->image_input == SIZE_MAX ? IMAGE_AS_DECLARED : IMAGE_NHWC_F32,
        .image_channels_last = model->input_channels_last,
        .image_height = model->preprocess.height,
        .image_width = model->preprocess.width,
    };
}

enum status command_folder(char *folder, struct error *err)
{
    struct stat info;
    TRY(check_memory(folder, NULL, err));
    for (size_t end = strlen(folder); end > 1 && folder[end - 1] == '/'; end--)
        folder[end - 1] = '\0';
    if (lstat(folder, &info) == 0)
        return error_set(err, STATUS_CONFIG,
                         "'%.200s' exists already; remove it, or name another folder with -o",
                         folder);
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

enum { BAR = 24, BAR_TEXT = 40 };

#define LOG_EVERY INT64_C(10000000000) /* ns */

/* Prints a line if `what` has changed since the last line, or if LOG_EVERY has passed. */
static void log_progress(const char *what, double share)
{
    static char last[96];
    static int64_t said;
    const int64_t now = clock_now();
    if (!strncmp(last, what, sizeof last - 1) && now - said < LOG_EVERY)
        return;
    snprintf(last, sizeof last, "%s", what);
    said = now;
    fprintf(stderr, "lensd: %s, %.0f %%\n", last, share * 100);
}

void progress_show(const char *what, double share, bool in_log)
{
    char bar[BAR + 1];
    const int full = (int)(share * BAR);
    if (!isatty(STDERR_FILENO)) {
        if (in_log)
            log_progress(what, share);
        return;
    }
    for (int i = 0; i < BAR; i++)
        bar[i] = i < full ? '#' : '.';
    bar[BAR] = '\0';
    fprintf(stderr, "\r%-*.*s [%s] %3.0f %%", BAR_TEXT, BAR_TEXT, what, bar, share * 100);
    fflush(stderr);
}

void progress_clear(void)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r%*s\r", BAR_TEXT + BAR + 10, "");
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
