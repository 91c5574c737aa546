/* models/onnx*.c: files. The wire format, external data, what a file is instead of a model. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/size.h"
#include "engine/tensor/tensor_file.h"
#include "tests/conformance/tensor_pb.h"
#include "tests/unit/models/onnx_make.h"

enum { F32 = 1 };

/* ---- wire format ---- */

Test(onnx_files, survives_every_truncation_and_every_flipped_bit)
{
    struct make make = relu_model();
    make_attr_int(&make, make_add_node(&make, "Flatten", "x", "z"), "axis", 1);
    static const float weights[] = {1, 2, 3};
    make_initializer(&make,
                     make_tensor(&make, "w", F32, weights, sizeof weights, 1, (int64_t[]){3}));
    size_t size;
    uint8_t *bytes = make_pack(&make, &size);
    struct onnx_model model;
    struct error err;
    cr_assert_eq(onnx_load_memory(bytes, size, 0, &model, &err), STATUS_OK, "%s", err.message);
    onnx_model_done(&model);
    size_t accepted = 0;
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *exact = malloc(cut ? cut : 1); /* so that ASan sees a byte too far */
        memcpy(exact, bytes, cut);
        if (onnx_load_memory(exact, cut, 0, &model, &err) == STATUS_OK) {
            onnx_model_done(&model);
            accepted++;
        } else {
            cr_expect(*err.message);
        }
        free(exact);
    }
    cr_expect_leq(accepted, 1, "only a cut in front of the last field may be a whole model");
    for (size_t bit = 0; bit < size * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (onnx_load_memory(bytes, size, 0, &model, &err) == STATUS_OK)
            onnx_model_done(&model);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(bytes);
    make_done(&make);
}

