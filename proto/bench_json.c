/* The JSON of `lensd bench --json`. */
#include "proto/answers.h"
#include "proto/writer.h"

static void write_device(struct writer *w, json_node *list, const struct bench_device *device)
{
    json_node *entry = write_object(w, list, NULL);
    write_text(w, entry, "id", device->id);
    if (device->problem) {
        write_text(w, entry, "error", device->problem);
        return;
    }
    write_text(w, entry, "name", device->name);
    write_text(w, entry, "precision", device->precision);
    if (device->threads > 0)
        write_count(w, entry, "threads", (unsigned long long)device->threads);
    json_node *batches = write_array(w, entry, "batches");
    for (size_t i = 0; i < device->batch_count; i++) {
        const struct bench_batch *batch = &device->batches[i];
        json_node *row = write_object(w, batches, NULL);
        write_count(w, row, "size", (unsigned long long)batch->size);
        write_decimal(w, row, "milliseconds", batch->milliseconds);
        write_decimal(w, row, "best_milliseconds", batch->best_milliseconds);
        write_decimal(w, row, "images_per_second", batch->images_per_second);
        write_decimal(w, row, "speed_up", batch->speed_up);
        write_count(w, row, "runs", batch->runs);
    }
}

char *bench_answer_json(const struct bench_answer *answer, size_t *ret_size)
{
    struct writer w = {false};
    json_node *root = write_root();
    write_text(&w, root, "model", answer->model);
    write_text(&w, root, "version", answer->version);
    json_node *list = write_array(&w, root, "devices");
    for (size_t i = 0; i < answer->device_count; i++)
        write_device(&w, list, &answer->devices[i]);
    if (answer->note && answer->note[0])
        write_text(&w, root, "note", answer->note);
    return write_finish(&w, root, ret_size);
}
