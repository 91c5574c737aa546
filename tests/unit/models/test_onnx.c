/* models/onnx*.c: what is read, how it becomes a graph, what is refused and in which words. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "engine/base/size.h"
#include "engine/op/interpret.h"
#include "tests/unit/models/onnx_make.h"

enum { F32 = 1, U8 = 2, I8 = 3, U16 = 4, I16 = 5, I32 = 6, I64 = 7, BOOL = 9, F16 = 10, F64 = 11 };

static struct onnx_model load_ok(const struct make *make)
{
    struct onnx_model model = {0};
    struct error err = {0};
    cr_assert_eq(load(make, &model, &err), STATUS_OK, "%s", err.message);
    return model;
}

static void expect_refusal(const char *name, const struct make *make, enum status status,
                           const char *words)
{
    struct onnx_model model = {0};
    struct error err = {0};
    cr_expect_eq(load(make, &model, &err), status, "%s: %s", name, err.message);
    cr_expect(strstr(err.message, words), "%s: '%s' does not say '%s'", name, err.message, words);
    onnx_model_done(&model);
}

static struct value *value_named(const struct graph *graph, const char *name)
{
    for (size_t i = 0; i < graph->value_count; i++)
        if (!strcmp(graph->values[i]->name, name))
            return graph->values[i];
    return NULL;
}

/* ---- graphs ---- */

Test(onnx, reads_a_graph)
{
    struct make make = relu_model();
    make.model->producer_name = make_text(&make, "pytorch");
    make.model->producer_version = make_text(&make, "2.1.0");
    Onnx__StringStringEntryProto *entry =
        MAKE_NEW(&make, Onnx__StringStringEntryProto, onnx__string_string_entry_proto__init);
    entry->key = make_text(&make, "imgsz");
    entry->value = make_text(&make, "[640, 640]");
    MAKE_APPEND(&make, make.model->metadata_props, make.model->n_metadata_props, entry);
    struct onnx_model model = load_ok(&make);
    const struct graph *graph = model.graph;
    cr_expect_eq(graph->opset, 13);
    cr_expect_eq(graph->ir_version, 8);
    cr_expect_str_eq(graph->producer, "pytorch 2.1.0");
    cr_assert_eq(graph->input_count, 1);
    cr_expect_str_eq(graph->inputs[0]->name, "x");
    cr_expect_eq(graph->inputs[0]->dtype, DTYPE_F32);
    cr_expect_eq(graph->inputs[0]->shape.rank, 2);
    cr_expect_eq(graph->inputs[0]->shape.dims[0], DIM_UNKNOWN);
    cr_expect_str_eq(graph->inputs[0]->dim_names[0], "d0");
    cr_expect_eq(graph->inputs[0]->shape.dims[1], 3);
    cr_assert_eq(graph->node_count, 1);
    cr_expect_eq(graph->nodes[0]->op, OP_RELU);
    cr_expect_str_eq(graph->nodes[0]->name, "Relu_0");
    cr_expect_eq(graph->outputs[0], graph->nodes[0]->outputs[0]);
    cr_expect_eq(graph->outputs[0]->shape.dims[1], 3);
    cr_assert_eq(model.metadata_count, 1);
    cr_expect_str_eq(model.metadata[0].value, "[640, 640]");
    onnx_model_done(&model);
    make_done(&make);
}

Test(onnx, sorts_nodes_and_keeps_initialisers_out_of_inputs)
{
    struct make make = make_model();
    const float ones[] = {1, 1, 1};
    const int64_t dims[] = {3};
    make_initializer(&make, make_tensor(&make, "w", F32, ones, sizeof ones, 1, dims));
    MAKE_INPUT(&make, "w", F32, 1, 3); /* IR version 3 lists it among the inputs */
    MAKE_INPUT(&make, "x", F32, 1, 3);
    make_add_node(&make, "Relu", "a", "y");
    make_add_node(&make, "Add", "x,w", "a");
    MAKE_OUTPUT(&make, "y", F32, 1, 3);
    struct onnx_model model = load_ok(&make);
    cr_assert_eq(model.graph->input_count, 1);
    cr_expect_str_eq(model.graph->inputs[0]->name, "x");
    cr_expect_eq(model.graph->nodes[0]->op, OP_ADD);
    cr_expect_eq(model.graph->nodes[1]->op, OP_RELU);
    const struct value *w = value_named(model.graph, "w");
    cr_assert(w && w->known);
    cr_expect_eq(((const float *)w->known->data)[2], 1);
    onnx_model_done(&model);
    make_done(&make);
}

