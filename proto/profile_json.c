/* The JSON of `lensd inspect --profile`: the time of every layer. */
#include "proto/profile.h"

#include "proto/writer.h"

static void write_layer(struct writer *w, json_node *entry, const struct profile_layer *layer)
{
    if (layer->name)
        write_text(w, entry, "name", layer->name);
    if (layer->kernel)
        write_text(w, entry, "kernel", layer->kernel);
    if (layer->kernel)
        write_bool(w, entry, "tried", layer->tried);
    write_float(w, entry, "ms", (float)layer->milliseconds);
    write_decimal(w, entry, "share", layer->share);
    write_float(w, entry, "gflop", (float)layer->gflop);
    write_float(w, entry, "gflops", (float)layer->gflops);
    if (layer->of_peak > 0)
        write_decimal(w, entry, "of_peak", layer->of_peak);
    write_float(w, entry, "gb_per_s", (float)layer->gigabytes_per_second);
}

char *profile_answer_json(const struct profile_answer *answer, size_t *ret_size)
{
    struct writer w = {false};
    json_node *root = write_root();
    write_text(&w, root, "model", answer->model);
    write_text(&w, root, "device", answer->device);
    write_text(&w, root, "precision", answer->precision);
    write_text(&w, root, "precision_why", answer->why);
    write_count(&w, root, "threads", (unsigned long long)answer->threads);
    write_count(&w, root, "batch", (unsigned long long)answer->batch);
    write_decimal(&w, root, "batch_ms", answer->batch_milliseconds);
    json_node *peak = write_object(&w, root, "peak");
    write_decimal(&w, peak, "gflops", answer->peak_gflops);
    write_text(&w, peak, "instructions", answer->instructions);
    write_layer(&w, write_object(&w, root, "total"), &answer->total);
    json_node *layers = write_array(&w, root, "layers");
    for (size_t i = 0; i < answer->layer_count; i++)
        write_layer(&w, write_object(&w, layers, NULL), &answer->layers[i]);
    if (answer->note)
        write_text(&w, root, "note", answer->note);
    return write_finish(&w, root, ret_size);
}
