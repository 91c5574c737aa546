/* Opens the model that an option names. */
#include "server/loader/model_open.h"

#include <stdio.h>
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
    char *copy = name ? strdup(name) : NULL;
    TRY(check_memory(!name || copy, NULL, err));
    const enum status status = model_load_embedded(ret, err);
    if (status != STATUS_OK || !copy) {
        free(copy);
        return status;
    }
    free((*ret)->name);
    (*ret)->name = copy;
    return STATUS_OK;
}

void model_tell_doubts(const struct model *model,
                       void (*tell)(const struct model *model, const char *text))
{
    char text[240];
    if (model->warning[0])
        tell(model, model->warning);
    if (model->image_input == SIZE_MAX)
        return;
    snprintf(
        text, sizeof text,
        "no file says how to prepare photos, so lensd uses %.63s; put preprocessor_config.json "
        "beside the .onnx file (lensd inspect shows the preprocessing)",
        model->preprocess_source);
    /* For lines of text the default is right: PP-OCR's models were trained with it. */
    if (!model->is_configured && model->task.kind != TASK_TEXT)
        tell(model, text);
    const bool has_names =
        model->task.kind == TASK_CLASSIFICATION || model->task.kind == TASK_DETECTION ||
        model->task.kind == TASK_INSTANCES || model->task.kind == TASK_SEGMENTATION;
    if (has_names && model->labels.count == 0)
        tell(model, "the model has no labels, so classes have numbers, not names; put labels.txt "
                    "beside the .onnx file, one name per line");
}
