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

enum status photo_files_add(struct photo_files *files, const char *path, struct error *err)
{
    if (!array_reserve(&files->paths, &files->capacity, files->count + 1, sizeof *files->paths) ||
        !(files->paths[files->count] = strdup(path)))
        return error_no_memory(err, "for the names of photos");
    files->count++;
    return STATUS_OK;
}

void photo_files_done(struct photo_files *files)
{
    for (size_t i = 0; i < files->count; i++)
        free(files->paths[i]);
    free(files->paths);
}

/* Skips names that begin with a dot, all files in folders with such names, and folders more than
 * FOLDERS_DEEP levels down. Does not follow links to folders. */
static enum status list_images(FTS *tree, struct photo_files *files, struct error *err)
{
    for (FTSENT *entry; (entry = fts_read(tree));) {
        const bool is_hidden = entry->fts_level > 0 && entry->fts_name[0] == '.';
        if (entry->fts_info == FTS_D && (is_hidden || entry->fts_level > FOLDERS_DEEP))
            fts_set(tree, entry, FTS_SKIP);
        if (entry->fts_info != FTS_D && entry->fts_info != FTS_DP && !is_hidden &&
            photo_files_has_ending(entry->fts_name))
            TRY(photo_files_add(files, entry->fts_path, err));
    }
    return STATUS_OK;
}

/* Keeps `most` paths, spread evenly, because the paths are sorted by folder and so by class. */
static void thin_out(struct photo_files *files, size_t most)
{
    const size_t count = files->count;
    if (count <= most)
        return;
    files->count = 0;
    for (size_t i = 0; i < count; i++)
        if (files->count < most && i == files->count * count / most)
            files->paths[files->count++] = files->paths[i];
        else
            free(files->paths[i]);
}

enum status photo_files_add_folder(struct photo_files *files, const char *folder, size_t most,
                                   struct error *err)
{
    char *const roots[] = {(char *)(uintptr_t)folder, NULL};
    const size_t before = files->count;
    FTS *tree = folder ? fts_open(roots, FTS_COMFOLLOW | FTS_PHYSICAL | FTS_NOCHDIR, NULL) : NULL;
    if (!tree)
        return folder && errno == ENOMEM ? error_no_memory(err, "for the names of photos")
                                         : STATUS_OK;
    const enum status status = list_images(tree, files, err);
    fts_close(tree);
    if (files->count > before)
        qsort(files->paths + before, files->count - before, sizeof *files->paths, compare_names);
    thin_out(files, most);
    return status;
}
