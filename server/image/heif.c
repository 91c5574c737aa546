/* Decodes the primary picture of AVIF and HEIC with libheif, which uses dav1d and libde265. libheif
 * applies the container's own rotation, mirroring and crop, so the EXIF orientation is ignored.
 * Alpha is dropped.
 *
 * Libheif converts the colours. Before 1.16 (Debian 12) it enlarges chroma planes by repeating
 * samples; since then it interpolates, as libavif does.
 *
 * Hostile files: libheif limits boxes, references and tiles; the declared size is checked before
 * decoding. Libheif before 1.23 compares the declared size with that of the coded picture only
 * after decoding (strukturag/libheif issue 1220). A small file with a false size can take memory
 * for 65536 x 65536 pixels, beyond max_pixels and the budget. So image_use_old_libheif() must allow
 * such a version. The decoders start threads of their own, which inherit the confinement of the
 * decode worker.
 *
 * Source: libheif/heif.h 1.15. */
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/library.h"
#include "engine/base/size.h"
#include "server/image/decode.h"

struct heif_context;
struct heif_image_handle;
struct heif_image;

struct heif_error {
    int code, subcode;
    const char *message;
};

struct heif_options { /* the first members of struct heif_decoding_options */
    uint8_t version, ignores_transformations;
    void (*callbacks[3])(void);
    void *context;
    uint8_t to_8_bits;
};

struct heif_limits { /* the first members of struct heif_security_limits */
    uint8_t version;
    uint64_t max_pixels;
};

enum { HEIF_HEVC = 1, HEIF_AV1 = 4 }; /* heif_compression_format */
enum { HEIF_COLOURS_RGB = 1, HEIF_INTERLEAVED_RGB = 10, HEIF_INTERLEAVED = 10 };
enum { HEIF_UNSUPPORTED_TYPE = 3, HEIF_UNSUPPORTED = 4, HEIF_MEMORY = 6 }; /* heif_error_code */
enum { HEIF_OVER_LIMIT = 1000 };                                           /* heif_suberror_code */

static struct {
    struct heif_error (*init)(void *parameters);
    int (*can_decode)(int format);
    struct heif_context *(*alloc)(void);
    void (*free)(struct heif_context *context);
    void (*max_side)(struct heif_context *context, int side);
    void (*max_threads)(struct heif_context *context, int threads);
    struct heif_error (*read)(struct heif_context *context, const void *data, size_t size,
                              const void *options);
    struct heif_error (*primary)(struct heif_context *context, struct heif_image_handle **ret);
    void (*release)(const struct heif_image_handle *handle);
    int (*width)(const struct heif_image_handle *handle);
    int (*height)(const struct heif_image_handle *handle);
    int (*luma_bits)(const struct heif_image_handle *handle);
    struct heif_error (*decode)(const struct heif_image_handle *handle, struct heif_image **ret,
                                int colours, int chroma, const void *options);
    void (*image_release)(const struct heif_image *image);
    int (*channel_width)(const struct heif_image *image, int channel);
    int (*channel_height)(const struct heif_image *image, int channel);
    const uint8_t *(*channel)(const struct heif_image *image, int channel, int *ret_stride);
    struct heif_options *(*options)(void);
    void (*options_free)(struct heif_options *options);
} heif;

#define HEIF_SAFE 0x01170000u /* 1.23 */

static bool uses_old;

void image_use_old_libheif(bool uses)
{
    uses_old = uses;
}

/* The process that heif_load_in_child() starts has the state as its exit status. If a library ends
 * this process, the exit status is none of these. */
enum heif_state { HEIF_UNKNOWN, HEIF_USABLE = 50, HEIF_ABSENT, HEIF_TOO_OLD, HEIF_FAILED };

static enum heif_state heif_state;

/* heif_context_get_security_limits(); NULL with a libheif before 1.19 */
static struct heif_limits *(*heif_limits_of)(struct heif_context *context);

