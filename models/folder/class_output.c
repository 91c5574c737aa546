/* Chooses the output that has a classifier's scores. Several outputs may have a row of numbers per
 * image: a vector, from which the graph computes the scores; boxes; or other scores (each digit of
 * a captcha; age and gender). rules[] compares names, operators and the number of labels. If more
 * than one output is left, none is chosen, because any choice would be a guess. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/size.h"
#include "engine/base/text.h"
#include "engine/op/ops.h"
#include "models/folder/model_internal.h"

bool output_is_probabilities(const struct value *output)
{
    for (int steps = 0; output && output->producer && steps < 16; steps++) {
        const enum op op = output->producer->op;
        if (op_has(op, OP_PROBABILITIES))
            return true;
        if (!op_has(op, OP_VIEW) && op != OP_CAST && op != OP_QUANTIZE_LINEAR &&
            op != OP_DEQUANTIZE_LINEAR)
            return false;
        output = node_input(output->producer, 0);
    }
    return false;
}

bool model_rows_depend_on_data(const struct model *model, const struct shape *output)
{
    return model->fixed_batch && output->rank >= 2 && output->dims[0] == DIM_UNKNOWN;
}

/* Outputs that may have the class scores. */
struct heads {
    const struct model *model;
    const struct graph *graph; /* the copy of the graph that has shapes for one photo */
    size_t count;
    size_t outputs[16]; /* if there are more than 16, none is chosen */
};

/* Returns K of an output [N, K] or [N, K, 1, 1] of floats. Returns 0 if K is unknown, if the output
 * has another shape or dtype, or if its rows are not the images of the batch. */
static size_t classes_of(const struct model *model, const struct value *output)
{
    const struct shape *shape = &output->shape;
    bool is_scores = dtype_is_float(output->dtype) && (shape->rank == 2 || shape->rank == 4) &&
                     !model_rows_depend_on_data(model, shape);
    for (int d = 2; is_scores && d < shape->rank; d++)
        is_scores = shape->dims[d] == 1;
    return is_scores && shape->dims[1] > 0 ? (size_t)shape->dims[1] : 0;
}

static size_t head_classes(const struct heads *heads, size_t i)
{
    return classes_of(heads->model, heads->graph->outputs[heads->outputs[i]]);
}

static const struct value *head_value(const struct heads *heads, size_t i)
{
    return heads->model->graph->outputs[heads->outputs[i]]; /* is_last() searches this graph */
}

static bool contains_one(const char *name, const char *const *words, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcasestr(name, words[i]))
            return true;
    return false;
}

static bool is_no_position(const struct heads *heads, size_t i)
{
    static const char *const words[] = {"boxes", "bbox", "landmark", "keypoint", "offset"};
    return !contains_one(head_value(heads, i)->name, words, COUNT_OF(words));
}

static bool is_no_vector(const struct heads *heads, size_t i)
{
    static const char *const words[] = {"embed", "pool", "feature", "hidden_state", "aux"};
    return !contains_one(head_value(heads, i)->name, words, COUNT_OF(words));
}

/* True if the output `from` depends on the output `to`. Searches the nodes backwards. */
static bool is_computed_from(const struct graph *graph, const struct value *from,
                             const struct value *to)
{
    bool *is_read = alloc_array(graph->value_count, sizeof *is_read);
    if (!is_read)
        return false;
    is_read[from->index] = true;
    for (size_t n = graph->node_count; n-- > 0 && !is_read[to->index];) {
        const struct node *node = graph->nodes[n];
        bool is_wanted = false;
        for (size_t i = 0; i < node->output_count; i++)
            is_wanted = is_wanted || (node->outputs[i] && is_read[node->outputs[i]->index]);
        for (size_t i = 0; is_wanted && i < node->input_count; i++)
            if (node->inputs[i])
                is_read[node->inputs[i]->index] = true;
    }
    const bool is_made = from != to && is_read[to->index];
    free(is_read);
    return is_made;
}

/* False if another output is better. An output is better than those from which it is computed, as
 * scores from a vector, or probabilities from logits. But an output of only the best class (one
 * number, or a TopK) is worse than the scores from which it is computed. */
