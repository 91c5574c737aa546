/* The memory limit of a session. The weights' size is checked before the weights are packed. The
 * sum of weights, planned arena and the caller's inputs is checked for each batch size before the
 * arena is allocated. A model that does not fit is refused, or compiled only for smaller
 * batches. */
#include <stdio.h>

#include "engine/base/cpu.h"
#include "engine/base/size.h"
#include "engine/base/text.h"
#include "engine/runtime/session_internal.h"
#include "engine/tensor/tensor_file.h"

/* Returns the bytes of the caller's memory for inputs. */
static size_t input_bytes(const struct session *session, const struct compiled_size *c)
{
    const struct session_options *options = &session->options;
    size_t batch = 0;
    for (size_t i = 0; i < session->info.input_count; i++) {
        const struct value *value = c->graph->inputs[i];
        batch = size_sum(batch, size_product(shape_count(&value->shape), dtype_size(value->dtype)));
    }
    /* Each run in streams that is in flight has its own inputs. */
    const int streams =
        session->ops->stream_count ? session->ops->stream_count(session->backend) : 0;
    const size_t batches = options->input_batches + (size_t)streams;
    return size_sum(size_product(batch, options->input_batches ? batches : 0),
                    size_product(batch / (size_t)c->size, options->input_images));
}

static size_t wanted_bytes(const struct session *session, const struct compiled_size *c)
{
    return size_sum(size_sum(session->ops->weight_bytes(session->backend),
                             session->ops->activation_bytes(c->program)),
                    input_bytes(session, c));
}

/* Returns the bytes of the graph's constants in process memory. During a load, the caller's graph
 * holds these constants. */
static size_t held_bytes(const struct graph *graph)
{
    size_t bytes = 0;
    for (size_t v = 0; v < graph->value_count; v++) {
        const struct tensor *constant = graph->values[v]->known;
        if (constant && !tensor_mapping(constant))
            bytes = size_sum(bytes, constant->bytes);
    }
    return bytes;
}

void session_begin_memory(struct session *session)
{
    uint64_t total, available;
    const size_t limit = session->options.memory_limit, held = held_bytes(session->base);
    cpu_memory(&total, &available);
    /* The limit includes the constants in process memory, but the free memory does not. */
    available = size_sum(available ? (size_t)available : 1, held);
    session->memory.limit = limit && limit < available ? limit : (size_t)available;
    session->memory.used = held;
    session->memory.is_temporary = true;
    session->base->budget = &session->memory;
}

/* Returns the bytes of the constants that nodes read, each counted once. With `packed`, omits
 * tables of Gather, which are read in place. */
static enum status constant_bytes(const struct graph *graph, bool packed, size_t *ret,
                                  struct error *err)
{
    bool *seen = arena_alloc(graph->arena, graph->value_count, sizeof *seen);
    TRY(check_memory(seen, "while creating a session", err));
    size_t bytes = 0;
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        for (size_t i = packed && node->op == OP_GATHER ? 1 : 0; i < node->input_count; i++) {
            const struct value *value = node->inputs[i];
            if (!value || !value->known || seen[value->index])
                continue;
            seen[value->index] = true;
            bytes = size_sum(bytes, value->known->bytes);
        }
    }
    *ret = bytes;
    return STATUS_OK;
}

enum status session_check_weights(const struct session *session, struct error *err)
{
    const struct session_options *options = &session->options;
    /* For a lower precision packed weights may be a quarter as large. */
    const size_t share = options->precision <= PRECISION_TF32 ? 1 : 4;
    size_t limit = options->memory_limit, bytes = 0, packed = 0;
    TRY(constant_bytes(session->base, false, &bytes, err));
    TRY(constant_bytes(session->base, true, &packed, err));
    bytes /= share;
    /* On a CPU the load needs most memory while weights are packed: folded constants then exist
     * twice. Mapped constants do not count: their pages can be read again. */
    packed = size_sum(packed / share, atomic_load(&session->memory.used));
    if (options->device.kind == DEVICE_CPU && (!limit || bytes <= limit)) {
        bytes = packed;
        limit = session->memory.limit;
    }
    if (!limit || bytes <= limit)
        return STATUS_OK;
    return error_set(err, STATUS_NO_MEMORY,
                     "packing the model's weights takes %s, but %s are left for it on %s: %s are "
                     "missing; raise --memory, give the process more memory, or serve fewer models "
                     "there",
                     BYTES_STRING(bytes), BYTES_STRING(limit), DEVICE_STRING(options->device),
                     BYTES_STRING(bytes - limit));
}

enum status session_check_memory(struct session *session, struct error *err)
{
    const struct session_options *options = &session->options;
    size_t limit = options->memory_limit, last = session->compiled_count - 1;
    if (last > 0 && options->batch_memory && !options->max_batch_is_pinned)
        limit = options->batch_memory;
    const struct compiled_size *c = &session->compiled[last];
    size_t bytes = wanted_bytes(session, c);
    const char *otherwise = "raise --memory";
    if (session->ops->available_bytes) { /* other programs may also use the device */
        size_t there = size_sum(session->ops->weight_bytes(session->backend),
                                session->ops->available_bytes(session->backend));
        if (!limit || there < limit) {
            limit = there;
            otherwise = "free memory on the device";
        }
    }
    if (!limit || bytes <= limit)
        return STATUS_OK;
    char advice[96];
    if (last > 0)
        snprintf(advice, sizeof advice, "batches of %d would fit (--max-batch %d), or %s",
                 session->compiled[last - 1].size, session->compiled[last - 1].size, otherwise);
    else
        snprintf(advice, sizeof advice, "%s, or serve fewer models there", otherwise);
    return error_set(err, STATUS_NO_MEMORY,
                     "a batch of %d takes %s (weights, activations and inputs), but %s are left "
                     "for the model on %s: %s are missing; %s",
                     c->size, BYTES_STRING(bytes), BYTES_STRING(limit),
                     DEVICE_STRING(session->options.device), BYTES_STRING(bytes - limit), advice);
}
