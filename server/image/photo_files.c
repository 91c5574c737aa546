/* Finds photos in folders. */
#include "server/image/photo_files.h"

#include <errno.h>
#include <fts.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/array.h"
#include "engine/base/size.h"

#define FOLDERS_DEEP 16

bool photo_files_has_ending(const char *name)
{
    static const char *const endings[] = {".jpg", ".jpeg", ".png",  ".bmp",  ".gif", ".webp",
                                          ".tif", ".tiff", ".avif", ".heic", ".heif"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < COUNT_OF(endings); i++)
        if (!strcasecmp(dot, endings[i]))
            return true;
    return false;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void photo_files_free(char **names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

/* Skips names that begin with a dot, all files in folders with such names, and folders more than
 * FOLDERS_DEEP levels down. Does not follow links to folders. */
static enum status list_images(FTS *tree, char ***names, size_t *count, struct error *err)
{
    size_t capacity = 0;
    for (FTSENT *entry; (entry = fts_read(tree));) {
        const bool is_hidden = entry->fts_level > 0 && entry->fts_name[0] == '.';
        if (entry->fts_info == FTS_D && (is_hidden || entry->fts_level > FOLDERS_DEEP))
            fts_set(tree, entry, FTS_SKIP);
        if (entry->fts_info == FTS_D || entry->fts_info == FTS_DP || is_hidden ||
            !photo_files_has_ending(entry->fts_name))
            continue;
        if (!array_reserve(names, &capacity, *count + 1, sizeof **names) ||
            !((*names)[*count] = strdup(entry->fts_path)))
            return error_no_memory(err, "for the names of photos");
        ++*count;
    }
    return STATUS_OK;
}

/* Keeps `most` names, spread evenly, because the names are sorted by folder and so by class. */
static size_t thin_out(char **names, size_t count, size_t most)
{
    if (count <= most)
        return count;
    for (size_t i = 0, taken = 0; i < count; i++)
        if (taken < most && i == taken * count / most)
            names[taken++] = names[i];
        else
            free(names[i]);
    return most;
}

enum status photo_files_list(const char *folder, size_t most, char ***ret, size_t *ret_count,
                             struct error *err)
{
    char *const roots[] = {(char *)(uintptr_t)folder, NULL};
    char **names = NULL;
    size_t count = 0;
    FTS *tree = folder ? fts_open(roots, FTS_COMFOLLOW | FTS_PHYSICAL | FTS_NOCHDIR, NULL) : NULL;
    enum status status = STATUS_OK;
    if (tree)
        status = list_images(tree, &names, &count, err);
    else if (folder && errno == ENOMEM)
        status = error_no_memory(err, "for the names of photos");
    if (tree)
        fts_close(tree);
    if (status != STATUS_OK) {
        photo_files_free(names, count);
        return status;
    }
    if (count)
        qsort(names, count, sizeof *names, compare_names);
    *ret = names;
    *ret_count = thin_out(names, count, most);
    return STATUS_OK;
}
