/* What earlier starts found out by trial, a file each under a line that says the format: the
 * kernels of layers on the CPU (kernel_choices.h), and the ways of layers on GPUs
 * (engine/cuda/module.h). */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cuda/module.h"
#include "engine/kernel_choices.h"
#include "server/observe/log.h"
#include "server/precision/internal.h"

#define KERNELS_BYTES (4 << 20) /* a larger file is none of ours */

/* A kind of choices: how they are named, and where they are. */
struct store {
    const char *name, *head;
    char *(*text)(void);
    bool (*add)(const char *text);
    size_t (*made)(void);
};

enum { STORES = 2 };
static atomic_size_t kept[STORES]; /* made() that the file has */

/* false: there is none, as no GPU can be used. */
static bool store_at(size_t i, struct store *ret)
{
    if (i == 0) {
        *ret = (struct store){"kernels", "lensd kernels 1\n", kernel_choices_text,
                              kernel_choices_add, kernel_choices_made};
        return true;
    }
    const struct cuda_module *module = cuda_module(NULL);
    if (module)
        *ret = (struct store){"gpu-kernels", "lensd gpu kernels 1\n", module->tuned_text,
                              module->tuned_add, module->tuned_made};
    return module != NULL;
}

static char *path_in(const char *folder, const struct store *store)
{
    char *path;
    const struct choice_key key = choice_key_of_machine();
    return asprintf(&path, "%s/%s-%s", folder, store->name, key.text) < 0 ? NULL : path;
}

static void recall(const struct store *store, const char *folder)
{
    char *path = path_in(folder, store), *text = choice_read(path, KERNELS_BYTES);
    const size_t head = strlen(store->head);
    if (text && (strncmp(text, store->head, head) != 0 || !store->add(text + head)))
        log_event(LOG_DEBUG, "a file of kernels is not read", LOG_STR("file", path));
    free(text);
    free(path);
}

void kernels_recall(const char *option)
{
    struct store store;
    char *folder = choice_folder(option);
    for (size_t i = 0; folder && i < STORES; i++)
        if (store_at(i, &store))
            recall(&store, folder);
    free(folder);
}

struct content {
    const char *head, *text;
};

static bool print(FILE *file, const void *context)
{
    const struct content *content = context;
    return fputs(content->head, file) >= 0 && fputs(content->text, file) >= 0;
}

static void keep(const struct store *store, atomic_size_t *is_kept, const char *folder)
{
    const size_t made = store->made();
    if (made == atomic_load(is_kept))
        return;
    recall(store, folder); /* what others have written since */
    char *path = path_in(folder, store), *text = store->text();
    const struct content content = {store->head, text};
    struct error err;
    if (text && choice_write(folder, path, print, &content, &err) == STATUS_OK)
        atomic_store(is_kept, made);
    else if (text)
        log_event(LOG_DEBUG, "the choice of kernels is not kept", LOG_STR("reason", err.message));
    free(text);
    free(path);
}

void precision_keep_kernels(const char *cache)
{
    struct store store;
    char *folder = choice_folder(cache);
    for (size_t i = 0; folder && i < STORES; i++)
        if (store_at(i, &store))
            keep(&store, &kept[i], folder);
    free(folder);
}
