/* The JSON of /health, /devices and `lensd inspect`, and one-word answers. */
#include <string.h>

#include "proto/answers.h"
#include "proto/writer.h"

static bool given(const char *text)
{
    return text && text[0];
}

/* Nothing for a model that is no pipeline. */
static void write_stages(struct writer *w, cJSON *entry, const char *const *stages, size_t count)
{
    cJSON *list = count ? write_array(w, entry, "stages") : NULL;
    for (size_t i = 0; i < count; i++)
        write_text(w, list, NULL, stages[i]);
}

static void write_health_model(struct writer *w, cJSON *list, const struct health_model *model)
{
    cJSON *entry = write_object(w, list, NULL);
    write_text(w, entry, "name", model->name);
    write_text(w, entry, "version", model->version);
    write_text(w, entry, "state", model->state);
    write_decimal(w, entry, "progress", model->progress);
    if (model->phase) {
        write_text(w, entry, "phase", model->phase);
        write_count(w, entry, "seconds_left", (unsigned long long)model->seconds_left);
    }
    write_bool(w, entry, "default", model->is_default);
    if (given(model->precision))
        write_text(w, entry, "precision", model->precision);
    write_stages(w, entry, model->stages, model->stage_count);
    if (given(model->failure))
        write_text(w, entry, "error", model->failure);
    cJSON *quarantined = model->quarantined_count > 0 ? write_array(w, entry, "quarantined") : NULL;
    for (size_t i = 0; i < model->quarantined_count; i++) {
        cJSON *row = write_object(w, quarantined, NULL);
        write_text(w, row, "device", model->quarantined[i].device);
        write_text(w, row, "reason", model->quarantined[i].reason);
        write_decimal(w, row, "seconds", model->quarantined[i].seconds);
    }
    write_count(w, entry, "queued", model->queued);
    write_count(w, entry, "in_flight", model->in_flight);
}

static void write_formats(struct writer *w, cJSON *root, const char *const *formats, size_t count)
{
    cJSON *list = write_array(w, root, "formats");
    for (size_t i = 0; i < count; i++)
        write_text(w, list, NULL, formats[i]);
}

char *health_answer_json(const struct health_answer *answer, size_t *ret_size)
{
    struct writer w = {false};
    cJSON *root = cJSON_CreateObject();
    write_text(&w, root, "status", answer->state);
    write_bool(&w, root, "ready", !strcmp(answer->state, "ready"));
    write_text(&w, root, "version", answer->version);
    write_decimal(&w, root, "uptime_seconds", answer->uptime_s);
    if (given(answer->note))
        write_text(&w, root, "note", answer->note);
    if (given(answer->confinement))
        write_text(&w, root, "confinement", answer->confinement);
    write_formats(&w, root, answer->formats, answer->format_count);
    cJSON *list = write_array(&w, root, "models");
    for (size_t i = 0; i < answer->model_count; i++)
        write_health_model(&w, list, &answer->models[i]);
    return write_finish(&w, root, ret_size);
}

char *status_word_json(const char *word, size_t *ret_size)
{
    struct writer w = {false};
    cJSON *root = cJSON_CreateObject();
    write_text(&w, root, "status", word);
    return write_finish(&w, root, ret_size);
}

static void write_choice(struct writer *w, cJSON *entry, const struct device_model *model)
{
    if (!given(model->why))
        return;
    cJSON *choice = write_object(w, entry, "precision_choice");
    write_text(w, choice, "origin", model->origin);
    write_text(w, choice, "why", model->why);
    if (model->trial_count == 0)
        return;
    write_count(w, choice, "calibration_images", (unsigned long long)model->probes_from_folder);
    cJSON *trials = write_array(w, choice, "trials");
    for (size_t i = 0; i < model->trial_count; i++) {
        const struct device_trial *trial = &model->trials[i];
        cJSON *row = write_object(w, trials, NULL);
        write_text(w, row, "precision", trial->precision);
        write_text(w, row, "outcome", trial->outcome);
        write_decimal(w, row, "times_fp32", trial->speed);
        write_decimal(w, row, "one_ms", trial->one_ms);
        write_decimal(w, row, "fp32_one_ms", trial->fp32_one_ms);
        write_decimal(w, row, "image_ms", trial->image_ms);
        write_decimal(w, row, "fp32_image_ms", trial->fp32_image_ms);
        write_count(w, row, "images", (unsigned long long)trial->images);
        write_count(w, row, "clear", trial->clear);
        write_count(w, row, "agreeing", trial->agreeing);
        write_text(w, row, "difference_of", trial->measure);
        write_float(w, row, "mean_difference", (float)trial->mean);
        write_float(w, row, "greatest_difference", (float)trial->greatest);
        if (trial->correlation != 0)
            write_float(w, row, "correlation", (float)trial->correlation);
    }
}

static void write_device_model(struct writer *w, cJSON *list, const struct device_model *model)
{
    cJSON *entry = write_object(w, list, NULL);
    write_text(w, entry, "name", model->name);
    write_text(w, entry, "version", model->version);
    write_text(w, entry, "task", model->task);
    write_text(w, entry, "task_evidence", model->task_evidence);
    write_text(w, entry, "precision", model->precision);
    write_choice(w, entry, model);
    if (model->threads > 0)
        write_count(w, entry, "threads", (unsigned long long)model->threads);
    write_count(w, entry, "parameter_bytes", model->parameter_bytes);
    write_count(w, entry, "activation_bytes", model->activation_bytes);
    write_bool(w, entry, "batched", model->batched);
    if (given(model->note))
        write_text(w, entry, "note", model->note);
    if (given(model->quarantined))
        write_text(w, entry, "quarantined", model->quarantined);
    cJSON *batches = write_array(w, entry, "batches");
    for (size_t i = 0; i < model->batch_count; i++) {
        const struct device_batch *batch = &model->batches[i];
        cJSON *row = write_object(w, batches, NULL);
        write_count(w, row, "size", (unsigned long long)batch->size);
        write_decimal(w, row, "milliseconds", batch->milliseconds);
        write_count(w, row, "activation_bytes", batch->activation_bytes);
    }
}

