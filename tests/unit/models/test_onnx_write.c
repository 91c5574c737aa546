/* models/onnx/onnx_write.c: what is written is read back as the same graph. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models/onnx/onnx_write.h"
#include "tests/unit/models/onnx_make.h"

static char folder[64], path[96];

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/lensd-write-XXXXXX");
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/model.onnx", folder);
}

static void remove_folder(void)
{
    unlink(path);
    rmdir(folder);
}

static bool is_there(const char *name)
{
    struct stat info;
    return stat(name, &info) == 0;
}

static struct graph_hash hash_of(const struct graph *graph)
{
    struct graph_hash hash = {{0, 0}};
    graph_hash(&hash, graph);
    return hash;
}

/* Reads the model, writes it, reads it again. */
static void check_round(struct make *make, const struct onnx_write_options *options)
{
    size_t size;
    uint8_t *bytes = make_pack(make, &size);
    struct onnx_model model, again;
    struct error err = {0};
    cr_assert_eq(onnx_load_memory(bytes, size, 0, &model, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(onnx_write_file(model.graph, options, path, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(onnx_load_file(path, 0, &again, &err), STATUS_OK, "%s", err.message);
    const struct graph_hash a = hash_of(model.graph), b = hash_of(again.graph);
    cr_expect(a.words[0] == b.words[0] && a.words[1] == b.words[1]);
    cr_expect_eq(again.graph->opset, model.graph->opset);
    for (size_t i = 0; i < model.graph->input_count; i++) {
        cr_expect_str_eq(again.graph->inputs[i]->name, model.graph->inputs[i]->name);
        cr_expect_eq(again.graph->inputs[i]->dtype, model.graph->inputs[i]->dtype);
    }
    for (size_t i = 0; i < model.graph->output_count; i++)
        cr_expect_str_eq(again.graph->outputs[i]->name, model.graph->outputs[i]->name);
    onnx_model_done(&again);
    onnx_model_done(&model);
    free(bytes);
}

/* Bodies that read different values of the enclosing graph compute different things. */
Test(graph_hash, tells_captured_values_apart)
{
    struct graph_hash hashes[2];
    for (size_t i = 0; i < 2; i++) {
        struct graph *graph = graph_create(NULL), *body = graph_create(NULL);
        struct value *values[] = {graph_add_value(graph, "a", DTYPE_F32, &SHAPE(1)),
                                  graph_add_value(graph, "b", DTYPE_F32, &SHAPE(1))};
        struct value *inner = graph_add_value(body, "a", DTYPE_F32, &SHAPE(1));
        const struct attr attr = {.name = "then_branch", .kind = ATTR_GRAPH, .g = body};
        struct node *node = graph_add_node(graph, OP_IF, "if", 0, 0);
        inner->outer = values[i];
        node->attrs = &attr;
        node->attr_count = 1;
        hashes[i] = hash_of(graph);
        graph_free(graph);
    }
    cr_expect(memcmp(&hashes[0], &hashes[1], sizeof *hashes) != 0);
}

static struct make weighted_model(void)
{
    static float weights[3 * 512];
    struct make make = relu_model();
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        weights[i] = (float)i;
    make_attr_int(&make, make_add_node(&make, "Flatten", "x", "z"), "axis", 1);
    make_initializer(&make,
                     make_tensor(&make, "w", 1, weights, sizeof weights, 2, (int64_t[]){3, 512}));
    make_add_node(&make, "Identity", "w", "v");
    MAKE_OUTPUT(&make, "v", 1, 2, 3, 512);
    return make;
}

Test(onnx_write, reads_back_what_it_writes, .init = make_folder, .fini = remove_folder)
{
    const struct onnx_write_options options = {.producer = "test"};
    struct make make = weighted_model();
    check_round(&make, &options);
    make_done(&make);
}

Test(onnx_write, replaces_nothing_and_leaves_nothing_half_written, .init = make_folder,
     .fini = remove_folder)
{
    const struct onnx_write_options options = {.producer = "test"};
    struct make make = weighted_model();
    size_t size;
    uint8_t *bytes = make_pack(&make, &size);
    struct onnx_model model;
    struct error err = {0};
    cr_assert_eq(onnx_load_memory(bytes, size, 0, &model, &err), STATUS_OK);
    fclose(fopen(path, "w"));
    cr_expect_eq(onnx_write_file(model.graph, &options, path, &err), STATUS_IO);
    cr_expect(strstr(err.message, "File exists"), "%s", err.message);
    cr_expect(is_there(path));
    cr_expect_eq(onnx_write_file(model.graph, &options, "/dev/null/model.onnx", &err), STATUS_IO);
    onnx_model_done(&model);
    free(bytes);
    make_done(&make);
}
