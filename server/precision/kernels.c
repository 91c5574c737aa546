/* What earlier starts found out about layers: the tuning store, and, a file under a line that says
 * the format, the ways of layers on GPUs (engine/cuda/module.h). */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cuda/module.h"
#include "engine/tuning/tuning_store.h"
#include "server/observe/log.h"
#include "server/precision/internal.h"

#define KERNELS_BYTES (4 << 20) /* a larger file is none of ours */
#define HEAD          "lensd gpu kernels 1\n"

static atomic_size_t kept; /* tuned_made() that the file has */

static char *path_in(const char *folder)
{
    char *path;
    const struct choice_key key = choice_key_of_machine();
    return asprintf(&path, "%s/gpu-kernels-%s", folder, key.text) < 0 ? NULL : path;
}

static void recall(const struct cuda_module *module, const char *folder)
{
    char *path = path_in(folder), *text = choice_read(path, KERNELS_BYTES);
    const size_t head = strlen(HEAD);
    if (text && (strncmp(text, HEAD, head) != 0 || !module->tuned_add(text + head)))
        log_event(LOG_DEBUG, "a file of kernels is not read", LOG_STR("file", path));
    free(text);
    free(path);
}

void kernels_recall(const char *option)
{
    struct error err;
    const struct cuda_module *module = cuda_module(NULL);
    char *folder = tuning_folder(option);
    if (folder && tuning_read(folder, &err) != STATUS_OK)
        log_event(LOG_WARN, "cache", LOG_STR("text", err.message));
    if (folder && module)
        recall(module, folder);
    free(folder);
}

static bool print(FILE *file, const void *text)
{
    return fputs(HEAD, file) >= 0 && fputs(text, file) >= 0;
}

static void keep(const struct cuda_module *module, const char *folder)
{
    const size_t made = module->tuned_made();
    if (made == atomic_load(&kept))
        return;
    recall(module, folder); /* what others have written since */
    char *path = path_in(folder), *text = module->tuned_text();
    struct error err;
    if (text && choice_write(folder, path, print, text, &err) == STATUS_OK)
        atomic_store(&kept, made);
    else if (text)
        log_event(LOG_DEBUG, "the choice of kernels is not kept", LOG_STR("reason", err.message));
    free(text);
    free(path);
}

void precision_keep_kernels(const char *cache)
{
    struct error err;
    const struct cuda_module *module = cuda_module(NULL);
    char *folder = tuning_folder(cache);
    if (folder && tuning_write(folder, &err) != STATUS_OK)
        choice_say_lost(err.message);
    if (folder && module)
        keep(module, folder);
    free(folder);
}
