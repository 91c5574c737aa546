/* models/folder/model.c: folders as people have them, and what is worked out about a model. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/size.h"
#include "models/folder/model.h"
#include "tests/unit/models/onnx_make.h"

enum { U8 = 2, I64 = 7 };

/* What the model of a test looks like. Dimensions below 0 are symbolic. */
struct net {
    int input[4];
    int dtype;
    bool channels_last;      /* transposed before the classifier */
    const char *last;        /* "Softmax", "LogSoftmax", NULL: logits */
    const char *metadata[4]; /* key, value, key, value */
};

#define CLASSES 3

/* GlobalAveragePool → Flatten → Gemm [→ last]. */
static uint8_t *net_bytes(const struct net *net, size_t *ret_size)
{
    struct make make = make_model();
    const int *d = net->input;
    int channels = net->channels_last ? d[3] : d[1];
    static const float weights[CLASSES * 3] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    const int64_t dims[] = {CLASSES, channels};
    static int64_t perm[] = {0, 3, 1, 2};
    MAKE_INPUT(&make, "image", net->dtype ? net->dtype : 1, 4, d[0], d[1], d[2], d[3]);
    make_attr_int(&make, make_add_node(&make, "Cast", "image", "float"), "to", 1);
    if (net->channels_last) {
        Onnx__AttributeProto *attr =
            make_attr(&make, make_add_node(&make, "Transpose", "float", "nchw"), "perm", 7);
        attr->ints = perm;
        attr->n_ints = 4;
    }
    make_add_node(&make, "GlobalAveragePool", net->channels_last ? "nchw" : "float", "pooled");
    make_add_node(&make, "Flatten", "pooled", "flat");
    make_initializer(&make, make_tensor(&make, "w", 1, weights,
                                        sizeof(float) * CLASSES * (size_t)channels, 2, dims));
    make_attr_int(&make, make_add_node(&make, "Gemm", "flat,w", "logits"), "transB", 1);
    if (net->last)
        make_add_node(&make, net->last, "logits", "scores");
    MAKE_OUTPUT(&make, net->last ? "scores" : "logits", 1, 2, d[0], CLASSES);
    for (size_t i = 0; i + 1 < COUNT_OF(net->metadata) && net->metadata[i]; i += 2) {
        Onnx__StringStringEntryProto *entry =
            MAKE_NEW(&make, Onnx__StringStringEntryProto, onnx__string_string_entry_proto__init);
        entry->key = make_text(&make, net->metadata[i]);
        entry->value = make_text(&make, net->metadata[i + 1]);
        MAKE_APPEND(&make, make.model->metadata_props, make.model->n_metadata_props, entry);
    }
    uint8_t *bytes = make_pack(&make, ret_size);
    make_done(&make);
    return bytes;
}

static const struct net plain_net = {.input = {-1, 3, 224, 224}};

struct folder {
    char path[64];
};

static struct folder make_folder(void)
{
    struct folder folder = {"/tmp/lensd_test_model_XXXXXX"};
    cr_assert(mkdtemp(folder.path));
    return folder;
}

/* Writes a file, and the folders above it (one level). */
static void put(const struct folder *folder, const char *name, const void *data, size_t size)
{
    char path[256];
    const char *slash = strchr(name, '/');
    if (slash) {
        snprintf(path, sizeof path, "%s/%.*s", folder->path, (int)(slash - name), name);
        mkdir(path, 0700);
    }
    snprintf(path, sizeof path, "%s/%s", folder->path, name);
    FILE *file = fopen(path, "wb");
    cr_assert(file, "%s", path);
    cr_assert_eq(fwrite(data, 1, size, file), size);
    fclose(file);
}

static void put_text(const struct folder *folder, const char *name, const char *text)
{
    put(folder, name, text, strlen(text));
}

static void put_net(const struct folder *folder, const char *name, const struct net *net)
{
    size_t size;
    uint8_t *bytes = net_bytes(net, &size);
    put(folder, name, bytes, size);
    free(bytes);
}

static void remove_folder(const struct folder *folder)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder->path);
    cr_expect_eq(system(command), 0);
}

static struct model *load_at(const struct folder *folder, const char *name)
{
    char path[256];
    struct model *model = NULL;
    struct error err = {0};
    snprintf(path, sizeof path, "%s/%s", folder->path, name);
    cr_assert_eq(model_load(path, NULL, NULL, &model, &err), STATUS_OK, "%s", err.message);
    return model;
}

static void expect_failure(const struct folder *folder, enum status status, const char *words)
{
    struct model *model = NULL;
    struct error err = {0};
    cr_expect_eq(model_load(folder->path, NULL, NULL, &model, &err), status, "%s", err.message);
    cr_expect(strstr(err.message, words), "'%s' does not say '%s'", err.message, words);
    model_free(model);
}

/* ---- layouts ---- */

