/* Reads and writes NumPy's .npy files. */
#include "tests/conformance/npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_MAX ((size_t)4096)

static const struct {
    enum dtype dtype;
    const char *word;
} words[] = {
    {DTYPE_F32, "<f4"},  {DTYPE_U8, "|u1"},   {DTYPE_I8, "|i1"},  {DTYPE_U16, "<u2"},
    {DTYPE_I16, "<i2"},  {DTYPE_I32, "<i4"},  {DTYPE_I64, "<i8"}, {DTYPE_BOOL, "|b1"},
    {DTYPE_F16, "<f2"},  {DTYPE_F64, "<f8"},  {DTYPE_U32, "<u4"}, {DTYPE_U64, "<u8"},
    {DTYPE_BF16, "<V2"}, {DTYPE_BF16, "|V2"},
};

/* The text between the quotes after 'key': in the header's Python dictionary. */
static enum dtype find_dtype(const char *head)
{
    const char *descr = strstr(head, "'descr':");
    for (size_t i = 0; descr && i < sizeof words / sizeof *words; i++) {
        const char *quote = strchr(descr + 8, '\'');
        if (quote && !strncmp(quote + 1, words[i].word, 3) && quote[4] == '\'')
            return words[i].dtype;
    }
    return DTYPE_NONE;
}

static bool find_shape(const char *head, struct shape *ret)
{
    const char *text = strstr(head, "'shape': (");
    *ret = SHAPE_SCALAR;
    if (!text)
        return false;
    for (text += 10; *text != ')';) {
        char *end;
        int64_t dim = strtoll(text, &end, 10);
        if (end == text || ret->rank == TENSOR_MAX_RANK)
            return false;
        ret->dims[ret->rank++] = dim;
        text = end + strspn(end, ", ");
    }
    return true;
}

static bool read_head(FILE *file, char head[static HEAD_MAX])
{
    unsigned char start[12];
    if (fread(start, 1, 10, file) != 10 || memcmp(start, "\x93NUMPY", 6) != 0 || start[6] < 1 ||
        start[6] > 3)
        return false;
    size_t length = start[8] | (size_t)start[9] << 8;
    if (start[6] > 1) {
        if (fread(start + 10, 1, 2, file) != 2)
            return false;
        length |= (size_t)start[10] << 16 | (size_t)start[11] << 24;
    }
    if (length >= HEAD_MAX || fread(head, 1, length, file) != length)
        return false;
    head[length] = '\0';
    return true;
}

enum status npy_read(const char *path, struct tensor **ret, struct error *err)
{
    char head[HEAD_MAX];
    struct shape shape;
    FILE *file = fopen(path, "rb");
    if (!file)
        return error_set(err, STATUS_IO, "cannot open %s", path);
    enum status status = STATUS_OK;
    enum dtype dtype = DTYPE_NONE;
    if (!read_head(file, head))
        status = error_set(err, STATUS_IO, "%s is no .npy file", path);
    else if ((dtype = find_dtype(head)) == DTYPE_NONE || !find_shape(head, &shape) ||
             !strstr(head, "'fortran_order': False"))
        status = error_set(err, STATUS_UNSUPPORTED, "%s: cannot take an array %.200s", path, head);
    if (status == STATUS_OK)
        status = tensor_create(NULL, dtype, &shape, ret, err);
    if (status == STATUS_OK && fread((*ret)->data, 1, (*ret)->bytes, file) != (*ret)->bytes) {
        tensor_unref(*ret);
        *ret = NULL;
        status = error_set(err, STATUS_IO, "%s is shorter than its shape", path);
    }
    fclose(file);
    return status;
}

static void write_head(const struct tensor *tensor, char head[static 256])
{
    const char *word = "";
    for (size_t i = 0; i < sizeof words / sizeof *words && !*word; i++)
        if (words[i].dtype == tensor->dtype)
            word = words[i].word;
    int used = snprintf(head, 256, "{'descr': '%s', 'fortran_order': False, 'shape': (", word);
    for (int d = 0; d < tensor->shape.rank; d++)
        used +=
            snprintf(head + used, 256 - (size_t)used, "%lld,", (long long)tensor->shape.dims[d]);
    used += snprintf(head + used, 256 - (size_t)used, "), }");
    while ((10 + used + 1) % 64) /* data starts at a multiple of 64 */
        head[used++] = ' ';
    head[used++] = '\n';
    head[used] = '\0';
}

enum status npy_write(const char *path, const struct tensor *tensor, struct error *err)
{
    char head[256 + 64];
    FILE *file = fopen(path, "wb");
    if (!file)
        return error_set(err, STATUS_IO, "cannot write %s", path);
    write_head(tensor, head);
    size_t length = strlen(head);
    unsigned char start[10] = "\x93NUMPY\x01";
    start[8] = (unsigned char)(length & 255);
    start[9] = (unsigned char)(length >> 8);
    bool ok = fwrite(start, 1, 10, file) == 10 && fwrite(head, 1, length, file) == length &&
              fwrite(tensor->data, 1, tensor->bytes, file) == tensor->bytes;
    ok = fclose(file) == 0 && ok;
    return ok ? STATUS_OK : error_set(err, STATUS_IO, "cannot write %s", path);
}
