/* The JSON about the models that the console's page reads. */
#include "proto/answers.h"
#include "proto/writer.h"

static void write_model(struct writer *w, json_node *list, const struct console_model *model)
{
    json_node *entry = write_object(w, list, NULL);
    write_text(w, entry, "name", model->name);
    write_text(w, entry, "version", model->version);
    write_bool(w, entry, "default", model->is_default);
    write_bool(w, entry, "photos", model->takes_images);
    write_text(w, entry, "task", model->task);
    if (model->confidence >= 0)
        write_float(w, entry, "confidence", model->confidence);
    if (model->iou >= 0)
        write_float(w, entry, "iou", model->iou);
}

char *console_answer_json(const struct console_model *models, size_t count, size_t *ret_size)
{
    struct writer w = {false};
    json_node *root = write_root();
    json_node *list = write_array(&w, root, "models");
    for (size_t i = 0; i < count; i++)
        write_model(&w, list, &models[i]);
    return write_finish(&w, root, ret_size);
}