static enum heif_state heif_load(void)
{
    uint32_t (*version)(void) = NULL;
    const struct library_function functions[] = {
        {"heif_get_version_number", &version},
        {"heif_init", &heif.init},
        {"heif_have_decoder_for_format", &heif.can_decode},
        {"heif_context_alloc", &heif.alloc},
        {"heif_context_free", &heif.free},
        {"heif_context_set_maximum_image_size_limit", &heif.max_side},
        {"heif_context_set_max_decoding_threads", &heif.max_threads},
        {"heif_context_read_from_memory_without_copy", &heif.read},
        {"heif_context_get_primary_image_handle", &heif.primary},
        {"heif_image_handle_release", &heif.release},
        {"heif_image_handle_get_width", &heif.width},
        {"heif_image_handle_get_height", &heif.height},
        {"heif_image_handle_get_luma_bits_per_pixel", &heif.luma_bits},
        {"heif_decode_image", &heif.decode},
        {"heif_image_release", &heif.image_release},
        {"heif_image_get_width", &heif.channel_width},
        {"heif_image_get_height", &heif.channel_height},
        {"heif_image_get_plane_readonly", &heif.channel},
        {"heif_decoding_options_alloc", &heif.options},
        {"heif_decoding_options_free", &heif.options_free}};
    static const struct library_function newer[] = {
        {"heif_context_get_security_limits", &heif_limits_of}};
    static const char soname[] = "libheif.so.1";
    if (!library_load(soname, functions, COUNT_OF(functions)))
        return HEIF_ABSENT;
    (void)library_load(soname, newer, COUNT_OF(newer));
    if (version() < HEIF_SAFE && !uses_old)
        return HEIF_TOO_OLD;
    /* Loads the plug-ins now, because a confined decode worker cannot. */
    return heif.init(NULL).code == 0 ? HEIF_USABLE : HEIF_FAILED;
}

/* If memory runs out while libheif loads, libheif ends the process. So a child process loads it
 * first. If libheif is unusable, this process does not load it. */
