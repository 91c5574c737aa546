/* Divides a graph that takes photos and texts into its halves: what only the photos decide, and
 * what only the texts decide. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/passes/edit.h"
#include "models/folder/model_internal.h"

/* What decides a value. */
enum { FROM_TEXT = 1, FROM_PHOTO = 2, FROM_BOTH = FROM_TEXT | FROM_PHOTO };

struct division {
    struct model *model;
    struct graph *graph;
    uint8_t *from;          /* by value->index */
    struct value *texts;    /* the vectors of texts, [texts, numbers] */
    struct value **outputs; /* of a half */
    size_t output_count;
};

bool model_is_text_vector(const char *name, size_t size)
{
    static const char *const names[] = {"text_embeds", "text_embeddings", "text_features"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (strlen(names[i]) == size && !memcmp(names[i], name, size))
            return true;
    return false;
}

static uint8_t from_of(const struct division *d, const struct value *value)
{
    return value ? d->from[value->index] : 0;
}

static void mark_values(struct division *d)
{
    const struct graph *graph = d->graph;
    enum text_input_kind kind;
    for (size_t i = 0; i < graph->input_count; i++)
        d->from[graph->inputs[i]->index] =
            text_input_kind_of(graph->inputs[i], &kind) ? FROM_TEXT : FROM_PHOTO;
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        uint8_t from = 0;
        for (size_t i = 0; i < node->input_count; i++)
            from |= from_of(d, node->inputs[i]);
        for (size_t i = 0; i < node->capture_count; i++)
            from |= from_of(d, node->captures[i]);
        for (size_t o = 0; o < node->output_count; o++)
            if (node->outputs[o])
                d->from[node->outputs[o]->index] = from;
    }
}

/* Finds the output with the vectors of texts that photos do not change. */
static void find_texts(struct division *d)
{
    for (size_t i = 0; i < d->graph->output_count && !d->texts; i++) {
        struct value *output = d->graph->outputs[i];
        if (from_of(d, output) == FROM_TEXT &&
            model_is_text_vector(output->name, strlen(output->name)))
            d->texts = output;
    }
}

static void keep_outputs_from(struct division *d, uint8_t from)
{
    for (size_t i = 0; i < d->graph->output_count; i++)
        if (from_of(d, d->graph->outputs[i]) == from)
            d->outputs[d->output_count++] = d->graph->outputs[i];
}

/* A scalar, or e to the power of one. */
static bool is_factor(const struct value *value, float *ret)
{
    while (value && value->producer &&
           (value->producer->op == OP_CAST || value->producer->op == OP_IDENTITY))
        value = node_input(value->producer, 0);
    const struct node *made_by = value ? value->producer : NULL;
    if (value && value->known)
        return edit_scalar(value, ret);
    if (!made_by || made_by->op != OP_EXP || !edit_scalar(node_input(made_by, 0), ret))
        return false;
    *ret = expf(*ret);
    return true;
}

/* Reads scale and bias of the scores where the graph makes these of both vectors. */
static void read_scores(struct division *d)
{
    struct zero_shot *scores = &d->model->texts;
    float scale = 1, bias = 0;
    bool has_product = false;
    for (size_t i = 0; i < d->graph->output_count && !has_product; i++) {
        const struct value *value = d->graph->outputs[i];
        while (from_of(d, value) == FROM_BOTH && value->producer && !has_product) {
            const struct node *node = value->producer;
            const size_t at = node->input_count == 2 && !from_of(d, node->inputs[0]);
            float number;
            has_product = node->op == OP_MATMUL || node->op == OP_GEMM;
            if (node->op == OP_MUL && is_factor(node_input(node, 1 - at), &number))
                scale *= number;
            else if (node->op == OP_ADD && is_factor(node_input(node, 1 - at), &number))
                bias += number;
            else if (!has_product && node->op != OP_TRANSPOSE)
                break;
            value = node_input(node, at);
        }
    }
    if (!has_product || scale == 1.0F)
        return;
    scores->scale = scale;
    scores->bias = bias;
    scores->is_sigmoid = bias != 0;
    scores->has_scale = true;
}

/* Makes the graph one of d->outputs and of the inputs that decide them. */
static enum status cut(struct division *d, uint8_t from, struct error *err)
{
    struct graph *graph = d->graph;
    struct edit edit = {.graph = graph, .err = err};
    size_t kept = 0;
    memcpy(graph->outputs, d->outputs, d->output_count * sizeof *d->outputs);
    graph->output_count = d->output_count;
    for (size_t i = 0; i < graph->input_count; i++)
        if (from_of(d, graph->inputs[i]) == from)
            graph->inputs[kept++] = graph->inputs[i];
    graph->input_count = kept;
    edit_sweep(&edit);
    return edit_end(&edit);
}

static enum status divide(struct division *d, bool wants_texts, bool *ret_is_half,
                          struct error *err)
{
    mark_values(d);
    find_texts(d);
    keep_outputs_from(d, FROM_PHOTO);
    if (!d->texts || !d->output_count)
        return STATUS_OK;
    *ret_is_half = true;
    if (!wants_texts) {
        read_scores(d);
        return cut(d, FROM_PHOTO, err);
    }
    d->outputs[0] = d->texts;
    d->output_count = 1;
    return cut(d, FROM_TEXT, err);
}

enum status model_split(struct model *model, bool wants_texts, bool *ret_is_half, struct error *err)
{
    struct graph *graph = model->graph;
    struct division d = {.model = model, .graph = graph};
    d.from = alloc_array(graph->value_count, sizeof *d.from);
    d.outputs = alloc_array(graph->output_count, sizeof *d.outputs);
    const enum status status = d.from && d.outputs ? divide(&d, wants_texts, ret_is_half, err)
                                                   : error_no_memory(err, NULL);
    free(d.from);
    free(d.outputs);
    return status;
}