Test(onnx, leaves_out_optional_operands)
{
    struct make make = make_model();
    const float high = 6;
    make_initializer(&make, make_tensor(&make, "high", F32, &high, sizeof high, 0, NULL));
    MAKE_INPUT(&make, "x", F32, 1, 3);
    make_add_node(&make, "Clip", "x,,high", "y");
    make_add_node(&make, "Clip", "y,,", "z");
    MAKE_OUTPUT(&make, "z", F32, 1, 3);
    struct onnx_model model = load_ok(&make);
    cr_expect_eq(model.graph->nodes[0]->input_count, 3);
    cr_expect_null(model.graph->nodes[0]->inputs[1]);
    cr_expect_eq(model.graph->nodes[1]->input_count, 1, "empty names at the end are dropped");
    onnx_model_done(&model);
    make_done(&make);
}

/* How many results a Split has says into how many parts it splits, read or not. */
Test(onnx, splits_into_parts_that_nobody_reads)
{
    const int64_t extents[3] = {1, 2, 5};
    for (int given = 0; given < 2; given++) {
        struct make make = make_model();
        make.model->opset_import[0]->version = 18;
        make_initializer(
            &make, make_tensor(&make, "extents", I64, extents, sizeof extents, 1, (int64_t[]){3}));
        MAKE_INPUT(&make, "x", F32, 1, 8);
        Onnx__NodeProto *node = make_add_node(&make, "Split", given ? "x,extents" : "x", ",a,");
        if (!given)
            make_attr_int(&make, node, "num_outputs", 3);
        make_add_node(&make, "Relu", "a", "y");
        MAKE_OUTPUT(&make, "y", F32, 1, given ? 2 : 3);
        struct onnx_model model = load_ok(&make);
        const struct node *split = model.graph->nodes[0];
        cr_assert_eq(split->output_count, 3);
        cr_expect(!split->outputs[0] && split->outputs[1] && !split->outputs[2]);
        struct tensor *x, *y;
        struct error err = {0};
        cr_assert_eq(tensor_create(NULL, DTYPE_F32, &SHAPE(8), &x, &err), STATUS_OK);
        for (int i = 0; i < 8; i++)
            ((float *)x->data)[i] = (float)i;
        cr_assert_eq(interpret(model.graph, &x, &y, NULL, NULL, &err), STATUS_OK, "%s",
                     err.message);
        const float *got = y->data;
        cr_assert_eq(shape_count(&y->shape), given ? 2u : 3u);
        for (size_t i = 0; i < shape_count(&y->shape); i++)
            cr_expect_eq((int)got[i], (int)i + (given ? 1 : 3));
        tensor_unref(y);
        tensor_unref(x);
        onnx_model_done(&model);
        make_done(&make);
    }
}

/* ---- tensors ---- */

/* A Constant node whose tensor a case fills, read back as a tensor. */
static enum status constant(struct make *make, Onnx__TensorProto *tensor, struct onnx_model *ret,
                            struct error *err)
{
    Onnx__NodeProto *node = make_add_node(make, "Constant", "", "c");
    make_attr(make, node, "value", 4)->t = tensor;
    MAKE_OUTPUT(make, "c", tensor->data_type, -1);
    return load(make, ret, err);
}

Test(onnx, reads_every_storage)
{
    float floats[] = {1.5f, -2};
    double doubles[] = {1.5, -2};
    int32_t ints[] = {1, 0};
    int64_t longs[] = {INT64_MIN, 7};
    uint64_t unsigneds[] = {UINT32_MAX, 7};
    const struct {
        const char *name;
        int dtype;
        double first, second;
        void (*fill)(Onnx__TensorProto *);
    } cases[] = {
        {"float_data", F32, 1.5, -2, NULL},
        {"double_data", F64, 1.5, -2, NULL},
        {"int64_data", I64, -9223372036854775808.0, 7, NULL},
        {"int32_data", I32, 1, 0, NULL},
        {"u8 in int32_data", U8, 1, 0, NULL},
        {"i8 in int32_data", I8, 1, 0, NULL},
        {"bool in int32_data", BOOL, 1, 0, NULL},
        {"u16 in int32_data", U16, 1, 0, NULL},
        {"i16 in int32_data", I16, 1, 0, NULL},
        {"u32 in uint64_data", 12, 4294967295.0, 7, NULL},
        {"u64 in uint64_data", 13, 4294967295.0, 7, NULL},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct make make = make_model();
        const int64_t dims[] = {2};
        Onnx__TensorProto *tensor = make_tensor(&make, "", cases[i].dtype, NULL, 0, 1, dims);
        switch (cases[i].dtype) {
        case F32:
            tensor->float_data = floats;
            tensor->n_float_data = 2;
            break;
        case F64:
            tensor->double_data = doubles;
            tensor->n_double_data = 2;
            break;
        case I64:
            tensor->int64_data = longs;
            tensor->n_int64_data = 2;
            break;
        case 12:
        case 13:
            tensor->uint64_data = unsigneds;
            tensor->n_uint64_data = 2;
            break;
        default:
            tensor->int32_data = ints;
            tensor->n_int32_data = 2;
        }
        struct onnx_model model = {0};
        struct error err = {0};
        cr_assert_eq(constant(&make, tensor, &model, &err), STATUS_OK, "%s: %s", cases[i].name,
                     err.message);
        const struct tensor *known = model.graph->outputs[0]->known;
        cr_assert(known, "%s", cases[i].name);
        cr_expect_eq((int)known->dtype, cases[i].dtype, "%s", cases[i].name);
        cr_expect_eq(tensor_number(known, 0), cases[i].first, "%s", cases[i].name);
        cr_expect_eq(tensor_number(known, 1), cases[i].second, "%s", cases[i].name);
        onnx_model_done(&model);
        make_done(&make);
    }
}