static enum heif_state heif_load_in_child(void)
{
    int status = 0;
    (void)signal(SIGCHLD, SIG_DFL); /* if inherited as ignored, the exit status would be lost */
    const pid_t child = fork();
    if (child == 0) {
        (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        (void)close(STDERR_FILENO); /* keeps "terminate called after …" out of lensd's log */
        _exit((int)heif_load());
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    const int state = WIFEXITED(status) ? WEXITSTATUS(status) : HEIF_FAILED;
    return state >= HEIF_USABLE && state < HEIF_FAILED ? (enum heif_state)state : HEIF_FAILED;
}

/* Returns NULL, or what is missing: `package` if libheif or its plug-in is not installed. */
static const char *heif_find_decoder(int format, const char *package)
{
    if (heif_state == HEIF_UNKNOWN) {
        heif_state = heif_load_in_child();
        if (heif_state == HEIF_USABLE)
            heif_state = heif_load();
    }
    if (heif_state == HEIF_TOO_OLD)
        return "--old-libheif (may take gigabytes), or libheif 1.23";
    if (heif_state == HEIF_FAILED)
        return "a libheif that can be loaded (it ended a test process)";
    return heif_state == HEIF_USABLE && heif.can_decode(format) ? NULL : package;
}

const char *avif_load(void)
{
    return heif_find_decoder(HEIF_AV1,
                             "the Debian package libheif1, on Debian 13 also libheif-plugin-dav1d");
}

const char *heic_load(void)
{
    return heif_find_decoder(
        HEIF_HEVC, "the Debian package libheif1, on Debian 13 also libheif-plugin-libde265");
}

static enum status heif_failure(const char *name, struct heif_error cause, struct error *err)
{
    char text[100];
    library_text(cause.message, text, sizeof text);
    if (cause.code == HEIF_MEMORY && cause.subcode == HEIF_OVER_LIMIT)
        return error_set(err, STATUS_TOO_LARGE,
                         "the %s is larger than allowed (--max-side, --max-pixels): %.90s; send a "
                         "smaller picture",
                         name, text);
    if (cause.code == HEIF_MEMORY)
        return error_set(err, STATUS_NO_MEMORY,
                         "no memory to decode the %s; send a smaller picture or try again", name);
    if (cause.code == HEIF_UNSUPPORTED_TYPE || cause.code == HEIF_UNSUPPORTED)
        return error_set(err, STATUS_UNSUPPORTED_MEDIA,
                         "this kind of %s is not supported (%s); save the picture as JPEG or PNG",
                         name, text);
    return error_set(err, STATUS_BAD_IMAGE,
                     "the %s is damaged or ends early (%s); send the whole, intact file", name,
                     text);
}

/* Reads the header. The caller frees *ret, even after a failure. */
static enum status heif_open(struct decode *photo, struct heif_context *context,
                             struct heif_image_handle **ret, struct error *err)
{
    const struct image_limits *limits = photo->limits;
    heif.max_threads(context, 0); /* decode tiles sequentially */
    if (limits->max_side)
        heif.max_side(context, (int)limits->max_side);
    if (heif_limits_of && limits->max_pixels)
        heif_limits_of(context)->max_pixels = limits->max_pixels;
    struct heif_error cause = heif.read(context, photo->data, photo->size, NULL);
    if (cause.code == 0)
        cause = heif.primary(context, ret);
    if (cause.code != 0)
        return heif_failure(photo->name, cause, err);
    const int width = heif.width(*ret), height = heif.height(*ret);
    return decode_set_size(photo, width > 0 ? (size_t)width : 0, height > 0 ? (size_t)height : 0,
                           err);
}

static enum status heif_read_pixels(struct decode *photo, const struct heif_image_handle *handle,
                                    struct error *err)
{
    enum { DECODERS = 8 }; /* bytes per pixel: planes of decoder and libheif, and RGB */
    struct heif_image *image = NULL;
    const size_t row = (size_t)photo->width * 3;
    const size_t sample = heif.luma_bits(handle) > 8 ? 2 : 1;
    int stride = 0;
    TRY(decode_reserve(photo, 3, (size_t)photo->width * photo->height * DECODERS * sample, err));
    struct heif_options *options = heif.options();
    TRY(check_memory(options, "to decode a picture", err));
    options->to_8_bits = 1;
    const struct heif_error cause =
        heif.decode(handle, &image, HEIF_COLOURS_RGB, HEIF_INTERLEAVED_RGB, options);
    heif.options_free(options);
    if (cause.code != 0)
        return heif_failure(photo->name, cause, err);
    const uint8_t *pixels = heif.channel(image, HEIF_INTERLEAVED, &stride);
    const int width = heif.channel_width(image, HEIF_INTERLEAVED);
    const int height = heif.channel_height(image, HEIF_INTERLEAVED);
    enum status status = STATUS_OK;
    if (!pixels || stride < 0 || (size_t)stride < row || width < 0 || height < 0 ||
        (uint32_t)width != photo->width || (uint32_t)height != photo->height)
        status = error_set(err, STATUS_BAD_IMAGE,
                           "the %s is damaged (its picture does not have the size that it "
                           "declares); send an intact file",
                           photo->name);
    for (uint32_t y = 0; status == STATUS_OK && y < photo->height; y++)
        memcpy(photo->decoder->stored.data + y * row, pixels + (size_t)y * (size_t)stride, row);
    heif.image_release(image);
    return status;
}

enum status heif_decode(struct decode *photo, struct error *err)
{
    struct heif_image_handle *handle = NULL;
    struct heif_context *context = heif.alloc();
    TRY(check_memory(context, "to decode a picture", err));
    enum status status = heif_open(photo, context, &handle, err);
    if (photo->decoder)
        IF_OK(status, heif_read_pixels(photo, handle, err));
    if (handle)
        heif.release(handle);
    heif.free(context);
    return status;
}