Test(model, finds_models_in_all_layouts)
{
    static const struct {
        const char *file, *open, *name, *version;
    } cases[] = {
        {"resnet/model.onnx", "resnet", "resnet", "1"},
        {"resnet/model.onnx", "resnet/", "resnet", "1"},
        {"resnet/model.onnx", "resnet/model.onnx", "resnet", "1"},
        {"resnet/net-v2.onnx", "resnet", "resnet", "1"},
        {"net-v2.onnx", "net-v2.onnx", "net-v2", "1"},
        {"onnx/model.onnx", "", NULL, "1"},
        {"12/model.onnx", "", NULL, "12"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct folder folder = make_folder();
        put_net(&folder, cases[i].file, &plain_net);
        struct model *model = load_at(&folder, cases[i].open);
        const char *name = cases[i].name ? cases[i].name : strrchr(folder.path, '/') + 1;
        cr_expect_str_eq(model->name, name, "%s", cases[i].file);
        cr_expect_str_eq(model->version, cases[i].version, "%s", cases[i].file);
        cr_expect(strstr(model->source, cases[i].file), "%s", model->source);
        model_free(model);
        remove_folder(&folder);
    }
}

Test(model, takes_the_highest_version_and_its_own_files_first)
{
    struct folder folder = make_folder();
    put_net(&folder, "2/model.onnx", &plain_net);
    put_net(&folder, "10/model.onnx", &plain_net);
    put_text(&folder, "labels.txt", "old\nold\nold\n");
    put_text(&folder, "10/labels.txt", "a\nb\nc\n");
    struct model *model = load_at(&folder, "");
    cr_expect_str_eq(model->version, "10");
    cr_expect_str_eq(labels_name(&model->labels, 0), "a");
    model_free(model);
    remove_folder(&folder);
}

/* 007 is no name of version 7; Triton ignores it, too. */
Test(model, zeros_in_front_make_no_version)
{
    struct folder folder = make_folder();
    put_net(&folder, "007/model.onnx", &plain_net);
    expect_failure(&folder, STATUS_NOT_FOUND, "N/model.onnx (Triton; no leading zeros)");
    put_net(&folder, "2/model.onnx", &plain_net);
    struct model *model = load_at(&folder, "");
    cr_expect_str_eq(model->version, "2");
    model_free(model);
    remove_folder(&folder);
}

Test(model, reads_tritons_configuration)
{
    struct folder folder = make_folder();
    put_net(&folder, "1/model.onnx", &plain_net);
    put_text(&folder, "classes.txt", "a\nb\nc\n");
    put_text(&folder, "config.pbtxt",
             "name: \"max_batch_size: 3\" # max_batch_size: 4\nmax_batch_size: 16\n"
             "output [ { name: \"logits\" dims: [ 3 ] label_filename: \"classes.txt\" } ]\n");
    struct model *model = load_at(&folder, "");
    cr_expect_eq(model->max_batch, 16);
    cr_expect_str_eq(labels_name(&model->labels, 2), "c");
    model_free(model);
    put_text(&folder, "config.pbtxt", "output { label_filename: \"../../etc/passwd\" }");
    expect_failure(&folder, STATUS_MODEL, "config.pbtxt");
    remove_folder(&folder);
}

Test(model, refuses_what_is_no_triton_configuration)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"max_batch_size: [", "line 1: the '[' of line 1 is never closed"},
        {"name: \"x\"\n\nmax_batch_size [", "line 3: the '[' of line 3 is never closed"},
        {"input {\n  name: \"image\"\n", "line 3: the '{' of line 1 is never closed"},
        {"input { name: \"image\" ]", "line 1: expected the name of a setting, not ']'"},
        {"max_batch_size 8", "line 1: expected ':' after 'max_batch_size'"},
        {"max_batch_size:", "line 1: expected a value, but the file ends"},
        {"max_batch_size: }", "line 1: expected a value, not '}'"},
        {"dims: [ 1 2 ]", "line 1: expected ',' or ']', not '2'"},
        {"dims: [ 1, ]", "line 1: expected a value, not ']'"},
        {"{\"max_batch_size\": 8}", "line 1: expected the name of a setting, not '{'"},
        {"# all is well\nname: \"x\n\"", "line 2: the text that begins here has no end"},
        {"a{a{a{a{a{a{a{a{a{a{a{a{a{a{a{a{a{", "nested deeper than 16 levels"},
        {"max_batch_size: 8.5", "line 1: max_batch_size is not a number of images"},
        {"max_batch_size: \"8\"", "max_batch_size is not a number of images"},
        {"max_batch_size: [ 8 ]", "max_batch_size is not a number of images"},
        {"max_batch_size: -1", "max_batch_size is not a number of images"},
        {"version_policy { all { }", "line 1: the '{' of line 1 is never closed"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct folder folder = make_folder();
        put_net(&folder, i % 2 ? "model.onnx" : "1/model.onnx", &plain_net);
        put_text(&folder, "config.pbtxt", cases[i].text);
        expect_failure(&folder, STATUS_MODEL, cases[i].words);
        expect_failure(&folder, STATUS_MODEL, "config.pbtxt: line ");
        remove_folder(&folder);
    }
    struct folder folder = make_folder();
    put_net(&folder, "model.onnx", &plain_net);
    put(&folder, "config.pbtxt", "name: \"x\"\n\0", 11);
    expect_failure(&folder, STATUS_MODEL, "line 2: there is a NUL byte");
    remove_folder(&folder);
}