Test(onnx, reads_halves_as_bit_patterns_and_bools_as_0_or_1)
{
    struct make make = make_model();
    const int64_t dims[] = {2};
    int32_t bits[] = {0x3c00, 0xc000};
    Onnx__TensorProto *halves = make_tensor(&make, "h", F16, NULL, 0, 1, dims);
    halves->int32_data = bits;
    halves->n_int32_data = 2;
    const uint8_t raw[] = {0, 7};
    make_initializer(&make, halves);
    make_initializer(&make, make_tensor(&make, "b", BOOL, raw, 2, 1, dims));
    MAKE_OUTPUT(&make, "h", F16, 1, 2);
    MAKE_OUTPUT(&make, "b", BOOL, 1, 2);
    struct onnx_model model = load_ok(&make);
    cr_expect_eq(tensor_number(model.graph->outputs[0]->known, 0), 1);
    cr_expect_eq(tensor_number(model.graph->outputs[0]->known, 1), -2);
    cr_expect_eq(((const uint8_t *)model.graph->outputs[1]->known->data)[1], 1);
    onnx_model_done(&model);
    make_done(&make);
}

Test(onnx, reads_every_form_of_constant)
{
    static const char *const names[] = {"value_float", "value_int", "value_floats", "value_ints"};
    static const int types[] = {1, 2, 6, 7};
    float floats[] = {4, 5};
    int64_t ints[] = {4, 5};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct make make = make_model();
        Onnx__NodeProto *node = make_add_node(&make, "Constant", "", "c");
        Onnx__AttributeProto *attr = make_attr(&make, node, names[i], types[i]);
        attr->has_f = i == 0;
        attr->f = 4;
        attr->has_i = i == 1;
        attr->i = 4;
        attr->floats = floats;
        attr->n_floats = i == 2 ? 2 : 0;
        attr->ints = ints;
        attr->n_ints = i == 3 ? 2 : 0;
        MAKE_OUTPUT(&make, "c", i % 2 ? I64 : F32, -1);
        struct onnx_model model = load_ok(&make);
        const struct tensor *known = model.graph->outputs[0]->known;
        cr_expect_eq(known->shape.rank, i < 2 ? 0 : 1, "%s", names[i]);
        cr_expect_eq(known->dtype, i % 2 ? DTYPE_I64 : DTYPE_F32, "%s", names[i]);
        cr_expect_eq(tensor_number(known, 0), 4, "%s", names[i]);
        cr_expect_eq(model.graph->node_count, 0, "%s: the node is not kept", names[i]);
        onnx_model_done(&model);
        make_done(&make);
    }
}

Test(onnx, reads_sparse_initialisers)
{
    struct make make = make_model();
    const float values[] = {5, 6};
    const int64_t linear[] = {1, 5}, pairs[] = {0, 1, 1, 2}, two[] = {2}, by_two[] = {2, 2};
    int64_t dims[] = {2, 3};
    for (int form = 0; form < 2; form++) {
        Onnx__SparseTensorProto *sparse =
            MAKE_NEW(&make, Onnx__SparseTensorProto, onnx__sparse_tensor_proto__init);
        sparse->values = make_tensor(&make, form ? "b" : "a", F32, values, sizeof values, 1, two);
        sparse->indices = form ? make_tensor(&make, "", I64, pairs, sizeof pairs, 2, by_two)
                               : make_tensor(&make, "", I64, linear, sizeof linear, 1, two);
        sparse->dims = dims;
        sparse->n_dims = 2;
        MAKE_APPEND(&make, make.graph->sparse_initializer, make.graph->n_sparse_initializer,
                    sparse);
        MAKE_OUTPUT(&make, form ? "b" : "a", F32, 2, 2, 3);
    }
    struct onnx_model model = load_ok(&make);
    static const float expected[] = {0, 5, 0, 0, 0, 6};
    for (size_t i = 0; i < 2; i++) {
        const struct tensor *dense = model.graph->outputs[i]->known;
        cr_assert_eq(dense->bytes, sizeof expected);
        cr_expect_arr_eq(dense->data, expected, sizeof expected);
    }
    onnx_model_done(&model);
    make_done(&make);
}

/* ---- refusals ---- */

typedef void (*spoil_fn)(struct make *make);