/* What stands in front of a good model in the file. */
Test(onnx_files, judges_the_wire_format)
{
    static const struct {
        const char *name;
        const void *bytes;
        size_t size;
        const char *words; /* NULL: accepted */
    } cases[] = {
        {"unknown varint", "\xf8\x3f\x05", 3, NULL},
        {"unknown 64 bit", "\xf9\x3f\1\2\3\4\5\6\7\10", 10, NULL},
        {"unknown bytes", "\xfa\x3f\3abc", 6, NULL},
        {"unknown 32 bit", "\xfd\x3f\1\2\3\4", 6, NULL},
        {"unknown group with a group inside", "\xfb\x3f\xf3\x3f\x08\x01\xf4\x3f\xfc\x3f", 10, NULL},
        {"field number 0", "\x00\x01", 2, "field number"},
        {"wire type 6", "\x0e", 1, "wire type"},
        {"wire type 7", "\x0f", 1, "wire type"},
        {"stray end of a group", "\xfc\x3f", 2, "was not opened"},
        {"group closed by another", "\xfb\x3f\xf4\x3f", 4, "was not opened"},
        {"group that stays open", "\xfb\x3f", 2, "does not end"},
        {"varint of 11 bytes", "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12, "10 bytes"},
        {"length of 2^64-1", "\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, "passes the end"},
        {"length past the end", "\x12\x7f", 2, "end of the file"},
        {"known field of another wire type", "\x0a\x01x", 3, "ir_version"},
        {"known field as a group", "\x3b\x3c", 2, "group"},
        {"NUL in a name", "\x12\x03x\0y", 5, "NUL"},
        {"name that is not UTF-8", "\x12\x02\xc0\xaf", 4, "UTF-8"},
    };
    struct make make = relu_model();
    size_t size;
    uint8_t *model_bytes = make_pack(&make, &size);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        uint8_t *bytes = malloc(cases[i].size + size);
        memcpy(bytes, cases[i].bytes, cases[i].size);
        memcpy(bytes + cases[i].size, model_bytes, size);
        struct onnx_model model;
        struct error err = {0};
        enum status status = onnx_load_memory(bytes, cases[i].size + size, 0, &model, &err);
        cr_expect_eq(status, cases[i].words ? STATUS_MODEL : STATUS_OK, "%s: %s", cases[i].name,
                     err.message);
        if (cases[i].words)
            cr_expect(strstr(err.message, cases[i].words), "%s: %s", cases[i].name, err.message);
        if (status == STATUS_OK)
            onnx_model_done(&model);
        free(bytes);
    }
    free(model_bytes);
    make_done(&make);
}

Test(onnx_files, limits_nesting)
{
    /* Groups inside groups, then messages inside messages, far beyond what a stack would bear. */
    enum { DEPTH = 200000 };
    char *bytes = malloc(2 * DEPTH);
    for (size_t i = 0; i < DEPTH; i++) {
        bytes[2 * i] = '\xfb';
        bytes[2 * i + 1] = '\x3f';
    }
    struct onnx_model model;
    struct error err;
    cr_expect_eq(onnx_load_memory(bytes, 2 * DEPTH, 0, &model, &err), STATUS_MODEL);
    cr_expect(strstr(err.message, "nested deeper"), "%s", err.message);
    free(bytes);
}

Test(onnx_files, says_what_a_file_is_instead)
{
    static const struct {
        const char *bytes, *words;
    } cases[] = {
        {"", "empty"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"},
        {"<!DOCTYPE html><html>", "web page"},
        {"PK\x03\x04 zip", "torch.onnx.export"},
        {"\x89HDF\r\n", "Keras"},
        {"\xff\xd8\xff\xe0 JFIF", "a JPEG image"},
        {"\x89PNG\r\n\x1a\n", "a PNG image"},
        {"\x80\x02}q\x01", "pickle"},
        {"\x1f\x8b\x08", "gzip"},
        {"\x20\x01\x01\x01ORTM", "(.ort); use the .onnx file"},
        {"# ResNet-50\n\nA model of images.\n", "not an ONNX file: it looks like plain text"},
        {"\x08\x07\x3a\x7f\x0a", "damaged or incomplete: copy it again"},
        {"\x08\x07\x3f\x7f", "malformed file: an unknown wire type"},
    };
    char path[] = "/tmp/lensd_test_onnx_XXXXXX";
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        size_t size = strlen(cases[i].bytes);
        cr_assert_eq(ftruncate(fd, 0), 0);
        cr_assert_eq(pwrite(fd, cases[i].bytes, size, 0), (ssize_t)size);
        struct onnx_model model;
        struct error err;
        cr_expect_eq(onnx_load_file(path, 0, &model, &err), STATUS_MODEL);
        cr_expect(strstr(err.message, cases[i].words), "%s", err.message);
    }
    close(fd);
    unlink(path);
}

/* ---- external data ---- */

struct folder {
    char path[64];
    char model[96];
};

static void write_file(const struct folder *folder, const char *name, const void *data, size_t size)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder->path, name);
    FILE *file = fopen(path, "wb");
    cr_assert(file, "%s", path);
    cr_assert_eq(fwrite(data, 1, size, file), size);
    fclose(file);
}

static struct folder make_folder(void)
{
    struct folder folder = {.path = "/tmp/lensd_test_onnx_XXXXXX"};
    char path[256];
    const float numbers[] = {1, 2, 3, 4, 5, 6, 7, 8};
    cr_assert(mkdtemp(folder.path));
    snprintf(path, sizeof path, "%s/m", folder.path);
    mkdir(path, 0700);
    snprintf(folder.model, sizeof folder.model, "%s/m/model.onnx", folder.path);
    write_file(&folder, "outside.bin", numbers, sizeof numbers);
    write_file(&folder, "m/w.bin", numbers, sizeof numbers);
    snprintf(path, sizeof path, "%s/m/sub", folder.path);
    mkdir(path, 0700);
    write_file(&folder, "m/sub/w.bin", numbers, sizeof numbers);
    snprintf(path, sizeof path, "%s/m/out", folder.path);
    cr_assert_eq(symlink("../outside.bin", path), 0);
    snprintf(path, sizeof path, "%s/m/up", folder.path);
    cr_assert_eq(symlink("..", path), 0);
    snprintf(path, sizeof path, "%s/m/in", folder.path);
    cr_assert_eq(symlink("sub/w.bin", path), 0);
    snprintf(path, sizeof path, "%s/m/fifo", folder.path);
    cr_assert_eq(mkfifo(path, 0600), 0);
    return folder;
}

