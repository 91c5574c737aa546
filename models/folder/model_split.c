/* Splits a graph that takes photos and texts into two halves: the nodes that depend on photos only,
 * and those that depend on texts only. */
#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/passes/edit.h"
#include "models/folder/model_internal.h"

/* The inputs that a value depends on. */
enum { FROM_TEXT = 1, FROM_PHOTO = 2, FROM_BOTH = FROM_TEXT | FROM_PHOTO };

struct division {
    struct model *model;
    struct graph *graph;
    uint8_t *from;          /* FROM_… of each value, by value->index */
    struct value *texts;    /* the vectors of texts, [texts, numbers] */
    struct value *words;    /* a detector's reshaped vectors, [photos, words, numbers]; else NULL */
    struct value **outputs; /* outputs of the half that is kept */
    size_t output_count;
};

bool model_is_text_vector(const char *name)
{
    static const char *const names[] = {"text_embeds", "text_embeddings", "text_features"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (!strcmp(names[i], name))
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
    for (size_t i = 0; i < graph->input_count; i++)
        d->from[graph->inputs[i]->index] =
            text_input_kind_of(graph->inputs[i]) ? FROM_TEXT : FROM_PHOTO;
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

/* Finds the vectors of texts: a value that depends on texts only. A detector's output has these
 * vectors reshaped for the number of photos, so it depends on photos, too. Then d->texts is the
 * value before the reshape, and d->words is the output. */
static void find_texts(struct division *d)
{
    for (size_t i = 0; i < d->graph->output_count && !d->texts; i++) {
        struct value *output = d->graph->outputs[i], *value = output;
        if (!model_is_text_vector(output->name))
            continue;
        while (from_of(d, value) == FROM_BOTH && value->producer &&
               (value->producer->op == OP_RESHAPE || value->producer->op == OP_UNSQUEEZE))
            value = node_input(value->producer, 0);
        if (from_of(d, value) != FROM_TEXT)
            continue;
        d->texts = value;
        d->words = value != output ? output : NULL;
    }
}

/* Lists the outputs that depend on photos only or, in a detector, on photos and words. */
static void keep_photo_outputs(struct division *d)
{
    for (size_t i = 0; i < d->graph->output_count; i++) {
        struct value *output = d->graph->outputs[i];
        if (output != d->words &&
            (from_of(d, output) == FROM_PHOTO || (d->words && from_of(d, output) == FROM_BOTH)))
            d->outputs[d->output_count++] = output;
    }
}

/* Reads a constant scalar, or the exponential of a constant scalar. False for other values. */
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

/* Reads the scale and bias of an output that scores pairs of photos' and texts' vectors, if any. */
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

/* Reduces the graph to one half: to d->outputs, and to the inputs marked `from`. */
static enum status prune_graph(struct division *d, uint8_t from, struct error *err)
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

/* Replaces an input for tokens by ones. The detector now gets vectors. It uses tokens only to see
 * which words are present: those with a token of 1. An Expand makes the ones when a session is
 * compiled, within its memory limit, because a file may fix a very large number of tokens. */
static void replace_tokens(struct edit *edit, struct value *input, int64_t count)
{
    const int64_t one = 1, length = input->shape.dims[1];
    const int64_t sides[] = {count, length == DIM_UNKNOWN ? 1 : length};
    struct value *parts[] = {edit_constant(edit, DTYPE_I64, &SHAPE(1), &one),
                             edit_constant(edit, DTYPE_I64, &SHAPE(2), sides)};
    struct value *ones = edit_insert_value(edit, 0, OP_EXPAND, 13, "tokens of words", parts, 2,
                                           DTYPE_I64, &SHAPE(sides[0], sides[1]));
    if (ones)
        ones = edit_insert_cast(edit, 1, "tokens of words", ones, input->dtype);
    if (ones)
        edit_replace(edit->graph, input, ones);
}

/* Makes the vectors of words an input of the detector, which then runs one photo at a time. */
static enum status feed_words(struct division *d, struct error *err)
{
    struct graph *graph = d->graph;
    struct edit edit = {.graph = graph, .err = err};
    struct word_input *words = &d->model->words;
    const char *name = d->words->name;
    const int64_t count = words->count ? (int64_t)words->count : MODEL_WORDS;
    d->words->name = "";
    struct value *fed =
        graph_add_value(graph, name, d->words->dtype, &SHAPE(1, count, (int64_t)words->size));
    TRY(check_memory(fed, NULL, err));
    edit_replace(graph, d->words, fed);
    size_t kept = 0;
    for (size_t i = 0; i < graph->input_count; i++) {
        struct value *input = graph->inputs[i];
        if (from_of(d, input) == FROM_PHOTO)
            graph->inputs[kept++] = input;
        else
            replace_tokens(&edit, input, count);
    }
    for (size_t i = 0; i < kept; i++)
        if (graph->inputs[i]->shape.rank > 0 && graph->inputs[i]->shape.dims[0] == DIM_UNKNOWN)
            graph->inputs[i]->shape.dims[0] = 1;
    graph->inputs[kept++] = fed; /* there is room: inputs for tokens were removed */
    graph->input_count = kept;
    memcpy(graph->outputs, d->outputs, d->output_count * sizeof *d->outputs);
    graph->output_count = d->output_count;
    words->form = WORDS_VECTORS;
    edit_sweep(&edit);
    return edit_end(&edit);
}

/* Returns the length of a vector, from the weights of the last MatMul or Gemm; 0 if unknown. */
static int64_t vector_size(const struct value *value)
{
    for (const struct node *node = value->producer; node; node = value->producer) {
        const struct value *weights = node_input(node, 1);
        if (node->op == OP_MATMUL || node->op == OP_GEMM)
            return weights && weights->known && weights->shape.rank == 2
                       ? weights->shape.dims[!node_int(node, "transB", 0)]
                       : 0;
        if (node->op != OP_DIV && node->op != OP_MUL && node->op != OP_ADD && node->op != OP_CAST &&
            node->op != OP_IDENTITY)
            return 0;
        value = node_input(node, 0);
    }
    return 0;
}

/* Finds the detector's number of words (0: any number) and the length of a vector. Returns false if
 * the vectors are unknown or not float32. */
static bool read_word_shape(struct division *d)
{
    const struct shape *shape = &d->words->shape;
    const bool has_shape = shape->rank == 3;
    const int64_t count = has_shape && shape->dims[1] > 0 ? shape->dims[1] : 0;
    const int64_t size = has_shape && shape->dims[2] > 0 ? shape->dims[2] : vector_size(d->texts);
    d->model->words = (struct word_input){.count = (size_t)count, .size = (size_t)size};
    return size > 0 && d->words->dtype == DTYPE_F32;
}

static enum status divide(struct division *d, bool wants_texts, bool *ret_is_half,
                          struct error *err)
{
    mark_values(d);
    find_texts(d);
    keep_photo_outputs(d);
    if (!d->texts || !d->output_count || (d->words && !read_word_shape(d)))
        return STATUS_OK;
    *ret_is_half = true;
    if (!wants_texts && d->words)
        return feed_words(d, err);
    if (!wants_texts) {
        read_scores(d);
        return prune_graph(d, FROM_PHOTO, err);
    }
    if (d->words) {
        d->texts->name = d->words->name;
        d->words->name = "";
    }
    d->outputs[0] = d->texts;
    d->output_count = 1;
    return prune_graph(d, FROM_TEXT, err);
}

enum status model_split(struct model *model, bool wants_texts, bool *ret_is_half, struct error *err)
{
    struct graph *graph = model->graph;
    struct division d = {.model = model, .graph = graph};
    d.from = alloc_array(graph->value_count, sizeof *d.from);
    d.outputs = alloc_array(graph->output_count, sizeof *d.outputs);
    const enum status status = d.from && d.outputs ? divide(&d, wants_texts, ret_is_half, err)
                                                   : error_no_memory(err, NULL);
    FREE_ALL(d.from, d.outputs);
    return status;
}