static void spoil_opset_zero(struct make *m)
{
    m->model->opset_import[0]->version = 0;
}

static void spoil_opset_future(struct make *m)
{
    m->model->opset_import[0]->version = (INT64_C(1) << 40) + 13;
}

static void spoil_no_opset(struct make *m)
{
    m->model->n_opset_import = 0;
}

static void spoil_ir(struct make *m)
{
    m->model->ir_version = 999;
}

static void spoil_no_outputs(struct make *m)
{
    m->graph->n_output = 0;
}

static void spoil_undefined(struct make *m)
{
    make_add_node(m, "Add", "y,ghost", "z");
}

static void spoil_cycle(struct make *m)
{
    make_add_node(m, "Add", "x,b", "a");
    make_add_node(m, "Add", "x,a", "b");
}

static void spoil_twice(struct make *m)
{
    make_add_node(m, "Neg", "x", "y");
}

static void spoil_unknown_op(struct make *m)
{
    make_add_node(m, "Frobnicate", "x", "z");
}

static void spoil_unknown_domain(struct make *m)
{
    make_add_node(m, "Relu", "x", "z")->domain = make_text(m, "com.example");
}

static void spoil_not_imported(struct make *m)
{
    make_add_node(m, "QLinearAdd", "x", "z")->domain = make_text(m, "com.microsoft");
}

static void spoil_attribute(struct make *m)
{
    make_attr_int(m, make_add_node(m, "Relu", "x", "z"), "slope", 1);
}

static void spoil_attribute_of_another_opset(struct make *m)
{
    make_attr_int(m, make_add_node(m, "ReduceSum", "x", "z"), "axes", 1);
}

/* Sign came with opset 9. */
static void spoil_opset_too_old(struct make *m)
{
    m->model->opset_import[0]->version = 6;
    make_add_node(m, "Sign", "x", "z");
}

/* Upsample is gone from opset 10 on. */
static void spoil_opset_too_new(struct make *m)
{
    make_add_node(m, "Upsample", "x", "z");
}

static void spoil_opset_of_another_domain(struct make *m)
{
    m->model->opset_import[0]->domain = make_text(m, "ai.onnx.ml");
}

/* Before opset 7 a BatchNormalization that does not say is_test = 1 is one of training. */
static void spoil_training(struct make *m)
{
    m->model->opset_import[0]->version = 6;
    const float ones[3] = {1, 1, 1};
    for (const char *name = "sbmv"; *name; name++)
        make_initializer(
            m, make_tensor(m, (char[]){*name, '\0'}, F32, ones, sizeof ones, 1, (int64_t[]){3}));
    MAKE_INPUT(m, "image", F32, 2, 1, 3);
    make_add_node(m, "BatchNormalization", "image,s,b,m,v", "z");
}

static void spoil_attribute_type(struct make *m)
{
    Onnx__AttributeProto *attr = make_attr(m, make_add_node(m, "Flatten", "x", "z"), "axis", 1);
    attr->f = 1;
    attr->has_f = 1;
}

static void spoil_attribute_lie(struct make *m)
{
    make_attr_int(m, make_add_node(m, "Flatten", "x", "z"), "axis", 1)->type = 1;
}

static void spoil_attribute_twice(struct make *m)
{
    Onnx__NodeProto *node = make_add_node(m, "Flatten", "x", "z");
    make_attr_int(m, node, "axis", 1);
    make_attr_int(m, node, "axis", 1);
}

static void spoil_reference(struct make *m)
{
    Onnx__NodeProto *node = make_add_node(m, "Flatten", "x", "z");
    make_attr(m, node, "axis", 2)->ref_attr_name = make_text(m, "axis");
}

static void spoil_input_rank(struct make *m)
{
    MAKE_INPUT(m, "w", F32, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1);
}

static void spoil_input_type(struct make *m)
{
    MAKE_INPUT(m, "w", 99, 1, 1);
}

static void spoil_string_input(struct make *m)
{
    MAKE_INPUT(m, "w", 8, 1, 1);
}

static void add_packed(struct make *m, int dtype, const char *op)
{
    make_initializer(m, make_tensor(m, "w", dtype, "\x1f\xe0\x07", 3, 1, (int64_t[]){5}));
    make_add_node(m, op, "w,w", "sum");
}

static void spoil_int4_input(struct make *m)
{
    MAKE_INPUT(m, "w", 22, 1, 1);
}

static void spoil_int4_operand(struct make *m)
{
    add_packed(m, 22, "Add");
}

static void spoil_int4_output(struct make *m)
{
    add_packed(m, 22, "DequantizeLinear");
    MAKE_OUTPUT(m, "w", 22, 5);
}

static void spoil_int4_short(struct make *m)
{
    make_initializer(m, make_tensor(m, "w", 22, "\x1f\xe0", 2, 1, (int64_t[]){5}));
}