static void remove_folder(const struct folder *folder)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder->path);
    cr_expect_eq(system(command), 0);
}

Test(onnx_files, keeps_external_data_in_its_folder, .timeout = 20)
{
    static const struct {
        const char *location, *offset, *length;
        double first; /* 0: refused */
        const char *words;
    } cases[] = {
        {"w.bin", NULL, NULL, 1, NULL},
        {"./w.bin", "8", "8", 3, NULL},
        {"sub//w.bin", "24", NULL, 7, NULL},
        {"in", "4", "8", 2, NULL},     /* a link that stays inside */
        {"w.bin", "2", "8", -1, NULL}, /* not aligned: any number will do */
        {"../outside.bin", NULL, NULL, 0, "leave the model's folder"},
        {"sub/../../outside.bin", NULL, NULL, 0, "leave the model's folder"},
        {"out", NULL, NULL, 0, "through a link"},
        {"up/outside.bin", NULL, NULL, 0, "through a link"},
        {"/etc/passwd", NULL, NULL, 0, "absolute"},
        {"sub", NULL, NULL, 0, "regular file"},
        {"fifo", NULL, NULL, 0, "regular file"},
        {"nowhere.bin", NULL, NULL, 0, "cannot be opened"},
        {"", NULL, NULL, 0, "without a location"},
        {"w.bin", "-4", NULL, 0, "decimal"},
        {"w.bin", "0x8", NULL, 0, "decimal"},
        {"w.bin", "33", NULL, 0, "beyond the end"},
        {"w.bin", "8", "28", 0, "pass the end"},
        {"w.bin", "8", "18446744073709551612", 0, "decimal"},
        {"w.bin", "0", "4", 0, "needs 8 bytes"},
        {"w.bin", "0", "12", 0, "needs 8 bytes"},
        {"w.bin", "28", NULL, 0, "needs 8 bytes"},
    };
    struct folder folder = make_folder();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct make make = make_model();
        Onnx__TensorProto *tensor = make_tensor(&make, "w", F32, NULL, 0, 1, (int64_t[]){2});
        make_external(&make, tensor, "location", cases[i].location);
        if (cases[i].offset)
            make_external(&make, tensor, "offset", cases[i].offset);
        if (cases[i].length)
            make_external(&make, tensor, "length", cases[i].length);
        make_external(&make, tensor, "checksum", "ignored");
        make_initializer(&make, tensor);
        MAKE_OUTPUT(&make, "w", F32, 1, 2);
        size_t size;
        uint8_t *bytes = make_pack(&make, &size);
        write_file(&folder, "m/model.onnx", bytes, size);
        struct onnx_model model = {0};
        struct error err = {0};
        enum status status = onnx_load_file(folder.model, 0, &model, &err);
        cr_expect_eq(status == STATUS_OK, cases[i].first != 0, "%zu %s: %s", i, cases[i].location,
                     err.message);
        if (status == STATUS_OK && cases[i].first > 0)
            cr_expect_eq(tensor_number(model.graph->outputs[0]->known, 0), cases[i].first);
        if (status != STATUS_OK)
            cr_expect(strstr(err.message, cases[i].words), "%zu: %s", i, err.message);
        onnx_model_done(&model);
        free(bytes);
        make_done(&make);
    }
    remove_folder(&folder);
}