static bool is_last(const struct heads *heads, size_t i)
{
    const struct value *own = head_value(heads, i);
    for (size_t k = 0; k < heads->count; k++) {
        const struct value *other = head_value(heads, k);
        const bool other_is_best =
            head_classes(heads, k) == 1 || (other->producer && other->producer->op == OP_TOP_K);
        const bool is_best =
            head_classes(heads, i) == 1 || (own->producer && own->producer->op == OP_TOP_K);
        if ((!other_is_best && is_computed_from(heads->model->graph, other, own)) ||
            (is_best && is_computed_from(heads->model->graph, own, other)))
            return false;
    }
    return true;
}

static bool is_named_scores(const struct heads *heads, size_t i)
{
    static const char *const names[] = {"logits", "probs",        "probabilities", "prob",
                                        "scores", "class_scores", "class_probs"};
    for (size_t n = 0; n < COUNT_OF(names); n++)
        if (!strcasecmp(head_value(heads, i)->name, names[n]))
            return true;
    return false;
}

static bool is_softmax(const struct heads *heads, size_t i)
{
    return output_is_probabilities(head_value(heads, i));
}

static bool has_labels(const struct heads *heads, size_t i)
{
    return head_classes(heads, i) == heads->model->labels.count;
}

/* Keeps the outputs for which `is_wanted` is true, or all if it is true for none. */
static void heads_prefer(struct heads *heads, bool (*is_wanted)(const struct heads *, size_t))
{
    struct heads left = *heads;
    left.count = 0;
    for (size_t i = 0; i < heads->count; i++)
        if (is_wanted(heads, i))
            left.outputs[left.count++] = heads->outputs[i];
    if (left.count)
        *heads = left;
}

/* Writes the names of all outputs except `except`: "'age', 'gender'". */
static void heads_names(const struct heads *heads, size_t except, char *text, size_t size)
{
    text[0] = '\0';
    for (size_t i = 0; i < heads->count; i++)
        if (heads->outputs[i] != except)
            text_append(text, size, ", ", "'%.24s'", head_value(heads, i)->name);
}

void class_output_find(struct model *model, const struct graph *graph, struct task_facts *facts)
{
    const char *wanted = facts->configured_output;
    char *note = facts->class_note;
    const size_t note_size = sizeof facts->class_note;
    static bool (*const rules[])(const struct heads *, size_t) = {
        is_no_position, is_no_vector, is_last, is_named_scores, is_softmax, has_labels};
    struct heads heads = {.model = model, .graph = graph};
    size_t found = 0;
    char names[120];
    for (size_t i = 0; i < graph->output_count; i++) {
        if (!classes_of(model, graph->outputs[i]) ||
            (wanted && strcmp(model->graph->outputs[i]->name, wanted) != 0))
            continue;
        if (heads.count < COUNT_OF(heads.outputs))
            heads.outputs[heads.count++] = i;
        found++;
    }
    const struct heads all = heads;
    for (size_t r = 0; !wanted && found == heads.count && r < COUNT_OF(rules); r++) {
        const size_t before = heads.count;
        heads_prefer(&heads, rules[r]);
        found -= before - heads.count;
    }
    note[0] = '\0';
    if (found == 1 && !wanted && !is_no_position(&heads, 0)) {
        snprintf(note, note_size, "the name of output '%.60s' is unusual for class scores",
                 head_value(&heads, 0)->name);
    } else if (found == 1) {
        heads_names(&all, heads.outputs[0], names, sizeof names);
        if (names[0])
            snprintf(note, note_size, "; the answer leaves out %.100s", names);
        model->class_count = head_classes(&heads, 0);
        model->output = heads.outputs[0];
    } else if (found) {
        heads_names(&heads, SIZE_MAX, names, sizeof names);
        snprintf(note, note_size,
                 "%zu outputs may be scores (%.100s): write {\"output\": \"%.24s\"} into "
                 "lensd.json to answer with one",
                 found, names, head_value(&heads, 0)->name);
    }
}