static void spoil_int2_overflow(struct make *m)
{
    make_initializer(m,
                     make_tensor(m, "w", 26, "\x1f", 1, 3, (int64_t[]){INT64_MAX, INT64_MAX, 3}));
}

static void spoil_float8_bits(struct make *m)
{
    static int32_t numbers[] = {1, 256};
    Onnx__TensorProto *tensor = make_tensor(m, "w", 17, NULL, 0, 1, (int64_t[]){2});
    tensor->int32_data = numbers;
    tensor->n_int32_data = 2;
    make_initializer(m, tensor);
}

static void spoil_output_type(struct make *m)
{
    m->graph->input[0]->type->tensor_type->shape->n_dim = 0;
    m->graph->output[0]->type->tensor_type->elem_type = 7;
}

static void spoil_two_inputs(struct make *m)
{
    MAKE_INPUT(m, "x", F32, 1, 1);
}

static void add_tensor(struct make *m, int dtype, size_t bytes, size_t rank, const int64_t *dims)
{
    static const char zeros[64];
    make_initializer(m, make_tensor(m, "w", dtype, zeros, bytes, rank, dims));
}

static void spoil_short_raw(struct make *m)
{
    add_tensor(m, F32, 15, 1, (int64_t[]){4});
}

static void spoil_long_raw(struct make *m)
{
    add_tensor(m, F32, 17, 1, (int64_t[]){4});
}

static void spoil_negative_dim(struct make *m)
{
    add_tensor(m, F32, 16, 1, (int64_t[]){INT64_MIN});
}

static void spoil_overflow(struct make *m)
{
    add_tensor(m, F32, 16, 2, (int64_t[]){INT64_C(1) << 32, INT64_C(1) << 32});
}

static void spoil_zero_and_overflow(struct make *m)
{
    add_tensor(m, F32, 0, 3, (int64_t[]){0, INT64_C(1) << 62, INT64_C(1) << 62});
}

static void spoil_terabytes(struct make *m)
{
    add_tensor(m, F32, 16, 1, (int64_t[]){INT64_C(1) << 40});
}

static void spoil_nothing_there(struct make *m)
{
    make_initializer(m, make_tensor(m, "w", F32, NULL, 0, 1, (int64_t[]){4}));
}

static void spoil_int8_range(struct make *m)
{
    static int32_t big[] = {300};
    Onnx__TensorProto *tensor = make_tensor(m, "w", I8, NULL, 0, 1, (int64_t[]){1});
    tensor->int32_data = big;
    tensor->n_int32_data = 1;
    make_initializer(m, tensor);
}

static void spoil_wrong_list(struct make *m)
{
    static int64_t list[] = {1};
    Onnx__TensorProto *tensor = make_tensor(m, "w", F32, NULL, 0, 1, (int64_t[]){1});
    tensor->int64_data = list;
    tensor->n_int64_data = 1;
    make_initializer(m, tensor);
}

static void spoil_two_lists(struct make *m)
{
    static float list[] = {1};
    Onnx__TensorProto *tensor = make_tensor(m, "w", F32, "1234", 4, 1, (int64_t[]){1});
    tensor->float_data = list;
    tensor->n_float_data = 1;
    make_initializer(m, tensor);
}

static void spoil_external(struct make *m)
{
    Onnx__TensorProto *tensor = make_tensor(m, "w", F32, NULL, 0, 1, (int64_t[]){1});
    make_external(m, tensor, "location", "w.bin");
    make_initializer(m, tensor);
}

static void spoil_bomb(struct make *m)
{
    const int64_t shape[] = {100000, 10000}, dims[] = {2};
    const float one = 1;
    make_initializer(m, make_tensor(m, "one", F32, &one, sizeof one, 0, NULL));
    make_initializer(m, make_tensor(m, "shape", I64, shape, sizeof shape, 1, dims));
    make_add_node(m, "Expand", "one,shape", "z");
}

static void spoil_shapes(struct make *m)
{
    const float four[4] = {0}, five[5] = {0};
    make_initializer(m, make_tensor(m, "a", F32, four, sizeof four, 1, (int64_t[]){4}));
    make_initializer(m, make_tensor(m, "b", F32, five, sizeof five, 1, (int64_t[]){5}));
    make_add_node(m, "Add", "a,b", "z");
}

