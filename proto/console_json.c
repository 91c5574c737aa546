/* The JSON about the models that the console's page reads. */
#include <string.h>

#include "proto/answers.h"
#include "proto/writer.h"

static void write_resize(struct writer *w, cJSON *entry, const struct console_model *model)
{
    cJSON *resize = write_object(w, entry, "resize");
    write_text(w, resize, "mode", model->resize);
    write_count(w, resize, "short", (unsigned long long)model->resize_short);
    write_count(w, resize, "width", (unsigned long long)model->resize_width);
    write_count(w, resize, "height", (unsigned long long)model->resize_height);
    write_count(w, entry, "width", (unsigned long long)model->width);
    write_count(w, entry, "height", (unsigned long long)model->height);
}

static void write_model(struct writer *w, cJSON *list, const struct console_model *model)
{
    cJSON *entry = write_object(w, list, NULL);
    write_text(w, entry, "name", model->name);
    write_text(w, entry, "version", model->version);
    write_bool(w, entry, "default", model->is_default);
    write_bool(w, entry, "photos", model->takes_images);
    write_text(w, entry, "task", model->task);
    if (!model->takes_images)
        return;
    write_resize(w, entry, model);
    if (strcmp(model->task, "unknown") != 0)
        return;
    cJSON *labels = write_array(w, entry, "labels");
    for (size_t i = 0; i < model->label_count; i++)
        write_text(w, labels, NULL, model->labels[i] ? model->labels[i] : "");
}

char *console_answer_json(const struct console_model *models, size_t count, size_t *ret_size)
{
    struct writer w = {false};
    cJSON *root = cJSON_CreateObject();
    cJSON *list = write_array(&w, root, "models");
    for (size_t i = 0; i < count; i++)
        write_model(&w, list, &models[i]);
    return write_finish(&w, root, ret_size);
}
