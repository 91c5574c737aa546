/* External data: tensors whose bytes lie in another file of the model's folder.
 *
 * The other file must be inside the folder: no absolute path, no "..", no link that leads out of
 * the folder (CVE-2022-25882, CVE-2024-27318, CVE-2026-27489, CVE-2026-34447). Only regular files
 * are read. Large tensors are mapped (engine/tensor/tensor_file.h), and other tensors are read with
 * pread(). In both cases a file that shrinks meanwhile gives an error, not a signal.
 *
 * Hard links are accepted, because model stores use hard links to keep equal files only once.
 * Anyone who can make a hard link in a model's folder could also copy the file there
 * (CVE-2026-34446 is about unpacking archives, which lensd does not do). */
#include "models/onnx/onnx_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "models/onnx/access.h"

static enum status check_location(const char *location, struct error *err)
{
    if (!*location)
        return error_set(err, STATUS_MODEL, "external data without a location");
    if (*location == '/')
        return error_set(err, STATUS_MODEL,
                         "external data at the absolute path '%.200s'; it must lie in the model's "
                         "folder",
                         location);
    for (const char *at = location; *at;) {
        size_t size = strcspn(at, "/");
        if (size == 2 && !memcmp(at, "..", 2))
            return error_set(err, STATUS_MODEL,
                             "external data at '%.200s' would leave the model's folder", location);
        at += size;
        at += *at == '/';
    }
    return STATUS_OK;
}

static void forget(struct onnx_file *file)
{
    if (file->external_fd >= 0)
        close(file->external_fd);
    free(file->external_name);
    file->external_fd = -1;
    file->external_name = NULL;
}

static enum status open_external(struct onnx_file *file, const char *location, struct error *err)
{
    if (file->external_name && !strcmp(file->external_name, location))
        return STATUS_OK;
    forget(file);
    TRY(check_location(location, err));
    if (file->folder < 0)
        return error_set(err, STATUS_MODEL,
                         "external data ('%.200s') needs a model that is read from a file",
                         location);
    int fd = file_open_beneath(file->folder, location);
    if (fd < 0 && (errno == EXDEV || errno == ELOOP))
        return error_set(err, STATUS_MODEL,
                         "external data '%.200s' leads out of the model's folder through a link; "
                         "put the file itself there",
                         location);
    if (fd < 0)
        return error_set(err, STATUS_IO,
                         "external data '%.200s' cannot be opened beside the model: %s%s", location,
                         strerror(errno), access_advice(location, errno));
    struct stat info;
    if (fstat(fd, &info) || !S_ISREG(info.st_mode)) {
        close(fd);
        return error_set(err, STATUS_MODEL, "external data '%.200s' is not a regular file",
                         location);
    }
    file->external_fd = fd;
    file->external_size = (uint64_t)info.st_size;
    file->external_name = strdup(location);
    TRY(check_memory(file->external_name, NULL, err));
    return STATUS_OK;
}

/* Reads a number of plain decimal digits below 2^63. */
static enum status parse_decimal(const char *key, const char *text, uint64_t *ret,
                                 struct error *err)
{
    const size_t digits = strspn(text, "0123456789");
    const uint64_t value = strtoull(text, NULL, 10); /* UINT64_MAX for larger numbers */
    if (digits == 0 || text[digits] || value > INT64_MAX)
        return error_set(err, STATUS_MODEL,
                         "external data: %s '%.40s' is not a non-negative decimal number", key,
                         text);
    *ret = value;
    return STATUS_OK;
}

static enum status find(struct onnx_file *file, const Onnx__TensorProto *proto, size_t bytes,
                        struct onnx_external *ret, struct error *err)
{
    static const char *const keys[] = {"location", "offset", "length"};
    const char *found[3] = {NULL};
    for (size_t i = 0; i < proto->n_external_data; i++) {
        const Onnx__StringStringEntryProto *entry = proto->external_data[i];
        for (size_t k = 0; k < 3; k++) {
            if (!entry->key || strcmp(entry->key, keys[k]))
                continue;
            if (found[k])
                return error_set(err, STATUS_MODEL, "external data: %s is given twice", keys[k]);
            found[k] = entry->value ? entry->value : "";
        }
    }
    uint64_t offset = 0, length;
    TRY(open_external(file, found[0] ? found[0] : "", err));
    if (found[1])
        TRY(parse_decimal("offset", found[1], &offset, err));
    if (offset > file->external_size)
        return error_set(err, STATUS_MODEL,
                         "external data: offset %llu lies beyond the end of '%.200s' (%llu bytes)",
                         (unsigned long long)offset, found[0],
                         (unsigned long long)file->external_size);
    length = file->external_size - offset;
    if (found[2]) {
        uint64_t given = 0;
        TRY(parse_decimal("length", found[2], &given, err));
        if (given > length)
            return error_set(err, STATUS_MODEL,
                             "external data: %llu bytes at offset %llu pass the end of '%.200s' "
                             "(%llu bytes)",
                             (unsigned long long)given, (unsigned long long)offset, found[0],
                             (unsigned long long)file->external_size);
        length = given;
    }
    /* Without a length the data extend to the end of the file. More bytes than the tensor needs are
     * then not an error, because other tensors may be in the same file. */
    if (found[2] ? length != bytes : length < bytes)
        return error_set(
            err, STATUS_MODEL,
            "external data: the tensor's shape needs %zu bytes, but '%.200s' provides %llu", bytes,
            found[0], (unsigned long long)length);
    file->external_bytes += bytes;
    *ret = (struct onnx_external){.fd = file->external_fd, .offset = offset};
    return STATUS_OK;
}

enum status onnx_external_find(struct onnx_file *file, const Onnx__TensorProto *proto, size_t bytes,
                               struct onnx_external *ret, struct error *err)
{
    enum status status = find(file, proto, bytes, ret, err);
    if (status != STATUS_OK && status != STATUS_NO_MEMORY)
        (void)error_advise(err, "copy the model's folder again with its data files, or export the "
                                "model again");
    return status;
}

enum status onnx_external_read(const struct onnx_external *external, void *data, size_t bytes,
                               struct error *err)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(external->fd, (char *)data + done, bytes - done,
                          (off_t)(external->offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return error_set(err, STATUS_IO, "external data: %s",
                             n < 0 ? strerror(errno) : "the file became shorter while being read");
        done += (size_t)n;
    }
    return STATUS_OK;
}