Test(onnx, refuses_with_a_sentence)
{
    static const struct {
        const char *name;
        spoil_fn spoil;
        enum status status;
        const char *words;
    } cases[] = {
        {"opset 0", spoil_opset_zero, STATUS_MODEL, "opset 0"},
        {"opset that truncates to 13", spoil_opset_future, STATUS_UNSUPPORTED, "1099511627789"},
        {"no opset", spoil_no_opset, STATUS_MODEL, "opset"},
        {"IR version", spoil_ir, STATUS_UNSUPPORTED, "IR version 999"},
        {"no outputs", spoil_no_outputs, STATUS_MODEL, "no outputs"},
        {"undefined value", spoil_undefined, STATUS_MODEL, "'ghost'"},
        {"cycle", spoil_cycle, STATUS_MODEL, "cycle"},
        {"value made twice", spoil_twice, STATUS_MODEL, "'y'"},
        {"unknown operator", spoil_unknown_op, STATUS_UNSUPPORTED, "Frobnicate"},
        {"unknown domain", spoil_unknown_domain, STATUS_UNSUPPORTED,
         "operator com.example.Relu is the exporter's own"},
        {"domain not imported", spoil_not_imported, STATUS_MODEL, "com.microsoft"},
        {"unknown attribute", spoil_attribute, STATUS_UNSUPPORTED, "'slope'"},
        {"attribute of another opset", spoil_attribute_of_another_opset, STATUS_UNSUPPORTED,
         "only from 1 to 12; re-export"},
        {"operator older than lensd's", spoil_opset_too_old, STATUS_UNSUPPORTED,
         "Sign is not supported at opset 6, only from 9 to 28; convert the model with "
         "onnx.version_converter"},
        {"operator that is gone", spoil_opset_too_new, STATUS_UNSUPPORTED,
         "Upsample is not supported at opset 13, only from 1 to 9"},
        {"ai.onnx.ml alone", spoil_opset_of_another_domain, STATUS_MODEL,
         "the operator set 'ai.onnx' of Relu"},
        {"training at opset 6", spoil_training, STATUS_UNSUPPORTED, "eval mode"},
        {"attribute of another type", spoil_attribute_type, STATUS_MODEL, "FLOAT, expected INT"},
        {"attribute that lies", spoil_attribute_lie, STATUS_MODEL, "declared FLOAT but carries"},
        {"attribute twice", spoil_attribute_twice, STATUS_MODEL, "twice"},
        {"reference outside a function", spoil_reference, STATUS_MODEL, "outside of one"},
        {"input of rank 9", spoil_input_rank, STATUS_UNSUPPORTED, "rank 9"},
        {"input of type 99", spoil_input_type, STATUS_MODEL, "99"},
        {"input of strings", spoil_string_input, STATUS_UNSUPPORTED, "string"},
        {"input of int4", spoil_int4_input, STATUS_UNSUPPORTED,
         "int4 is supported only in constants that DequantizeLinear or Cast reads"},
        {"int4 in Add", spoil_int4_operand, STATUS_UNSUPPORTED, "operand 'w' has data type int4"},
        {"int4 as output", spoil_int4_output, STATUS_UNSUPPORTED, "output 'w' has data type int4"},
        {"int4 short", spoil_int4_short, STATUS_MODEL, "needs 3 bytes in raw_data, found 2"},
        {"int2 of 2^127", spoil_int2_overflow, STATUS_SHAPE, "too large"},
        {"float8 of 256", spoil_float8_bits, STATUS_MODEL, "256"},
        {"output of another type", spoil_output_type, STATUS_MODEL,
         "output 'y' is declared int64, but the graph makes float32"},
        {"two inputs of one name", spoil_two_inputs, STATUS_MODEL, "two inputs named 'x'"},
        {"raw data short", spoil_short_raw, STATUS_MODEL, "needs 16 bytes in raw_data, found 15"},
        {"raw data long", spoil_long_raw, STATUS_MODEL, "found 17"},
        {"INT64_MIN elements", spoil_negative_dim, STATUS_SHAPE, "expected 0 or more"},
        {"2^64 elements", spoil_overflow, STATUS_SHAPE, "too large"},
        {"0 times 2^124 elements", spoil_zero_and_overflow, STATUS_SHAPE, "too large"},
        {"4 TiB of 16 bytes", spoil_terabytes, STATUS_MODEL, "4398046511104 bytes"},
        {"no data", spoil_nothing_there, STATUS_MODEL, "no data"},
        {"int8 of 300", spoil_int8_range, STATUS_MODEL, "300"},
        {"floats in int64_data", spoil_wrong_list, STATUS_MODEL, "int64_data"},
        {"values twice", spoil_two_lists, STATUS_MODEL, "both"},
        {"external data without a file", spoil_external, STATUS_MODEL, "read from a file"},
        {"10^9 elements", spoil_bomb, STATUS_NO_MEMORY, "[100000, 10000]"},
        {"shapes that do not fit", spoil_shapes, STATUS_SHAPE, "Add 'Add_1'"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct make make = relu_model();
        cases[i].spoil(&make);
        expect_refusal(cases[i].name, &make, cases[i].status, cases[i].words);
        make_done(&make);
    }
}

Test(onnx, charges_the_load_to_a_limit)
{
    struct make make = relu_model();
    static float zeros[100000];
    make_initializer(&make,
                     make_tensor(&make, "w", F32, zeros, sizeof zeros, 1, (int64_t[]){100000}));
    size_t size;
    uint8_t *bytes = make_pack(&make, &size);
    struct onnx_model model;
    struct error err;
    cr_expect_eq(onnx_load_memory(bytes, size, 300000, &model, &err), STATUS_NO_MEMORY);
    cr_expect(strstr(err.message, "300000"), "%s", err.message);
    cr_assert_eq(onnx_load_memory(bytes, size, 3000000, &model, &err), STATUS_OK, "%s",
                 err.message);
    onnx_model_done(&model);
    free(bytes);
    make_done(&make);
}

/* ---- bodies ---- */

/* A body without inputs: out = Add(captured, captured). */
static Onnx__GraphProto *add_body(struct make *make, const char *captured, const char *output)
{
    struct make body = *make;
    char operands[64];
    snprintf(operands, sizeof operands, "%s,%s", captured, captured);
    body.graph = MAKE_NEW(make, Onnx__GraphProto, onnx__graph_proto__init);
    make_add_node(&body, "Add", operands, output);
    MAKE_APPEND(make, body.graph->output, body.graph->n_output, make_value(make, output, F32, -1));
    return body.graph;
}

static Onnx__NodeProto *if_node(struct make *make, Onnx__GraphProto *then_body,
                                Onnx__GraphProto *else_body, const char *output)
{
    Onnx__NodeProto *node = make_node(make, "If", "cond", output);
    make_attr(make, node, "then_branch", 5)->g = then_body;
    make_attr(make, node, "else_branch", 5)->g = else_body;
    return node;
}

Test(onnx, captures_values_through_two_bodies)
{
    struct make make = relu_model();
    MAKE_INPUT(&make, "cond", BOOL, 0);
    struct make middle = make;
    middle.graph = MAKE_NEW(&make, Onnx__GraphProto, onnx__graph_proto__init);
    Onnx__NodeProto *inner =
        if_node(&make, add_body(&make, "y", "deep"), add_body(&make, "x", "deep2"), "mid");
    MAKE_APPEND(&make, middle.graph->node, middle.graph->n_node, inner);
    MAKE_APPEND(&make, middle.graph->output, middle.graph->n_output,
                make_value(&make, "mid", F32, -1));
    Onnx__NodeProto *outer = if_node(&make, middle.graph, add_body(&make, "y", "e"), "z");
    MAKE_APPEND(&make, make.graph->node, make.graph->n_node, outer);
    MAKE_OUTPUT(&make, "z", F32, -1);
    struct onnx_model model = load_ok(&make);
    const struct graph *graph = model.graph;
    const struct node *node = graph->nodes[1];
    cr_assert_eq(node->op, OP_IF);
    cr_expect_eq(node->capture_count, 4, "y, x and cond of one body, y of the other");
    const struct graph *body = node_attr(node, "then_branch")->g;
    cr_expect_eq(body->parent, graph);
    cr_assert_eq(body->nodes[0]->op, OP_IF);
    cr_expect_eq(body->nodes[0]->capture_count, 2);
    const struct graph *deep = node_attr(body->nodes[0], "then_branch")->g;
    const struct value *y = deep->nodes[0]->inputs[0];
    cr_assert(y && y->outer && y->outer->outer);
    cr_expect_eq(y->outer->outer, value_named(graph, "y"));
    onnx_model_done(&model);
    make_done(&make);
}

Test(onnx, refuses_captures_of_nothing)
{
    struct make make = relu_model();
    MAKE_INPUT(&make, "cond", BOOL, 0);
    Onnx__NodeProto *node =
        if_node(&make, add_body(&make, "ghost", "t"), add_body(&make, "y", "e"), "z");
    MAKE_APPEND(&make, make.graph->node, make.graph->n_node, node);
    expect_refusal("capture", &make, STATUS_MODEL, "'ghost'");
    make_done(&make);
}

/* ---- functions ---- */

static Onnx__FunctionProto *add_function(struct make *make, const char *name, const char *inputs,
                                         const char *outputs)
{
    Onnx__FunctionProto *function = MAKE_NEW(make, Onnx__FunctionProto, onnx__function_proto__init);
    function->name = make_text(make, name);
    function->domain = make_text(make, "local");
    make_names(make, inputs, &function->input, &function->n_input);
    make_names(make, outputs, &function->output, &function->n_output);
    function->opset_import = make->model->opset_import;
    function->n_opset_import = make->model->n_opset_import;
    MAKE_APPEND(make, make->model->functions, make->model->n_functions, function);
    return function;
}

static Onnx__NodeProto *function_node(struct make *make, Onnx__FunctionProto *function,
                                      const char *op, const char *inputs, const char *outputs)
{
    Onnx__NodeProto *node = make_node(make, op, inputs, outputs);
    MAKE_APPEND(make, function->node, function->n_node, node);
    return node;
}

Test(onnx, expands_functions)
{
    struct make make = relu_model();
    make_opset(&make, "local", 1);
    Onnx__FunctionProto *inner = add_function(&make, "Inner", "a", "b");
    Onnx__NodeProto *leaky = function_node(&make, inner, "LeakyRelu", "a", "t");
    make_attr(&make, leaky, "alpha", 1)->ref_attr_name = make_text(&make, "slope");
    function_node(&make, inner, "Neg", "t", "b");
    Onnx__AttributeProto *slope = make_attr(&make, NULL, "slope", 1); /* the default */
    slope->f = 0.25f;
    slope->has_f = 1;
    MAKE_APPEND(&make, inner->attribute_proto, inner->n_attribute_proto, slope);
    Onnx__FunctionProto *outer = add_function(&make, "Outer", "p,q", "r,p2");
    function_node(&make, outer, "Inner", "p", "r")->domain = make_text(&make, "local");
    Onnx__NodeProto *given = function_node(&make, outer, "Inner", "r", "unused");
    given->domain = make_text(&make, "local");
    Onnx__AttributeProto *alpha = make_attr(&make, given, "slope", 1);
    alpha->f = 0.5f;
    alpha->has_f = 1;
    function_node(&make, outer, "Identity", "p", "p2");
    make_add_node(&make, "Outer", "y", "z,w")->domain = make_text(&make, "local");
    make_add_node(&make, "Outer", "z", "z2")->domain = make_text(&make, "local");
    MAKE_OUTPUT(&make, "z2", F32, -1);
    MAKE_OUTPUT(&make, "w", F32, -1);
    struct onnx_model model = load_ok(&make);
    const struct graph *graph = model.graph;
    size_t leakies = 0;
    double alphas = 0;
    for (size_t i = 0; i < graph->node_count; i++) {
        leakies += graph->nodes[i]->op == OP_LEAKY_RELU;
        alphas +=
            graph->nodes[i]->op == OP_LEAKY_RELU ? node_float(graph->nodes[i], "alpha", 9) : 0;
    }
    cr_expect_eq(leakies, 4);
    cr_expect_float_eq(alphas, 0.25 + 0.5 + 0.25 + 0.5, 1e-6);
    cr_expect_eq(graph->node_count, 1 + 2 * (2 + 2 + 1));
    cr_expect_eq(graph->outputs[1]->producer->op, OP_NEG);
    onnx_model_done(&model);
    make_done(&make);
}

Test(onnx, hands_function_inputs_through)
{
    struct make make = relu_model();
    make_opset(&make, "local", 1);
    add_function(&make, "Pass", "a", "a");
    make_add_node(&make, "Pass", "y", "z")->domain = make_text(&make, "local");
    MAKE_OUTPUT(&make, "z", F32, -1);
    struct onnx_model model = load_ok(&make);
    cr_expect_eq(model.graph->outputs[1]->producer->op, OP_IDENTITY);
    onnx_model_done(&model);
    make_done(&make);
}

Test(onnx, refuses_functions_without_end, .timeout = 20)
{
    struct make make = relu_model();
    make_opset(&make, "local", 1);
    Onnx__FunctionProto *f = add_function(&make, "F", "a", "b");
    Onnx__FunctionProto *g = add_function(&make, "G", "a", "b");
    function_node(&make, f, "G", "a", "b")->domain = make_text(&make, "local");
    function_node(&make, g, "F", "a", "b")->domain = make_text(&make, "local");
    make_add_node(&make, "F", "y", "z")->domain = make_text(&make, "local");
    expect_refusal("mutual recursion", &make, STATUS_MODEL, "calls itself");
    make_done(&make);

    make = relu_model(); /* 40 functions that double each other: 2^40 nodes */
    make_opset(&make, "local", 1);
    for (int i = 0; i < 40; i++) {
        char name[8], next[8];
        snprintf(name, sizeof name, "F%d", i);
        snprintf(next, sizeof next, "F%d", i + 1);
        Onnx__FunctionProto *function = add_function(&make, name, "a", "b");
        bool last = i == 39;
        for (int k = 0; k < 2; k++) {
            Onnx__NodeProto *node =
                function_node(&make, function, last ? "Relu" : next, k ? "t" : "a", k ? "b" : "t");
            if (!last)
                node->domain = make_text(&make, "local");
        }
    }
    make_add_node(&make, "F0", "y", "z")->domain = make_text(&make, "local");
    expect_refusal("doubling", &make, STATUS_MODEL, "too large");
    make_done(&make);
}

Test(onnx, refuses_sums_of_very_many_operands, .timeout = 20)
{
    struct make make = relu_model();
    Onnx__NodeProto *sum = make_add_node(&make, "Sum", "y", "z");
    sum->n_input = 300000;
    sum->input = arena_alloc(make.arena, sum->n_input, sizeof *sum->input);
    for (size_t i = 0; i < sum->n_input; i++)
        sum->input[i] = make_text(&make, "y");
    expect_refusal("300,000 operands", &make, STATUS_MODEL, "too large");
    make_done(&make);
}
