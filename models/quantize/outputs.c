/* Selects the outputs to compare: the class scores of a classifier, else all outputs. */
#include "models/quantize/outputs.h"

#include "engine/base/clock.h"
#include "engine/base/size.h"

static bool is_vector(const struct session_tensor *output)
{
    int wide = 0;
    for (int d = 0; d < output->shape.rank; d++)
        wide += output->shape.dims[d] != 1;
    return output->shape.rank != SHAPE_UNKNOWN && wide <= 1 && dtype_is_float(output->dtype);
}

enum status outputs_init(struct outputs *outputs, const struct model *model,
                         const struct session *session, struct error *err)
{
    const struct session_tensor *answer = &session_info(session)->outputs[model->output];
    *outputs = (struct outputs){.count = session_info(session)->output_count};
    outputs->is_vector = is_vector(answer) && (model->labels.count > 0 || model->has_probabilities);
    outputs->first = outputs->is_vector ? model->output : 0;
    outputs->end = outputs->is_vector ? model->output + 1 : outputs->count;
    outputs->tensors = alloc_array(outputs->count, sizeof(struct tensor *));
    outputs->layouts = alloc_array(outputs->count, sizeof *outputs->layouts);
    return check_memory(outputs->tensors && outputs->layouts, "for probe images", err);
}

void outputs_done(struct outputs *outputs)
{
    FREE_ALL(outputs->tensors, outputs->layouts);
    *outputs = (struct outputs){0};
}

enum status outputs_run(struct outputs *outputs, struct session *session, const void *values,
                        int images, struct run_time *ret, struct error *err)
{
    const void *const inputs[] = {values};
    const double before = session_cpu_ms(session);
    const int64_t start = clock_now();
    TRY(session_run(session, images, inputs, outputs->tensors, err));
    ret->ms = clock_ms(clock_now() - start);
    const double cpu = session_cpu_ms(session) - before;
    ret->cost = cpu > 0 ? cpu : ret->ms;
    outputs->each = 0;
    for (size_t o = outputs->first; o < outputs->end; o++) {
        outputs->layouts[o] = outputs_layout(outputs->tensors[o], images);
        outputs->each += outputs->layouts[o].count;
    }
    return STATUS_OK;
}

struct agreement_tensor outputs_layout(const struct tensor *tensor, int images)
{
    const struct shape *shape = &tensor->shape;
    struct agreement_tensor layout = {.count = shape_count(shape) / (size_t)images,
                                      .channels = 1,
                                      .stride = 1,
                                      .is_labels = !dtype_is_float(tensor->dtype)};
    int axis = 1;
    if (layout.count == 0 || layout.is_labels || shape->rank < 3 || shape->rank > 4)
        return layout;
    const int last = shape->rank - 1;
    if (shape->dims[last] < shape->dims[1] && (last == 2 || shape->dims[last] < shape->dims[2]))
        axis = last;
    layout.channels = (size_t)shape->dims[axis];
    for (int d = axis + 1; d < shape->rank; d++)
        layout.stride *= (size_t)shape->dims[d];
    layout.is_map = shape->rank == 4 && layout.channels > 1 && layout.count > layout.channels;
    return layout;
}

void outputs_read(const struct outputs *outputs, int images, float *dst)
{
    size_t used = 0;
    for (size_t o = outputs->first; o < outputs->end; o++) {
        const struct tensor *tensor = outputs->tensors[o];
        const size_t part = outputs->layouts[o].count;
        for (size_t i = 0; i < (size_t)images; i++)
            for (size_t e = 0; e < part; e++)
                dst[i * outputs->each + used + e] = (float)tensor_number(tensor, i * part + e);
        used += part;
    }
}

void outputs_compare(const struct outputs *outputs, const float *reference, const float *candidate,
                     bool is_probabilities, struct agreement *ret)
{
    const size_t first = outputs->first;
    if (outputs->is_vector && outputs->layouts[first].count > 0)
        agreement_add_vector(ret, reference, candidate, outputs->layouts[first].count,
                             is_probabilities);
    else
        agreement_add_tensors(ret, outputs->layouts + first, outputs->end - first, reference,
                              candidate);
}
