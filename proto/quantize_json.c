/* The JSON of `lensd quantize`: its report. */
#include "proto/answers.h"
#include "proto/writer.h"

static void write_agreement(struct writer *w, json_node *root, const struct quantize_answer *answer)
{
    json_node *entry = write_object(w, root, "agreement");
    write_count(w, entry, "images", (unsigned long long)answer->images);
    if (answer->is_vector)
        write_count(w, entry, "same_best_class", (unsigned long long)answer->same);
    write_count(w, entry, "clear", answer->clear);
    write_count(w, entry, "clear_agreeing", answer->agreeing);
    write_text(w, entry, "difference_of",
               answer->is_vector ? "probability of the best class" : "outputs, relative");
    write_float(w, entry, "mean", (float)answer->mean);
    write_float(w, entry, "greatest", (float)answer->greatest);
    if (answer->is_vector)
        write_float(w, entry, "correlation", (float)answer->correlation);
}

char *quantize_answer_json(const struct quantize_answer *answer, size_t *ret_size)
{
    struct writer w = {.indents = true};
    json_node *root = write_root();
    write_text(&w, root, "model", answer->model);
    write_text(&w, root, "folder", answer->folder);
    write_text(&w, root, "target", answer->target);
    json_node *photos = write_object(&w, root, "photos");
    write_count(&w, photos, "calibrated", (unsigned long long)answer->calibrated);
    write_count(&w, photos, "held_out", (unsigned long long)answer->held_out);
    write_count(&w, photos, "unreadable", (unsigned long long)answer->unreadable);
    write_agreement(&w, root, answer);
    if (answer->has_boxes) {
        json_node *boxes = write_object(&w, root, "boxes");
        write_count(&w, boxes, "fp32", answer->fp32_boxes);
        write_count(&w, boxes, "int8", answer->int8_boxes);
        write_count(&w, boxes, "pairs", answer->box_pairs);
        write_decimal(&w, boxes, "mean_iou", answer->overlap);
    }
    write_bool(&w, root, "within_bounds", answer->holds);
    write_float(&w, root, "error", (float)answer->error);
    json_node *bytes = write_object(&w, root, "bytes");
    write_count(&w, bytes, "fp32", answer->fp32_bytes);
    write_count(&w, bytes, "int8", answer->int8_bytes);
    json_node *ms = write_object(&w, root, "milliseconds");
    write_decimal(&w, ms, "fp32", answer->fp32_ms);
    write_decimal(&w, ms, "int8", answer->int8_ms);
    write_bool(&w, root, "faster", answer->is_faster);
    write_bool(&w, root, "biases_corrected", answer->corrects_biases);
    write_bool(&w, root, "smoothed", answer->is_smoothed);
    write_decimal(&w, root, "fp32_share", answer->fp32_share);
    if (answer->kept) {
        json_node *all = write_object(&w, root, "all_int8");
        if (answer->is_vector)
            write_count(&w, all, "same_best_class", (unsigned long long)answer->all_same);
        write_float(&w, all, "error", (float)answer->all_error);
        write_decimal(&w, all, "milliseconds", answer->all_ms);
    }
    json_node *layers = write_array(&w, root, "layers");
    for (size_t i = 0; i < answer->layer_count; i++) {
        const struct quantize_layer *layer = &answer->layers[i];
        json_node *entry = write_object(&w, layers, NULL);
        write_text(&w, entry, "name", layer->name);
        write_text(&w, entry, "operator", layer->op);
        write_text(&w, entry, "precision", layer->is_kept ? "fp32" : "int8");
        if (layer->error_alone > 0)
            write_float(&w, entry, "error_alone", (float)layer->error_alone);
    }
    return write_finish(&w, root, ret_size);
}
