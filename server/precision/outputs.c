/* What is compared of a session's outputs: the class scores of a model are one output; of any other
 * network all floats are. */
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/precision/internal.h"

static bool scores_shape(const struct session_tensor *output)
{
    int wide = 0;
    for (int d = 0; d < output->shape.rank; d++)
        wide += output->shape.dims[d] != 1;
    return output->shape.rank != SHAPE_UNKNOWN && wide <= 1 && dtype_is_float(output->dtype);
}

enum status outputs_init(struct outputs *outputs, const struct model *model,
                         const struct session *session, struct error *err)
{
    *outputs = (struct outputs){.count = session_output_count(session)};
    outputs->is_classifier = scores_shape(session_output(session, model->output));
    outputs->first = outputs->is_classifier ? model->output : 0;
    outputs->end = outputs->is_classifier ? model->output + 1 : outputs->count;
    outputs->tensors = alloc_array(outputs->count, sizeof(struct tensor *));
    return outputs->tensors ? STATUS_OK
                            : error_set(err, STATUS_NO_MEMORY, "out of memory for probe images");
}

void outputs_done(struct outputs *outputs)
{
    free(outputs->tensors);
    outputs->tensors = NULL;
}

enum status outputs_run(struct outputs *outputs, struct session *session, const float *values,
                        int images, struct run_time *ret, struct error *err)
{
    const void *const inputs[] = {values};
    const double before = session_cpu_ms(session);
    const int64_t start = clock_now();
    TRY(session_run(session, images, inputs, outputs->tensors, err));
    ret->ms = clock_ms(clock_now() - start);
    ret->cpu_ms = session_cpu_ms(session) - before;
    return STATUS_OK;
}

size_t outputs_each(const struct outputs *outputs, int images)
{
    size_t total = 0;
    for (size_t o = outputs->first; o < outputs->end; o++)
        if (dtype_is_float(outputs->tensors[o]->dtype))
            total += shape_count(&outputs->tensors[o]->shape);
    return total / (size_t)images;
}

void outputs_read(const struct outputs *outputs, int images, float *dst)
{
    const size_t each = outputs_each(outputs, images);
    size_t used = 0;
    for (size_t o = outputs->first; o < outputs->end; o++) {
        const struct tensor *tensor = outputs->tensors[o];
        if (!dtype_is_float(tensor->dtype))
            continue;
        const size_t part = shape_count(&tensor->shape) / (size_t)images;
        for (size_t i = 0; i < (size_t)images; i++)
            for (size_t e = 0; e < part; e++)
                dst[i * each + used + e] = (float)tensor_number(tensor, i * part + e);
        used += part;
    }
}