Test(model, takes_all_forms_of_a_triton_configuration)
{
    static const char *const texts[] = {
        "",
        "# nothing",
        "\xEF\xBB\xBFname: \"x\";",
        "max_batch_size: 8, platform: 'onnxruntime_onnx'",
        "input < name: \"image\", dims: 3 dims: -1 dims: 224 >",
        "input: [ { name: \"image\" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] } ]",
        "input { name: \"image\" dims: [ -1, 3, 224, 224 ] }",
        "input { name: \"image\" dims: [ 150528 ] reshape { shape: [ 3, 224, 224 ] } }",
        "instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] }, { kind: KIND_CPU } ]",
        "parameters { key: \"a\" value: { string_value: \"say \\\"{\\\" \" 'and [' } }",
        "dynamic_batching { } unknown_key: - 0x1F x: .5 y: 1e-3 z: 1.5f w: -inf v: []",
        "optimization { graph { level: 1 } accelerators { gpu : [ { name : \"tensorrt\" } ] } }",
        "model_warmup [ { name: \"w\" inputs { key: \"image\" value: { dims: [ 9 ] } } } ]",
    };
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct folder folder = make_folder();
        put_net(&folder, "model.onnx", &plain_net);
        put_text(&folder, "config.pbtxt", texts[i]);
        model_free(load_at(&folder, ""));
        remove_folder(&folder);
    }
}

Test(model, refuses_inputs_that_are_not_the_models)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"input [{name:\"imagex\" dims:[3,64,64]}]",
         "an input 'imagex', which the model does not have; the model's only input is 'image'"},
        {"input [{name:\"image\" dims:[3,64,64]}]",
         "input 'image' has dimension 64, but the model's shape is"},
        {"max_batch_size: 8 input {name:\"image\" dims:[3,64,64]}", "has dimension 64"},
        {"max_batch_size: 8 input {name:\"image\" dims:[-1,3,224,224]}",
         "has 4 dims, but the model's shape is"},
        {"input {name:\"image\" dims:[224,224]}", "has 2 dims, but the model's shape is"},
        {"input {name:\"image\" dims:[3,224.5,224]}", "expected whole decimal numbers"},
        {"input {name:\"image\" dims:[3,-2,224]}", "-2 is neither a size nor -1"},
        {"input {dims:[3,224,224]}", "an input without a name"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct folder folder = make_folder();
        put_net(&folder, "model.onnx", &plain_net);
        put_text(&folder, "config.pbtxt", cases[i].text);
        expect_failure(&folder, STATUS_MODEL, cases[i].words);
        expect_failure(&folder, STATUS_MODEL, "config.pbtxt");
        remove_folder(&folder);
    }
}

Test(model, says_what_was_looked_for)
{
    struct folder folder = make_folder();
    expect_failure(&folder, STATUS_NOT_FOUND, "N/model.onnx");
    put_net(&folder, "a.onnx", &plain_net);
    put_net(&folder, "b.onnx", &plain_net);
    expect_failure(&folder, STATUS_NOT_FOUND, "found 2");
    remove_folder(&folder);
    expect_failure(&folder, STATUS_NOT_FOUND, "no such file");
}

Test(model, takes_a_given_name)
{
    struct folder folder = make_folder();
    put_net(&folder, "model.onnx", &plain_net);
    struct model *model;
    cr_assert_eq(model_load(folder.path, "mine", NULL, &model, &(struct error){0}), STATUS_OK);
    cr_expect_str_eq(model->name, "mine");
    model_free(model);
    remove_folder(&folder);
}

/* ---- labels and preprocessing ---- */