static void write_device(struct writer *w, cJSON *list, const struct device_entry *device)
{
    cJSON *entry = write_object(w, list, NULL);
    write_text(w, entry, "id", device->id);
    write_text(w, entry, "name", device->name);
    write_bool(w, entry, "usable", device->usable);
    if (!device->usable) {
        write_text(w, entry, "reason", given(device->reason) ? device->reason : "unknown");
        if (device->model_count == 0) /* those of a device that has failed are still shown */
            return;
    }
    cJSON *memory = write_object(w, entry, "memory");
    write_count(w, memory, "total_bytes", device->total_bytes);
    write_count(w, memory, "free_bytes", device->free_bytes);
    write_count(w, memory, "used_by_lensd_bytes", device->used_bytes);
    if (device->limit_bytes > 0)
        write_count(w, memory, "limit_bytes", device->limit_bytes);
    if (device->threads > 0)
        write_count(w, entry, "threads", (unsigned long long)device->threads);
    if (device->cores > 0)
        write_count(w, entry, "cores", (unsigned long long)device->cores);
    if (given(device->isa))
        write_text(w, entry, "isa", device->isa);
    cJSON *precisions = write_array(w, entry, "fast_precisions");
    write_text(w, precisions, NULL, "fp32");
    if (device->bf16)
        write_text(w, precisions, NULL, "bf16");
    if (device->fp16)
        write_text(w, precisions, NULL, "fp16");
    if (device->int8)
        write_text(w, precisions, NULL, "int8");
    cJSON *models = write_array(w, entry, "models");
    for (size_t i = 0; i < device->model_count; i++)
        write_device_model(w, models, &device->models[i]);
}

char *devices_answer_json(const struct device_entry *devices, size_t count,
                          const struct device_pipeline *pipelines, size_t pipeline_count,
                          const char *note, size_t *ret_size)
{
    struct writer w = {false};
    cJSON *root = cJSON_CreateObject();
    cJSON *list = write_array(&w, root, "devices");
    for (size_t i = 0; i < count; i++)
        write_device(&w, list, &devices[i]);
    list = pipeline_count ? write_array(&w, root, "pipelines") : NULL;
    for (size_t i = 0; i < pipeline_count; i++) {
        cJSON *entry = write_object(&w, list, NULL);
        write_text(&w, entry, "name", pipelines[i].name);
        write_stages(&w, entry, pipelines[i].stages, pipelines[i].stage_count);
    }
    if (given(note))
        write_text(&w, root, "note", note);
    return write_finish(&w, root, ret_size);
}

static void write_tensors(struct writer *w, cJSON *root, const char *key,
                          const struct inspect_tensor *tensors, size_t count)
{
    cJSON *list = write_array(w, root, key);
    for (size_t i = 0; i < count; i++) {
        cJSON *entry = write_object(w, list, NULL);
        write_text(w, entry, "name", tensors[i].name);
        write_text(w, entry, "dtype", tensors[i].dtype);
        write_text(w, entry, "shape", tensors[i].shape);
    }
}

static void write_operators(struct writer *w, cJSON *root, const struct inspect_answer *answer)
{
    cJSON *list = write_array(w, root, "operators");
    for (size_t i = 0; i < answer->operator_count; i++) {
        const struct inspect_operator *op = &answer->operators[i];
        cJSON *entry = write_object(w, list, NULL);
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
    cJSON *root = cJSON_CreateObject();
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
    cJSON *labels = write_array(&w, root, "labels");
    for (size_t i = 0; i < answer->label_count; i++)
        write_text(&w, labels, NULL, answer->labels[i]);
    write_bool(&w, root, "supported", answer->supported);
    if (given(answer->problem))
        write_text(&w, root, "problem", answer->problem);
    if (given(answer->warning))
        write_text(&w, root, "warning", answer->warning);
    return write_finish(&w, root, ret_size);
}

static void write_texts(struct writer *w, cJSON *entry, const char *key, const char *const *texts,
                        size_t count)
{
    cJSON *list = write_array(w, entry, key);
    for (size_t i = 0; i < count; i++)
        write_text(w, list, NULL, texts[i]);
}

char *inspect_pipeline_json(const char *name, const char *file, const struct inspect_stage *stages,
                            size_t stage_count, const char *problem, size_t *ret_size)
{
    struct writer w = {false};
    cJSON *root = cJSON_CreateObject();
    write_text(&w, root, "name", name);
    write_text(&w, root, "file", file);
    cJSON *names = write_array(&w, root, "stages");
    for (size_t i = 0; i < stage_count; i++)
        write_text(&w, names, NULL, stages[i].model);
    cJSON *details = write_array(&w, root, "stage_details");
    for (size_t i = 0; i < stage_count; i++) {
        const struct inspect_stage *stage = &stages[i];
        cJSON *entry = write_object(&w, details, NULL);
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
