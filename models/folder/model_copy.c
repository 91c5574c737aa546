/* Copies the files beside a model to another model's folder. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/size.h"
#include "models/folder/model_internal.h"
#include "models/text/tokenizer.h"

static enum status write_copy(const char *path, const char *data, size_t size, struct error *err)
{
    FILE *file = fopen(path, "wbxe");
    if (!file && errno == EEXIST)
        return STATUS_OK; /* `labels` is also in the list, so the file is already copied */
    bool ok = file && fwrite(data, 1, size, file) == size && fflush(file) == 0 &&
              fsync(fileno(file)) == 0;
    const int cause = errno;
    if (file && fclose(file) != 0)
        ok = false;
    return ok ? STATUS_OK
              : error_set(err, STATUS_IO, "cannot write '%.200s': %s", path, strerror(cause));
}

static enum status copy_one(const struct model_place *place, const char *name, const char *folder,
                            struct error *err)
{
    struct side_file file;
    const enum status found = side_file_open(place, name, &file, err);
    if (found == STATUS_NOT_FOUND)
        return STATUS_OK;
    TRY(found);
    char to[PATH_MAX];
    model_path(to, "%s/%s", folder, name);
    return side_file_close(&file, write_copy(to, file.text, file.size, err), err);
}

enum status model_copy_files(const char *path, const char *labels, const char *folder,
                             struct error *err)
{
    static const char *const names[] = {"labels.txt",
                                        "index_to_name.json",
                                        "labels.json",
                                        "imagenet_classes.txt",
                                        "characters.txt",
                                        "preprocessor_config.json",
                                        "preprocess_cfg.json",
                                        "merges.txt",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "config.json",
                                        "lensd.json",
                                        "zero_shot.json",
                                        "config.pbtxt"};
    struct model_place place;
    TRY(model_place_find(path, NULL, &place, err));
    if (*labels && !strchr(labels, '/'))
        TRY(copy_one(&place, labels, folder, err));
    for (size_t i = 0; i < COUNT_OF(names); i++)
        TRY(copy_one(&place, names[i], folder, err));
    for (size_t i = 0; tokenizer_file(i); i++)
        TRY(copy_one(&place, tokenizer_file(i), folder, err));
    return STATUS_OK;
}

void model_remove_files(const char *folder)
{
    DIR *dir = opendir(folder);
    for (const struct dirent *entry; dir && (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir)
        closedir(dir);
    (void)rmdir(folder);
}
