/* The JSON of `lensd inspect`, and one-word answers. */
#include <string.h>

#include "proto/answers.h"
#include "proto/writer.h"

static bool given(const char *text)
{
    return text && text[0];
}

static void write_formats(struct writer *w, json_node *root, const char *const *formats,
                          size_t count)
{
    json_node *list = write_array(w, root, "formats");
    for (size_t i = 0; i < count; i++)
        write_text(w, list, NULL, formats[i]);
}

char *status_word_json(const char *word, size_t *ret_size)
{
    struct writer w = {false};
    json_node *root = write_root();
    write_text(&w, root, "status", word);
    return write_finish(&w, root, ret_size);
}

static void write_tensors(struct writer *w, json_node *root, const char *key,
                          const struct inspect_tensor *tensors, size_t count)
{
    json_node *list = write_array(w, root, key);
    for (size_t i = 0; i < count; i++) {
        json_node *entry = write_object(w, list, NULL);
        write_text(w, entry, "name", tensors[i].name);
        write_text(w, entry, "dtype", tensors[i].dtype);
        write_text(w, entry, "shape", tensors[i].shape);
    }
}

static void write_operators(struct writer *w, json_node *root, const struct inspect_answer *answer)
{
    json_node *list = write_array(w, root, "operators");
    for (size_t i = 0; i < answer->operator_count; i++) {
        const struct inspect_operator *op = &answer->operators[i];
        json_node *entry = write_object(w, list, NULL);
        write_text(w, entry, "name", op->name);
        write_text(w, entry, "domain", op->domain);
        write_count(w, entry, "opset", (unsigned long long)op->opset);
        write_count(w, entry, "count", op->count);
        write_bool(w, entry, "supported", op->supported);
    }
}

char *inspect_answer_json(const struct inspect_answer *answer, size_t *ret_size)
{
    struct writer w = {false};
    json_node *root = write_root();
    write_text(&w, root, "name", answer->name);
    write_text(&w, root, "file", answer->file);
    write_text(&w, root, "version", answer->version);
    if (given(answer->producer))
        write_text(&w, root, "producer", answer->producer);
    write_count(&w, root, "opset", (unsigned long long)answer->opset);
    write_count(&w, root, "file_bytes", answer->file_bytes);
    write_count(&w, root, "parameters", answer->parameter_count);
    write_count(&w, root, "parameter_bytes", answer->parameter_bytes);
    write_tensors(&w, root, "inputs", answer->inputs, answer->input_count);
    write_tensors(&w, root, "outputs", answer->outputs, answer->output_count);
    write_operators(&w, root, answer);
    if (given(answer->transform)) {
        write_text(&w, root, "transform", answer->transform);
        write_text(&w, root, "transform_source", answer->transform_source);
        write_formats(&w, root, answer->formats, answer->format_count);
    }
    if (answer->task) {
        write_text(&w, root, "task", answer->task);
        write_text(&w, root, "task_evidence", answer->task_evidence);
    }
    write_count(&w, root, "classes", answer->class_count);
    json_node *labels = write_array(&w, root, "labels");
    for (size_t i = 0; i < answer->label_count; i++)
        write_text(&w, labels, NULL, answer->labels[i]);
    write_bool(&w, root, "supported", answer->supported);
    if (given(answer->problem))
        write_text(&w, root, "problem", answer->problem);
    if (given(answer->warning))
        write_text(&w, root, "warning", answer->warning);
    return write_finish(&w, root, ret_size);
}

static void write_texts(struct writer *w, json_node *entry, const char *key,
                        const char *const *texts, size_t count)
{
    json_node *list = write_array(w, entry, key);
    for (size_t i = 0; i < count; i++)
        write_text(w, list, NULL, texts[i]);
}

char *inspect_pipeline_json(const char *name, const char *file, const struct inspect_stage *stages,
                            size_t stage_count, const char *problem, size_t *ret_size)
{
    struct writer w = {false};
    json_node *root = write_root();
    write_text(&w, root, "name", name);
    write_text(&w, root, "file", file);
    json_node *names = write_array(&w, root, "stages");
    for (size_t i = 0; i < stage_count; i++)
        write_text(&w, names, NULL, stages[i].model);
    json_node *details = write_array(&w, root, "stage_details");
    for (size_t i = 0; i < stage_count; i++) {
        const struct inspect_stage *stage = &stages[i];
        json_node *entry = write_object(&w, details, NULL);
        write_text(&w, entry, "model", stage->model);
        if (i > 0) {
            write_texts(&w, entry, "labels", stage->labels, stage->label_count);
            write_float(&w, entry, "min_score", (float)stage->min_score);
            write_float(&w, entry, "margin", (float)stage->margin);
            write_count(&w, entry, "max", stage->max);
        }
        write_texts(&w, entry, "sizes", stage->sizes, stage->size_count);
    }
    write_bool(&w, root, "supported", !problem);
    if (problem)
        write_text(&w, root, "problem", problem);
    return write_finish(&w, root, ret_size);
}
