/* Hashes graphs with two multiplications per 8-byte word, which keeps pace with the memory. 128
 * bits avoid accidental collisions. */
#include <string.h>

#include "engine/graph/graph.h"
#include "engine/tensor/tensor_file.h"

static uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static void mix_word(struct graph_hash *hash, uint64_t word)
{
    hash->words[0] = fold(hash->words[0] ^ word, 0x9e3779b97f4a7c15u);
    hash->words[1] = (hash->words[1] ^ word) * 0xd6e8feb86659fd93u;
    hash->words[1] ^= hash->words[1] >> 32;
}

void graph_hash_bytes(struct graph_hash *hash, const void *data, size_t size)
{
    const unsigned char *p = data;
    uint64_t word = 0;
    mix_word(hash, size);
    for (; size >= sizeof word; size -= sizeof word, p += sizeof word) {
        memcpy(&word, p, sizeof word);
        mix_word(hash, word);
    }
    word = 0;
    if (size)
        memcpy(&word, p, size);
    mix_word(hash, word);
}

static void hash_text(struct graph_hash *hash, const char *text)
{
    graph_hash_bytes(hash, text ? text : "", text ? strlen(text) : 0);
}

static void hash_tensor(struct graph_hash *hash, const struct tensor *tensor)
{
    mix_word(hash, (uint64_t)tensor->dtype);
    mix_word(hash, (uint64_t)tensor->shape.rank);
    for (int i = 0; i < tensor->shape.rank; i++)
        mix_word(hash, (uint64_t)tensor->shape.dims[i]);
    graph_hash_bytes(hash, tensor->data, tensor->bytes);
    struct mapping *mapping = tensor_mapping(tensor);
    if (mapping) /* drops the pages that hashing has read from the file */
        mapping_let_go(mapping);
}

static void hash_attr(struct graph_hash *hash, const struct attr *attr)
{
    hash_text(hash, attr->name);
    mix_word(hash, (uint64_t)attr->kind);
    switch (attr->kind) {
    case ATTR_INT:
        mix_word(hash, (uint64_t)attr->i);
        break;
    case ATTR_FLOAT:
        graph_hash_bytes(hash, &attr->f, sizeof attr->f);
        break;
    case ATTR_STRING:
        graph_hash_bytes(hash, attr->s, attr->count);
        break;
    case ATTR_TENSOR:
        hash_tensor(hash, attr->t);
        break;
    case ATTR_GRAPH: /* the importer bounds the depth of nested bodies */
        graph_hash(hash, attr->g);
        break;
    case ATTR_INTS:
        graph_hash_bytes(hash, attr->ints, attr->count * sizeof *attr->ints);
        break;
    case ATTR_FLOATS:
        graph_hash_bytes(hash, attr->floats, attr->count * sizeof *attr->floats);
        break;
    case ATTR_STRINGS:
        for (size_t i = 0; i < attr->count; i++)
            hash_text(hash, attr->strings[i]);
        break;
    }
}

static void hash_values(struct graph_hash *hash, struct value *const *values, size_t count)
{
    mix_word(hash, count);
    for (size_t i = 0; i < count; i++)
        mix_word(hash, values[i] ? values[i]->index : UINT64_MAX);
}

void graph_hash(struct graph_hash *hash, const struct graph *graph)
{
    mix_word(hash, (uint64_t)graph->opset);
    for (size_t v = 0; v < graph->value_count; v++)
        if (graph->values[v]->known) {
            mix_word(hash, v);
            hash_tensor(hash, graph->values[v]->known);
        } else if (graph->values[v]->outer) {
            mix_word(hash, v);
            mix_word(hash, graph->values[v]->outer->index);
        }
    for (size_t i = 0; i < graph->input_count; i++) {
        const struct shape *shape = &graph->inputs[i]->shape;
        mix_word(hash, (uint64_t)graph->inputs[i]->dtype);
        for (int d = 0; d < shape->rank; d++)
            mix_word(hash, (uint64_t)shape->dims[d]);
    }
    hash_values(hash, graph->inputs, graph->input_count);
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        hash_text(hash, op_name(node->op));
        mix_word(hash, (uint64_t)node->opset);
        hash_values(hash, node->inputs, node->input_count);
        hash_values(hash, node->outputs, node->output_count);
        for (size_t a = 0; a < node->attr_count; a++)
            hash_attr(hash, &node->attrs[a]);
    }
    hash_values(hash, graph->outputs, graph->output_count);
}
