/* Opens the model that an option names. */
#include "server/loader/model_open.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
        return error_no_memory(err, NULL);
    }
    if (copy) {
        free((*ret)->name);
        (*ret)->name = copy;
    }
    return STATUS_OK;
}
