/* Configuration files that models in Immich's cache lack: Immich's service has them in its code. */
#include <string.h>

#include "engine/base/size.h"
#include "models/folder/model_internal.h"

/* True if a path ends in TASK/NAME/PART/model.onnx. */
static bool is_part(const char *path, const char *task, const char *part)
{
    const char *ends[4] = {NULL}; /* starts of the path's last four names, the last one first */
    size_t count = 0;
    for (const char *at = path + strlen(path); at > path && count < COUNT_OF(ends); at--)
        if (at[-1] == '/' || at == path + 1)
            ends[count++] = at[-1] == '/' ? at : path;
    return count == COUNT_OF(ends) && !strncmp(ends[3], task, strlen(task)) &&
           ends[3][strlen(task)] == '/' && !strncmp(ends[1], part, strlen(part)) &&
           ends[1][strlen(part)] == '/';
}

const char *immich_file(const char *path, const char *name)
{
    static const struct {
        const char *task, *part, *name, *text;
    } files[] = {
        {"facial-recognition", "recognition", "lensd.json", "{\"task\": \"embedding\"}"},
        {"facial-recognition", "recognition", "preprocessor_config.json",
         "{\"size\": {\"height\": 112, \"width\": 112}, \"image_mean\": [0.5, 0.5, 0.5], "
         "\"image_std\": [0.5, 0.5, 0.5]}"},
        /* Immich's settings of rapidocr */
        {"ocr", "detection", "lensd.json",
         "{\"task\": \"text-detection\", \"confidence\": 0.5, \"unclip_ratio\": 1.6, "
         "\"use_dilation\": true}"},
        /* saves memory: pages are large, and Immich sends one at a time */
        {"ocr", "detection", "config.pbtxt", "max_batch_size: 1"},
        {"ocr", "recognition", "config.pbtxt", "max_batch_size: 4"},
        {"ocr", "detection", "preprocessor_config.json",
         "{\"size\": {\"height\": 736, \"width\": 992}, \"do_flip_channel_order\": true, "
         "\"resample\": 1, \"image_mean\": [0.5, 0.5, 0.5], \"image_std\": [0.5, 0.5, 0.5]}"},
    };
    for (size_t i = 0; i < COUNT_OF(files); i++)
        if (!strcmp(files[i].name, name) && is_part(path, files[i].task, files[i].part))
            return files[i].text;
    return NULL;
}
