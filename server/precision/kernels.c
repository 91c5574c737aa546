/* The kernels of layers that earlier starts chose by trial: kernel_choices.h's lines in one file,
 * under a line that says the format. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kernel_choices.h"
#include "server/observe/log.h"
#include "server/precision/internal.h"

#define HEAD          "lensd kernels 1\n"
#define KERNELS_BYTES (4 << 20) /* a larger file is none of ours */

static char *path_in(const char *folder)
{
    char *path;
    const struct choice_key key = choice_key_of_machine();
    return asprintf(&path, "%s/kernels-%s", folder, key.text) < 0 ? NULL : path;
}

/* The whole file with a terminator, malloc'ed; NULL when there is none. */
static char *read_whole(const char *path)
{
    FILE *file = fopen(path, "rbe");
    char *text = file ? malloc(KERNELS_BYTES + 1) : NULL;
    if (text) {
        const size_t size = fread(text, 1, KERNELS_BYTES, file);
        const bool whole = !ferror(file) && feof(file);
        text[size] = '\0';
        if (!whole || strlen(text) != size) {
            free(text);
            text = NULL;
        }
    }
    if (file)
        fclose(file);
    return text;
}

static atomic_size_t kept; /* kernel_choices_made() that the file has */

void kernels_recall(const char *option)
{
    char *folder = choice_folder(option), *path = folder ? path_in(folder) : NULL;
    char *text = path ? read_whole(path) : NULL;
    if (text &&
        (strncmp(text, HEAD, strlen(HEAD)) != 0 || !kernel_choices_add(text + strlen(HEAD))))
        log_event(LOG_DEBUG, "a file of kernels is not read", LOG_STR("file", path));
    free(text);
    free(path);
    free(folder);
}

static bool print(FILE *file, const void *context)
{
    return fputs(HEAD, file) >= 0 && fputs(context, file) >= 0;
}

void precision_keep_kernels(const char *cache)
{
    const size_t made = kernel_choices_made();
    char *folder = made != atomic_load(&kept) ? choice_folder(cache) : NULL;
    if (!folder)
        return;
    kernels_recall(cache); /* what others have written since */
    char *path = path_in(folder), *text = kernel_choices_text();
    struct error err;
    if (text && choice_write(folder, path, print, text, &err) == STATUS_OK)
        atomic_store(&kept, made);
    else if (text)
        log_event(LOG_DEBUG, "the choice of kernels is not kept", LOG_STR("reason", err.message));
    free(text);
    free(path);
    free(folder);
}
