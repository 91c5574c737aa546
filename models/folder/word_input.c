/* Finds inputs for words: vectors of YOLO-World and YOLOE, tokens of Grounding DINO. */
#include "models/folder/model_internal.h"

/* True for an input [batch, words, numbers] of float32. */
static bool is_vectors(const struct value *input)
{
    return input->dtype == DTYPE_F32 && input->shape.rank == 3 && input->shape.dims[2] > 0;
}

bool word_input_is(const struct model *model, const struct value *input)
{
    return model->words.form == WORDS_VECTORS  ? is_vectors(input)
           : model->words.form == WORDS_TOKENS ? text_input_kind_of(input) != TEXT_NONE
                                               : false;
}

void word_input_find(struct model *model, bool is_half)
{
    struct graph *graph = model->graph;
    struct value *vectors = NULL;
    bool has_ids = false, has_photo = false;
    if (model->words.form != WORDS_NONE)
        return;
    for (size_t i = 0; i < graph->input_count; i++) {
        struct value *input = graph->inputs[i];
        has_ids = has_ids || text_input_kind_of(input) == TEXT_IDS;
        has_photo = has_photo || input->shape.rank == 4;
        vectors = is_vectors(input) ? input : vectors;
    }
    if (has_photo && has_ids && value_named(graph->outputs, graph->output_count, "logits") &&
        value_named(graph->outputs, graph->output_count, "pred_boxes"))
        model->words.form = WORDS_TOKENS;
    if (!is_half || !has_photo || !vectors || graph->input_count != 2)
        return;
    if (vectors->shape.dims[1] == DIM_UNKNOWN)
        vectors->shape.dims[1] = MODEL_WORDS;
    model->words.form = WORDS_VECTORS;
}

void word_input_place(struct model *model)
{
    struct graph *graph = model->graph;
    struct word_input *words = &model->words;
    text_input_place(graph, &model->text);
    if (model->task.kind != TASK_DETECTION)
        words->form = WORDS_NONE;
    for (size_t i = 0; i < graph->input_count; i++)
        if (i != model->image_input && !word_input_is(model, graph->inputs[i]))
            words->form = WORDS_NONE; /* lensd cannot fill all inputs */
    bool has_place = false;
    for (size_t i = 0; i < graph->input_count && words->form == WORDS_VECTORS; i++) {
        const struct value *input = graph->inputs[i];
        if (!is_vectors(input))
            continue;
        if (has_place)
            words->form = WORDS_NONE; /* a request's words fill only one input */
        has_place = true;
        words->input = i;
        words->count = (size_t)input->shape.dims[1];
        words->size = (size_t)input->shape.dims[2];
    }
}