/* Large tensors at an aligned offset are mapped, the others are copied: the same numbers. */
Test(onnx_files, maps_large_external_data)
{
    enum { COUNT = 40000 };
    static float numbers[COUNT + 16];
    static const struct {
        const char *offset;
        bool mapped;
    } cases[] = {{"0", true}, {"64", true}, {"4", true}, {"2", false}};
    struct folder folder = make_folder();
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        numbers[i] = (float)i;
    write_file(&folder, "m/big.bin", numbers, sizeof numbers);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct make make = make_model();
        Onnx__TensorProto *tensor = make_tensor(&make, "w", F32, NULL, 0, 1, (int64_t[]){COUNT});
        make_external(&make, tensor, "location", "big.bin");
        make_external(&make, tensor, "offset", cases[i].offset);
        make_external(&make, tensor, "length", "160000");
        make_initializer(&make, tensor);
        MAKE_OUTPUT(&make, "w", F32, 1, COUNT);
        size_t size;
        uint8_t *bytes = make_pack(&make, &size);
        write_file(&folder, "m/model.onnx", bytes, size);
        struct onnx_model model = {0};
        struct error err = {0};
        cr_assert_eq(onnx_load_file(folder.model, 0, &model, &err), STATUS_OK, "%s", err.message);
        const struct tensor *known = model.graph->outputs[0]->known;
        cr_expect_eq(tensor_mapping(known) != NULL, cases[i].mapped);
        if (cases[i].mapped) { /* else half a number: only that nothing falls over */
            float first = strtof(cases[i].offset, NULL) / 4;
            cr_expect_eq(((const float *)known->data)[0], first);
            cr_expect_eq(((const float *)known->data)[COUNT - 1], first + COUNT - 1);
        }
        onnx_model_done(&model);
        /* Less than the tensor, which is charged only where it is read. */
        const size_t memory_limit = 150000;
        cr_expect_eq(onnx_load_file(folder.model, memory_limit, &model, &err),
                     cases[i].mapped ? STATUS_OK : STATUS_NO_MEMORY);
        if (cases[i].mapped)
            onnx_model_done(&model);
        free(bytes);
        make_done(&make);
    }
    remove_folder(&folder);
}

/* Of a model with the name in front of the weights: whether they are mapped, at an offset of whole
 * elements, or copied. */
