/* Makes a session independent of the files from which its weights were mapped.
 *
 * Compiling packs most constants into other layouts; their mapped pages are released. Constants
 * that programs read in place are copied to process memory. If a file has changed meanwhile, packed
 * weights may be a mix of two files, or zeros, and the session is refused. */
#include "engine/runtime/session_internal.h"
#include "engine/tensor/tensor_file.h"

static enum status settle(const struct tensor *tensor, struct error *err)
{
    struct mapping *mapping = tensor ? tensor_mapping(tensor) : NULL;
    if (!mapping)
        return STATUS_OK;
    const struct tensor *owner = tensor->base ? tensor->base : tensor;
    bool kept = atomic_load(&owner->refs) > 1; /* a program holds it, too */
    enum status status = STATUS_OK;
    if (kept)
        status = mapping_settle(mapping, err);
    else if (!mapping_is_whole(mapping))
        status = error_set(err, STATUS_IO, MAPPING_CHANGED);
    else
        mapping_let_go(mapping);
    return status;
}

/* Recurses into subgraphs, whose depth the importer bounds. */
enum status session_settle_weights(const struct graph *graph, struct error *err)
{
    for (size_t v = 0; v < graph->value_count; v++)
        if (settle(graph->values[v]->known, err) != STATUS_OK)
            return error_prefix(err, "the weights '%s'", graph->values[v]->name);
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        for (size_t a = 0; a < node->attr_count; a++) {
            if (node->attrs[a].kind == ATTR_TENSOR && settle(node->attrs[a].t, err) != STATUS_OK)
                return error_prefix(err, "attribute '%s' of '%s'", node->attrs[a].name, node->name);
            if (node->attrs[a].kind == ATTR_GRAPH)
                TRY(session_settle_weights(node->attrs[a].g, err));
        }
    }
    return STATUS_OK;
}