Test(model, reads_labels_and_preprocessing_of_each_kind)
{
    static const struct {
        const char *name, *file, *text, *label, *source;
    } cases[] = {
        {"labels.txt", "labels.txt", "a\nb\nc\n", "b", "ImageNet defaults"},
        {"TorchServe", "index_to_name.json", "{\"1\": [\"n1\", \"b\"]}", "b", "ImageNet defaults"},
        {"Hugging Face", "config.json", "{\"id2label\": {\"1\": \"b\"}}", "b", "ImageNet defaults"},
        {"timm", "config.json",
         "{\"label_names\": [\"a\", \"b\", \"c\"], \"pretrained_cfg\": {\"input_size\": [3, 224, "
         "224]}}",
         "b", "config.json (timm)"},
        {"Hugging Face", "preprocessor_config.json", "{\"size\": 224}", NULL,
         "preprocessor_config.json"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct folder folder = make_folder();
        put_net(&folder, "model.onnx", &plain_net);
        put_text(&folder, cases[i].file, cases[i].text);
        struct model *model = load_at(&folder, "");
        const char *label = labels_name(&model->labels, 1);
        cr_expect_str_eq(label ? label : "-", cases[i].label ? cases[i].label : "-", "%s",
                         cases[i].name);
        cr_expect_str_eq(model->preprocess_source, cases[i].source, "%s", cases[i].name);
        model_free(model);
        remove_folder(&folder);
    }
}

Test(model, reads_ultralytics_metadata)
{
    struct folder folder = make_folder();
    const struct net net = {
        .input = {1, 3, 640, 640},
        .metadata = {"names", "{0: 'cat', 1: 'dog', 2: 'emu'}", "imgsz", "[640, 640]"}};
    put_net(&folder, "yolo.onnx", &net);
    struct model *model = load_at(&folder, "yolo.onnx");
    cr_expect_str_eq(labels_name(&model->labels, 2), "emu");
    cr_expect_str_eq(model->preprocess_source, "model metadata");
    cr_expect_eq(model->preprocess.resize, RESIZE_LETTERBOX);
    model_free(model);
    remove_folder(&folder);
}

Test(model, takes_the_task_of_ultralytics_only_from_the_metadata)
{
    struct folder folder = make_folder();
    struct net net = {.input = {1, 3, 224, 224}, .metadata = {"task", "image-classification"}};
    put_net(&folder, "model.onnx", &net);
    struct model *model = load_at(&folder, "");
    cr_expect_eq(model->task.kind, TASK_CLASSIFICATION, "%s", model->task.evidence);
    model_free(model);
    net = (struct net){.input = {1, 3, 224, 224},
                       .metadata = {"task", "segment", "author", "Ultralytics"}};
    put_net(&folder, "model.onnx", &net);
    model = load_at(&folder, "");
    cr_expect_eq(model->task.kind, TASK_UNKNOWN, "%s", model->task.evidence);
    model_free(model);
    remove_folder(&folder);
}

Test(model, names_the_file_that_cannot_be_understood)
{
    static const struct {
        const char *file, *text;
    } cases[] = {
        {"labels.txt", "\xff\n"},
        {"index_to_name.json", "{"},
        {"config.json", "{\"id2label\": {\"x\": \"y\"}}"},
        {"preprocessor_config.json", "{\"size\": \"big\"}"},
        {"config.json", "{\"pretrained_cfg\": {\"input_size\": 3}}"},
        {"preprocessor_config.json", "{\"size\": 100000}"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct folder folder = make_folder();
        const struct net net = {.input = {-1, 3, -1, -1}};
        put_net(&folder, "model.onnx", &net);
        put_text(&folder, cases[i].file, cases[i].text);
        expect_failure(&folder, STATUS_MODEL, cases[i].file);
        remove_folder(&folder);
    }
}

static const char *const side_files[] = {"labels.txt", "index_to_name.json", "config.json",
                                         "preprocessor_config.json", "config.pbtxt"};

Test(model, refuses_side_files_that_are_links_out_of_the_folder)
{
    for (size_t i = 0; i < COUNT_OF(side_files); i++) {
        struct folder folder = make_folder();
        char path[256], target[256];
        put_net(&folder, "m/model.onnx", &plain_net);
        put_text(&folder, "outside", "a\nb\nc\n");
        snprintf(path, sizeof path, "%s/m/%s", folder.path, side_files[i]);
        snprintf(target, sizeof target, "%s/outside", folder.path);
        cr_assert_eq(symlink(target, path), 0);
        struct folder model = folder;
        const size_t length = strlen(model.path);
        snprintf(model.path + length, sizeof model.path - length, "/m");
        expect_failure(&model, STATUS_IO, "through a link");
        expect_failure(&model, STATUS_IO, side_files[i]);
        remove_folder(&folder);
    }
}

Test(model, follows_links_inside_the_folder)
{
    struct folder folder = make_folder();
    char path[256];
    put_net(&folder, "model.onnx", &plain_net);
    put_text(&folder, "data/labels.txt", "a\nb\nc\n");
    snprintf(path, sizeof path, "%s/labels.txt", folder.path);
    cr_assert_eq(symlink("data/labels.txt", path), 0);
    struct model *model = load_at(&folder, "model.onnx");
    cr_expect_str_eq(labels_name(&model->labels, 2), "c");
    model_free(model);
    remove_folder(&folder);
}

Test(model, does_not_wait_for_side_files_that_are_pipes, .timeout = 20)
{
    for (size_t i = 0; i < COUNT_OF(side_files); i++) {
        struct folder folder = make_folder();
        char path[256];
        put_net(&folder, "model.onnx", &plain_net);
        snprintf(path, sizeof path, "%s/%s", folder.path, side_files[i]);
        cr_assert_eq(mkfifo(path, 0600), 0);
        expect_failure(&folder, STATUS_IO, "not a regular file");
        remove_folder(&folder);
    }
}

Test(model, says_where_a_file_stops_being_json)
{
    static const char *const files[] = {"preprocessor_config.json", "index_to_name.json"};
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        struct folder folder = make_folder();
        const struct net net = {.input = {-1, 3, -1, -1}};
        put_net(&folder, "model.onnx", &net);
        put_text(&folder, files[i], "{\"size\": 224,\n \"mean\": nope}");
        expect_failure(&folder, STATUS_MODEL, "see line 2, byte 2");
        remove_folder(&folder);
    }
}

/* ---- what is worked out ---- */

struct description {
    const char *name;
    struct net net;
    bool channels_last, fixed_batch, probabilities;
    int width, height;
    enum resize_rule resize;
    enum channel_order channels;
    const char *warning; /* NULL: none */
};

static void check_description(const struct description *want)
{
    struct folder folder = make_folder();
    put_net(&folder, "model.onnx", &want->net);
    struct model *model = load_at(&folder, "");
    cr_expect_eq(model->image_input, 0, "%s", want->name);
    cr_expect_str_eq(model->inputs[model->image_input].name, "image");
    cr_expect_eq(model->input_channels_last, want->channels_last, "%s", want->name);
    cr_expect_eq(model->fixed_batch, want->fixed_batch, "%s", want->name);
    cr_expect_eq(model->has_probabilities, want->probabilities, "%s", want->name);
    cr_expect(model->preprocess.width == want->width && model->preprocess.height == want->height,
              "%s: %d x %d", want->name, model->preprocess.width, model->preprocess.height);
    cr_expect_eq(model->preprocess.resize, want->resize, "%s", want->name);
    cr_expect_eq(model->preprocess.channels, want->channels, "%s", want->name);
    cr_expect_eq(model->class_count, CLASSES, "%s: %zu classes", want->name, model->class_count);
    cr_expect_geq(model->parameter_count, CLASSES);
    if (want->warning)
        cr_expect(strstr(model->warning, want->warning), "%s: '%s'", want->name, model->warning);
    else
        cr_expect_str_empty(model->warning, "%s: '%s'", want->name, model->warning);
    model_free(model);
    remove_folder(&folder);
}

Test(model, describes_the_image_input)
{
    static const struct description cases[] = {
        {"NCHW",
         {.input = {-1, 3, 224, 224}},
         false,
         false,
         false,
         224,
         224,
         RESIZE_SHORT_SIDE,
         CHANNELS_RGB,
         NULL},
        {"NHWC",
         {.input = {-1, 224, 224, 3}, .channels_last = true},
         true,
         false,
         false,
         224,
         224,
         RESIZE_SHORT_SIDE,
         CHANNELS_RGB,
         NULL},
        {"all symbolic but the channels",
         {.input = {-1, 3, -1, -1}},
         false,
         false,
         false,
         224,
         224,
         RESIZE_SHORT_SIDE,
         CHANNELS_RGB,
         NULL},
        {"fixed batch, softmax",
         {.input = {1, 3, 299, 299}, .last = "Softmax"},
         false,
         true,
         true,
         299,
         299,
         RESIZE_SHORT_SIDE,
         CHANNELS_RGB,
         NULL},
        {"log-softmax is no probability",
         {.input = {-1, 3, 224, 224}, .last = "LogSoftmax"},
         false,
         false,
         false,
         224,
         224,
         RESIZE_SHORT_SIDE,
         CHANNELS_RGB,
         NULL},
        {"oblong",
         {.input = {-1, 3, 224, 320}},
         false,
         false,
         false,
         320,
         224,
         RESIZE_EXACT,
         CHANNELS_RGB,
         NULL},
        {"grey and small",
         {.input = {-1, 1, 28, 28}},
         false,
         false,
         false,
         28,
         28,
         RESIZE_EXACT,
         CHANNELS_GRAY,
         NULL},
        {"bytes",
         {.input = {-1, 224, 224, 3}, .dtype = U8, .channels_last = true},
         true,
         false,
         false,
         224,
         224,
         RESIZE_SHORT_SIDE,
         CHANNELS_RGB,
         NULL},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        check_description(&cases[i]);
}

Test(model, leaves_bytes_to_models_that_take_bytes)
{
    struct folder folder = make_folder();
    const struct net net = {.input = {1, 3, 224, 224}, .dtype = U8};
    put_net(&folder, "model.onnx", &net);
    struct model *model = load_at(&folder, "");
    cr_expect_eq(model->inputs[model->image_input].dtype, DTYPE_U8);
    cr_expect_eq(model->preprocess.scale, 1);
    cr_expect_eq(model->preprocess.mean[0], 0);
    cr_expect_eq(model->preprocess.std[0], 1);
    model_free(model);
    remove_folder(&folder);
}

Test(model, warns_where_files_disagree)
{
    struct folder folder = make_folder();
    put_net(&folder, "model.onnx", &plain_net);
    put_text(&folder, "labels.txt", "a\nb\n");
    put_text(&folder, "preprocessor_config.json", "{\"size\": 384}");
    struct model *model = load_at(&folder, "");
    cr_expect(strstr(model->warning, "384 x 384"), "%s", model->warning);
    cr_expect(strstr(model->warning, "labels.txt has 2 labels but the model has 3 classes"), "%s",
              model->warning);
    cr_expect_eq(model->preprocess.width, 224);
    model_free(model);
    put_text(&folder, "labels.txt", "a\n");
    model = load_at(&folder, "");
    cr_expect(strstr(model->warning, "labels.txt has 1 label but the model has 3 classes"), "%s",
              model->warning);
    model_free(model);
    remove_folder(&folder);
}

static void expect_warning(const char *file, const char *text, const char *words)
{
    struct folder folder = make_folder();
    put_net(&folder, "model.onnx", &plain_net);
    put_text(&folder, file, text);
    struct model *model = load_at(&folder, "");
    if (words)
        cr_expect_str_eq(model->warning, words, "%s", text);
    else
        cr_expect_str_empty(model->warning, "%s: %s", text, model->warning);
    cr_expect_eq(model->preprocess.width, 224, "%s", text);
    model_free(model);
    remove_folder(&folder);
}

Test(model, warns_of_slips_in_the_preprocessing)
{
    static const char file[] = "preprocessor_config.json";
    expect_warning(file, "{\"image_mean\": [124, 116, 104], \"image_std\": [58, 57, 57]}",
                   "preprocessor_config.json: mean 124 and std 58 look like those of pixels 0 to "
                   "255, but pixels are scaled to 0 … 1 first: set \"do_rescale\" to false, or "
                   "divide both by 255");
    expect_warning("config.json",
                   "{\"pretrained_cfg\": {\"input_size\": [3, 224, 224], \"mean\": [124, 116, "
                   "104]}}",
                   "config.json (timm): mean 124 and std 0.229 look like those of pixels 0 to 255, "
                   "but pixels are scaled to 0 … 1 first: divide both by 255");
    expect_warning(file,
                   "{\"image_mean\": [124, 116, 104], \"image_std\": [58, 57, 57], "
                   "\"do_rescale\": false}",
                   NULL);
    expect_warning(file, "{\"image_mean\": 0.5, \"image_std\": 0.5, \"rescale_offset\": true}",
                   NULL);
    expect_warning(file, "{\"do_reszie\": false}",
                   "preprocessor_config.json: unknown key \"do_reszie\": did you mean "
                   "\"do_resize\"?");
    expect_warning(file, "{\"do_resize\": false}", NULL);
}

Test(model, says_which_labels_are_missing)
{
    expect_warning("index_to_name.json", "{\"0\": \"a\", \"9\": \"b\"}",
                   "index_to_name.json names 2 of the classes 0 to 9, but not 1, 2, 3 and 5 more; "
                   "the model has 3 classes");
    expect_warning("index_to_name.json", "{\"0\": \"a\", \"2\": \"b\"}",
                   "index_to_name.json names 2 of the classes 0 to 2, but not 1; the model has 3 "
                   "classes");
}

Test(model, needs_a_size_from_somewhere)
{
    struct folder folder = make_folder();
    const struct net net = {.input = {-1, 3, -1, 64}};
    put_net(&folder, "model.onnx", &net);
    put_text(&folder, "preprocessor_config.json", "{\"do_resize\": false}");
    expect_failure(&folder, STATUS_MODEL,
                   "gives neither \"size\" nor \"crop_size\", and the model");
    remove_folder(&folder);
}

Test(model, loads_graphs_without_an_image)
{
    struct folder folder = make_folder();
    struct make make = make_model();
    MAKE_INPUT(&make, "tokens", I64, 2, -1, 8);
    make_add_node(&make, "Neg", "tokens", "y");
    MAKE_OUTPUT(&make, "y", I64, 2, -1, 8);
    size_t size;
    uint8_t *bytes = make_pack(&make, &size);
    put(&folder, "model.onnx", bytes, size);
    struct model *model = load_at(&folder, "");
    cr_expect_eq(model->image_input, SIZE_MAX);
    cr_expect_eq(model->class_count, 0);
    cr_expect(strstr(model->warning, "but its folder has no tokenizer"), "%s", model->warning);
    model_free(model);
    free(bytes);
    make_done(&make);
    remove_folder(&folder);
}

Test(model, drops_its_graph)
{
    struct model *model;
    struct error err = {0};
    cr_assert_eq(model_load(NULL, NULL, NULL, &model, &err), STATUS_OK, "%s", err.message);
    model_drop_graph(model);
    cr_expect_null(model->graph);
    cr_expect_str_eq(model->name, "digits");
    model_free(model);
    model_free(NULL);
}

Test(model, carries_the_digits)
{
    struct model *model;
    struct error err = {0};
    cr_assert_eq(model_load(NULL, NULL, NULL, &model, &err), STATUS_OK, "%s", err.message);
    cr_expect_str_eq(model->source, "embedded");
    cr_expect_eq(model->class_count, 10);
    cr_expect_eq(model->labels.count, 10);
    cr_expect_str_eq(labels_name(&model->labels, 7), "7");
    cr_expect_eq(model->image_input, 0);
    cr_expect_not(model->fixed_batch);
    cr_expect_gt(model->parameter_count, 1000);
    cr_expect_str_empty(model->warning, "%s", model->warning);
    model_free(model);
}

Test(model, reads_the_real_squeezenet)
{
    const char *shared = getenv("LENSD_SHARED");
    char path[512];
    snprintf(path, sizeof path, "%s/models/squeezenet-imagenet",
             shared ? shared : LENSD_SOURCE_ROOT "/../shared");
    if (access(path, R_OK))
        cr_skip("there is no %s", path);
    struct model *model;
    struct error err = {0};
    cr_assert_eq(model_load(path, NULL, NULL, &model, &err), STATUS_OK, "%s", err.message);
    cr_expect_str_eq(model->name, "squeezenet-imagenet");
    cr_expect_eq(model->inputs[model->image_input].dtype, DTYPE_F16);
    cr_expect(model->fixed_batch && model->file_batch == 1);
    cr_expect_eq(model->class_count, 1000);
    cr_expect_eq(model->labels.count, 1000);
    cr_expect(model->has_probabilities);
    cr_expect_eq(model->preprocess.channels, CHANNELS_BGR);
    cr_expect_eq(model->preprocess.mean[2], 123);
    cr_expect_eq(model->preprocess.resize_short, 256);
    cr_expect_str_empty(model->warning, "%s", model->warning);
    model_free(model);
}

/* ---- what went wrong, and with which file ---- */

Test(model, a_folder_without_onnx_says_what_to_do)
{
    struct folder folder = make_folder();
    expect_failure(&folder, STATUS_NOT_FOUND, "found 0 of those; export");
    put_text(&folder, "config.json", "{}");
    expect_failure(&folder, STATUS_NOT_FOUND, "but config.json: export it to ONNX first");
    put_text(&folder, "model.ort", "x");
    expect_failure(&folder, STATUS_NOT_FOUND,
                   "but model.ort: this is ONNX Runtime's own format; add the .onnx file");
    put_text(&folder, "a.safetensors", "x");
    expect_failure(&folder, STATUS_NOT_FOUND, "but a.safetensors: export");
    remove_folder(&folder);
    folder = make_folder();
    put_text(&folder, "model.safetensors", "x");
    expect_failure(&folder, STATUS_NOT_FOUND,
                   "but model.safetensors: export it to ONNX first (models/export/README.md)");
    put_net(&folder, "a.onnx", &plain_net);
    put_net(&folder, "b.onnx", &plain_net);
    expect_failure(&folder, STATUS_NOT_FOUND, "found 2 of those; name the .onnx file");
    remove_folder(&folder);
}

Test(model, labels_of_other_names)
{
    static const char *const files[][2] = {{"labels.json", "[\"cat\", \"dog\"]"},
                                           {"imagenet_classes.txt", "cat\ndog\n"}};
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        struct folder folder = make_folder();
        struct model *model;
        struct error err = {0};
        put_net(&folder, "model.onnx", &plain_net);
        put_text(&folder, files[i][0], files[i][1]);
        cr_assert_eq(model_load(folder.path, NULL, NULL, &model, &err), STATUS_OK, "%s",
                     err.message);
        cr_expect_str_eq(model->labels_source, files[i][0]);
        cr_expect_str_eq(labels_name(&model->labels, 1), "dog");
        model_free(model);
        remove_folder(&folder);
    }
}

Test(model, errors_of_configurations_name_their_file)
{
    static const char *const names[] = {"preprocessor_config.json", "config.json"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct folder folder = make_folder();
        char words[256];
        put_net(&folder, "model.onnx", &plain_net);
        put_text(&folder, names[i], "");
        snprintf(words, sizeof words, "%s/%s: the file is empty", folder.path, names[i]);
        struct model *model = NULL;
        struct error err = {0};
        cr_expect_eq(model_load(folder.path, NULL, NULL, &model, &err), STATUS_MODEL);
        cr_expect_str_eq(err.message, words);
        remove_folder(&folder);
    }
}

/* ---- several outputs with a row per image ---- */

/* An output of a net: its classes, and what computes it from the output before it, or NULL. */
struct head {
    const char *name;
    int classes;
    const char *op;
};

/* GlobalAveragePool → Flatten, and then a Gemm for each head; "*Softmax": a Gemm and then that. */
static void put_heads(const struct folder *folder, const struct head *heads, size_t count)
{
    struct make make = make_model();
    static const float weights[8 * 8] = {1};
    MAKE_INPUT(&make, "image", 1, 4, -1, 3, 32, 32);
    make_add_node(&make, "GlobalAveragePool", "image", "pooled");
    make_add_node(&make, "Flatten", "pooled", "flat");
    for (size_t i = 0; i < count; i++) {
        char w[16], inputs[64], product[32];
        const char *op = heads[i].op;
        const bool is_own = !op || *op == '*', continues = op && !strcmp(op, "Gemm");
        const int depth = continues ? heads[i - 1].classes : 3;
        const int64_t dims[] = {heads[i].classes, depth};
        snprintf(w, sizeof w, "w%zu", i);
        snprintf(product, sizeof product, "%s%s", heads[i].name, op && is_own ? ".product" : "");
        snprintf(inputs, sizeof inputs, "%s,%s", is_own ? "flat" : heads[i - 1].name, w);
        if (is_own || continues) {
            make_initializer(&make,
                             make_tensor(&make, w, 1, weights,
                                         sizeof(float) * (size_t)(dims[0] * dims[1]), 2, dims));
            make_attr_int(&make, make_add_node(&make, "Gemm", inputs, product), "transB", 1);
        }
        if (op && !continues)
            make_add_node(&make, is_own ? op + 1 : op, is_own ? product : heads[i - 1].name,
                          heads[i].name);
        MAKE_OUTPUT(&make, heads[i].name, 1, 2, -1, heads[i].classes);
    }
    size_t size;
    uint8_t *bytes = make_pack(&make, &size);
    make_done(&make);
    put(folder, "model.onnx", bytes, size);
    free(bytes);
}

Test(model, chooses_the_output_with_the_scores)
{
    static const struct {
        struct head heads[5];
        int labels;
        const char *chosen; /* NULL: none, and `says` names them */
        const char *says;
    } cases[] = {
        /* MTCNN's: the first output has a row per image, too. */
        {{{"boxes", 4, NULL}, {"probs", 2, "*Softmax"}}, 2, "probs", "leaves out 'boxes'"},
        {{{"boxes", 4, NULL}, {"landmarks", 8, NULL}, {"p", 2, NULL}}, 4, "p", "'landmarks'"},
        {{{"125", 4, NULL}, {"130", 2, "*Softmax"}}, 0, "130", "leaves out '125'"},
        {{{"b", 4, NULL}, {"a", 2, NULL}}, 2, "a", "leaves out 'b'"},
        {{{"boxes", 4, NULL}}, 4, NULL, "the name of output 'boxes' is unusual for class scores"},
        /* The vector, or the logits, that the scores are made of. */
        {{{"495", 8, NULL}, {"496", 3, "Gemm"}}, 0, "496", ""},
        {{{"x", 3, NULL}, {"y", 3, "Softmax"}}, 0, "y", ""},
        {{{"image_embeds", 8, NULL}, {"z", 3, NULL}}, 0, "z", ""},
        {{{"aux", 3, NULL}, {"main", 3, NULL}}, 0, "main", ""},
        /* Several questions: none is answered as if it were the only one. */
        {{{"age", 1, NULL}, {"gender", 2, NULL}}, 0, NULL, "'age', 'gender'"},
        {{{"d1", 8, "*Softmax"}, {"d2", 8, "*Softmax"}, {"d3", 8, "*Softmax"}},
         8,
         NULL,
         "3 outputs may be scores ('d1', 'd2', 'd3'): write {\"output\": \"d1\"}"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct folder folder = make_folder();
        size_t count = 0;
        while (count < COUNT_OF(cases[i].heads) && cases[i].heads[count].name)
            count++;
        put_heads(&folder, cases[i].heads, count);
        if (cases[i].labels)
            put_text(&folder, "labels.txt",
                     &"a\nb\nc\nd\ne\nf\ng\nh\n"[(size_t)(2 * (8 - cases[i].labels))]);
        struct model *model = load_at(&folder, ".");
        const bool is_classifier = model->task.kind == TASK_CLASSIFICATION;
        cr_expect_eq(is_classifier, cases[i].chosen != NULL, "%zu: %s", i, model->task.evidence);
        if (is_classifier && cases[i].chosen)
            cr_expect_str_eq(model->outputs[model->output].name, cases[i].chosen);
        cr_expect(strstr(model->task.evidence, cases[i].says), "%zu: '%s' does not say '%s'", i,
                  model->task.evidence, cases[i].says);
        model_free(model);
        remove_folder(&folder);
    }
}

Test(model, answers_with_the_output_that_lensd_json_names)
{
    const struct head heads[] = {{"age", 8, NULL}, {"gender", 2, "*Softmax"}, {"glasses", 2, NULL}};
    struct folder folder = make_folder();
    put_heads(&folder, heads, COUNT_OF(heads));
    put_text(&folder, "lensd.json", "{\"output\": \"glasses\"}");
    struct model *model = load_at(&folder, ".");
    cr_expect_eq(model->task.kind, TASK_CLASSIFICATION);
    cr_expect_str_eq(model->outputs[model->output].name, "glasses");
    cr_expect(!model->has_probabilities && model->class_count == 2);
    model_free(model);
    put_text(&folder, "lensd.json", "{\"output\": \"hair\"}");
    expect_failure(&folder, STATUS_MODEL, "no output of that name");
    remove_folder(&folder);
}