static bool maps_weights_behind(const struct folder *folder, const char *name)
{
    enum { COUNT = 40000 };
    static float numbers[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        numbers[i] = (float)i;
    struct make make = make_model();
    make_initializer(&make,
                     make_tensor(&make, name, F32, numbers, sizeof numbers, 1, (int64_t[]){COUNT}));
    MAKE_OUTPUT(&make, name, F32, 1, COUNT);
    size_t size;
    uint8_t *bytes = make_pack(&make, &size);
    write_file(folder, "m/model.onnx", bytes, size);
    struct onnx_model model = {0};
    struct error err = {0};
    cr_assert_eq(onnx_load_file(folder->model, 0, &model, &err), STATUS_OK, "%s", err.message);
    const struct tensor *known = model.graph->outputs[0]->known;
    const bool is_mapped = tensor_mapping(known) != NULL;
    cr_expect_eq((uintptr_t)known->data % sizeof(float), 0);
    cr_expect_eq(memcmp(known->data, numbers, sizeof numbers), 0);
    onnx_model_done(&model);
    /* Less than the weights, which are charged only where they are copied. */
    const size_t memory_limit = 150000;
    cr_expect_eq(onnx_load_file(folder->model, memory_limit, &model, &err),
                 is_mapped ? STATUS_OK : STATUS_NO_MEMORY);
    if (is_mapped)
        onnx_model_done(&model);
    free(bytes);
    make_done(&make);
    return is_mapped;
}

Test(onnx_files, maps_large_weights_in_the_file)
{
    static const char *const names[] = {"w", "wx", "wxy", "wxyz"};
    struct folder folder = make_folder();
    size_t mapped = 0;
    for (size_t i = 0; i < COUNT_OF(names); i++)
        mapped += maps_weights_behind(&folder, names[i]);
    cr_expect_eq(mapped, 1, "one of four offsets is a multiple of 4, not %zu", mapped);
    remove_folder(&folder);
}

/* ---- listing ---- */

Test(onnx_files, lists_all_operators_of_a_file_it_cannot_run)
{
    struct make make = relu_model();
    make_add_node(&make, "Frobnicate", "y", "f");
    make_add_node(&make, "Relu", "f", "g");
    char path[] = "/tmp/lensd_test_onnx_XXXXXX";
    int fd = mkstemp(path);
    size_t size, count = 0;
    uint8_t *bytes = make_pack(&make, &size);
    cr_assert_eq(write(fd, bytes, size), (ssize_t)size);
    close(fd);
    struct onnx_op_use *uses = NULL;
    struct error err = {0};
    cr_assert_eq(onnx_list_ops(path, NULL, 0, &uses, &count, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(count, 2);
    cr_expect_str_eq(uses[0].name, "Relu");
    cr_expect_eq(uses[0].count, 2);
    cr_expect(uses[0].supported);
    cr_expect_eq(uses[0].opset, 13);
    cr_expect_str_eq(uses[1].name, "Frobnicate");
    cr_expect_not(uses[1].supported);
    free(uses);
    free(bytes);
    unlink(path);
    make_done(&make);
}

static void write_name(void *context, bool is_output, const char *name)
{
    fprintf(context, "%s %s;", is_output ? "out" : "in", name);
}

Test(onnx_files, visits_names_of_inputs_and_outputs)
{
    struct make make = relu_model();
    char path[] = "/tmp/lensd_test_onnx_XXXXXX", names[200];
    const int fd = mkstemp(path);
    size_t size;
    uint8_t *bytes = make_pack(&make, &size);
    cr_assert_eq(write(fd, bytes, size), (ssize_t)size);
    for (size_t cut = 0; cut < size; cut++) { /* a part of the file has all of them, or none */
        FILE *out = fmemopen(names, sizeof names, "w");
        onnx_visit_names(path, write_name, out);
        fclose(out);
        cr_expect(!strcmp(names, "in x;out y;") || (cut > 0 && !names[0]), "%s", names);
        cr_assert_eq(ftruncate(fd, (off_t)(size - cut - 1)), 0);
    }
    onnx_visit_names("/nonexistent", write_name, NULL);
    close(fd);
    free(bytes);
    unlink(path);
    make_done(&make);
}

Test(onnx_files, visits_no_names_of_a_file_with_millions, .timeout = 60)
{
    enum { NAMES = 12000000 };
    /* graph: input x, then inputs without a name */
    static const char start[] = "\x3a\x85\xec\xb8\x0b\x5a\x03\x0a\x01x";
    char path[] = "/tmp/lensd_test_onnx_XXXXXX", names[200] = "";
    const int fd = mkstemp(path);
    char *rest = alloc_array(NAMES, 2);
    for (size_t i = 0; i < NAMES; i++)
        rest[2 * i] = 0x5a;
    FILE *out = fmemopen(names, sizeof names, "w");
    cr_assert_eq(write(fd, start, sizeof start - 1), (ssize_t)sizeof start - 1);
    cr_assert_eq(write(fd, rest, 2 * (size_t)NAMES), (ssize_t)2 * NAMES);
    onnx_visit_names(path, write_name, out);
    fclose(out);
    cr_expect_str_empty(names);
    close(fd);
    free(rest);
    unlink(path);
}

Test(onnx_files, reads_single_tensors)
{
    /* dims 2, data_type 1, raw_data 8 bytes */
    static const char bytes[] = "\x08\x02\x10\x01\x4a\x08\x00\x00\x80\x3f\x00\x00\x00\x40";
    struct tensor *tensor = NULL;
    struct error err = {0};
    cr_assert_eq(load_tensor_pb(bytes, sizeof bytes - 1, &tensor, &err), STATUS_OK, "%s",
                 err.message);
    cr_expect_eq(tensor->dtype, DTYPE_F32);
    cr_expect_eq(tensor_number(tensor, 1), 2);
    tensor_unref(tensor);
    for (size_t size = 0; size < sizeof bytes - 1; size++)
        cr_expect_neq(load_tensor_pb(bytes, size, &tensor, &err), STATUS_OK, "%zu bytes", size);
}
