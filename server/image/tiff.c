/* Decodes the first picture of a TIFF with libtiff: grey, palettes, RGB, CMYK and YCbCr of 1 … 16
 * bits, in strips or tiles. Drops alpha. If the file has colours that were multiplied by alpha,
 * divides them by alpha, as Pillow does. Reduces 16 bits to 8.
 *
 * Hostile files: only the compressions listed below are read, because others use further decoders
 * (libtiff's JBIG, LERC, ZSTD …). Sides, tiles and strips are checked before libtiff allocates
 * memory for them. An allocation of libtiff may not exceed ALLOCATION bytes. libtiff's messages go
 * to the error of this decode, not to stderr.
 *
 * Source: tiffio.h of libtiff 4.5, the first version with options for each file. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/library.h"
#include "engine/base/size.h"
#include "server/image/decode.h"

struct tiff;         /* TIFF */
struct tiff_options; /* TIFFOpenOptions */

typedef int64_t tiff_size;    /* tmsize_t */
typedef uint64_t tiff_offset; /* toff_t */
typedef int (*tiff_handler)(struct tiff *tiff, void *context, const char *module,
                            const char *format, va_list values);

static struct {
    struct tiff_options *(*options)(void);
    void (*options_free)(struct tiff_options *options);
    void (*limit)(struct tiff_options *options, tiff_size most);
    void (*on_error)(struct tiff_options *options, tiff_handler handler, void *context);
    void (*on_warning)(struct tiff_options *options, tiff_handler handler, void *context);
    struct tiff *(*open)(const char *name, const char *mode, void *context,
                         tiff_size (*read)(void *, void *, tiff_size),
                         tiff_size (*write)(void *, void *, tiff_size),
                         tiff_offset (*seek)(void *, tiff_offset, int), int (*close)(void *),
                         tiff_offset (*size)(void *), int (*map)(void *, void **, tiff_offset *),
                         void (*unmap)(void *, void *, tiff_offset), struct tiff_options *options);
    void (*close)(struct tiff *tiff);
    int (*get)(struct tiff *tiff, uint32_t tag, ...);
    int (*get_or_default)(struct tiff *tiff, uint32_t tag, ...);
    int (*set)(struct tiff *tiff, uint32_t tag, ...);
    int (*is_tiled)(struct tiff *tiff);
    tiff_size (*tile_size)(struct tiff *tiff);
    tiff_size (*strip_size)(struct tiff *tiff);
    int (*can_read)(struct tiff *tiff, char text[1024]);
    int (*read)(struct tiff *tiff, uint32_t width, uint32_t height, uint32_t *pixels,
                int orientation, int stops);
} tiff;

const char *tiff_load(void)
{
    static const struct library_function functions[] = {
        {"TIFFOpenOptionsAlloc", &tiff.options},
        {"TIFFOpenOptionsFree", &tiff.options_free},
        {"TIFFOpenOptionsSetMaxSingleMemAlloc", &tiff.limit},
        {"TIFFOpenOptionsSetErrorHandlerExtR", &tiff.on_error},
        {"TIFFOpenOptionsSetWarningHandlerExtR", &tiff.on_warning},
        {"TIFFClientOpenExt", &tiff.open},
        {"TIFFClose", &tiff.close},
        {"TIFFGetField", &tiff.get},
        {"TIFFGetFieldDefaulted", &tiff.get_or_default},
        {"TIFFSetField", &tiff.set},
        {"TIFFIsTiled", &tiff.is_tiled},
        {"TIFFTileSize", &tiff.tile_size},
        {"TIFFStripSize", &tiff.strip_size},
        {"TIFFRGBAImageOK", &tiff.can_read},
        {"TIFFReadRGBAImageOriented", &tiff.read}};
    return library_load("libtiff.so.6", functions, COUNT_OF(functions))
               ? NULL
               : "the Debian package libtiff6";
}

/* Tags and their values. */
enum {
    TIFF_WIDTH = 256,
    TIFF_HEIGHT = 257,
    TIFF_COMPRESSION = 259,
    TIFF_COLOURS = 262, /* PhotometricInterpretation */
    TIFF_ORIENTATION = 274,
    TIFF_TILE_WIDTH = 322,
    TIFF_TILE_HEIGHT = 323,
    TIFF_EXTRA_SAMPLES = 338,
    ALPHA_MULTIPLIED = 1,
    ALPHA_SEPARATE = 2,
    COLOURS_LAB = 8,
    COLOURS_ITU_LAB = 10, /* 9 is ICC's */
};

/* A TIFF in memory. */
struct tiff_file {
    struct decode *photo;
    size_t at;
    char text[160]; /* libtiff's first message about the file */
    /* Set by tiff_read_head(). */
    size_t working;     /* bytes of a strip or tile */
    bool is_multiplied; /* the colours were multiplied with their alpha */
};

static tiff_size tiff_on_read(void *context, void *bytes, tiff_size count)
{
    struct tiff_file *file = context;
    const size_t left = file->at < file->photo->size ? file->photo->size - file->at : 0;
    const size_t taken = count < 0 ? 0 : (size_t)count < left ? (size_t)count : left;
    memcpy(bytes, file->photo->data + (taken ? file->at : 0), taken);
    file->at += taken;
    return (tiff_size)taken;
}

static tiff_offset tiff_on_seek(void *context, tiff_offset offset, int from)
{
    struct tiff_file *file = context;
    const size_t base = from == SEEK_CUR ? file->at : from == SEEK_END ? file->photo->size : 0;
    file->at =
        base + (size_t)offset; /* a negative offset wraps around; tiff_on_read() checks `at` */
    return file->at;
}

static int tiff_on_close(void *context)
{
    (void)context;
    return 0;
}

static tiff_offset tiff_on_size(void *context)
{
    const struct tiff_file *file = context;
    return file->photo->size;
}

/* Keeps the first error, and drops warnings, whose `context` is NULL. */
static int __attribute__((format(printf, 4, 0)))
tiff_on_message(struct tiff *handle, void *context, const char *module, const char *format,
                va_list values)
{
    (void)handle, (void)module;
    struct tiff_file *file = context;
    if (file && !file->text[0])
        vsnprintf(file->text, sizeof file->text, format, values);
    return 1; /* not to stderr */
}

static enum status tiff_damaged(const struct tiff_file *file, struct error *err)
{
    char text[sizeof file->text];
    library_text(file->text, text, sizeof text);
    return error_set(err, STATUS_BAD_IMAGE,
                     "the TIFF is damaged or ends early (%s); send the whole, intact file", text);
}

static bool tiff_is_known(uint16_t compression)
{
    /* none; CCITT: 2, 3, 4; LZW; JPEG; Deflate: 8, 32946; PackBits */
    static const uint16_t known[] = {1, 2, 3, 4, 5, 7, 8, 32946, 32773};
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (known[i] == compression)
            return true;
    return false;
}

/* Reads the orientation: of a BigTIFF with libtiff, of other files as Pillow does. */
static int tiff_orientation(struct tiff *handle, const struct decode *photo)
{
    enum { BIG = 43 }; /* BigTIFF's version, in either byte order */
    uint16_t orientation = 1;
    if (photo->data[2] + photo->data[3] != BIG)
        return exif_orientation(photo->data, photo->size, NULL, 0);
    tiff.get(handle, TIFF_ORIENTATION, &orientation);
    return orientation >= 1 && orientation <= 8 ? orientation : 1;
}

static enum status tiff_read_head(struct tiff *handle, struct tiff_file *file, struct error *err)
{
    struct decode *photo = file->photo;
    uint32_t width = 0, height = 0, tile_width = 0, tile_height = 0;
    uint16_t compression = 0, colours = 0, extra = 0, *kinds = NULL;
    const uint16_t multiplied = ALPHA_MULTIPLIED;
    char text[1024] = "";
    tiff.get(handle, TIFF_WIDTH, &width);
    tiff.get(handle, TIFF_HEIGHT, &height);
    TRY(decode_set_size(photo, width, height, err));
    tiff.get_or_default(handle, TIFF_COMPRESSION, &compression);
    if (!tiff_is_known(compression))
        return error_set(err, STATUS_UNSUPPORTED_MEDIA,
                         "TIFF of compression %u is not supported; save the picture with LZW or "
                         "Deflate, or as PNG",
                         compression);
    /* libtiff would convert L*a*b* to other colours than Pillow, which uses an sRGB profile. */
    if (tiff.get(handle, TIFF_COLOURS, &colours) && colours >= COLOURS_LAB &&
        colours <= COLOURS_ITU_LAB)
        return error_set(err, STATUS_UNSUPPORTED_MEDIA,
                         "TIFF with L*a*b* colours is not supported; save the picture as RGB, or "
                         "as PNG");
    if (!tiff.can_read(handle, text))
        return error_set(err, STATUS_UNSUPPORTED_MEDIA,
                         "this kind of TIFF is not supported (%.100s); save the picture as RGB of "
                         "8 bits, or as PNG",
                         text);
    const bool is_tiled = tiff.is_tiled(handle);
    if (is_tiled) {
        tiff.get(handle, TIFF_TILE_WIDTH, &tile_width);
        tiff.get(handle, TIFF_TILE_HEIGHT, &tile_height);
        TRY(limits_check("tile of the TIFF", tile_width, tile_height, photo->limits, err));
    }
    const tiff_size part = is_tiled ? tiff.tile_size(handle) : tiff.strip_size(handle);
    if (part <= 0)
        return tiff_damaged(file, err);
    tiff.get(handle, TIFF_EXTRA_SAMPLES, &extra, &kinds);
    const uint16_t kind = extra ? kinds[0] : 0;
    /* Without this, libtiff would multiply the colours by alpha. */
    if (kind == ALPHA_SEPARATE)
        tiff.set(handle, TIFF_EXTRA_SAMPLES, 1, &multiplied);
    photo->orientation = tiff_orientation(handle, photo);
    file->working = (size_t)part;
    file->is_multiplied = kind == ALPHA_MULTIPLIED;
    return STATUS_OK;
}

/* Converts libtiff's pixels, red in the low byte, to RGB in the same memory. */
static void tiff_to_rgb(uint8_t *pixels, size_t count, bool is_multiplied)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t pixel;
        memcpy(&pixel, pixels + i * 4, sizeof pixel);
        const uint32_t alpha = is_multiplied ? pixel >> 24 : 255;
        for (unsigned c = 0; c < 3; c++) {
            const uint32_t value = pixel >> (8 * c) & 255;
            const uint32_t whole = alpha == 0 || alpha == 255 ? value : 255 * value / alpha;
            pixels[i * 3 + c] = (uint8_t)(whole < 255 ? whole : 255);
        }
    }
}

static enum status tiff_read_pixels(struct tiff *handle, const struct tiff_file *file,
                                    struct error *err)
{
    struct decode *photo = file->photo;
    uint16_t orientation = 1;
    TRY(decode_reserve(photo, 4, file->working, err));
    uint8_t *pixels = photo->decoder->stored.data;
    tiff.get_or_default(handle, TIFF_ORIENTATION, &orientation);
    /* Keeps the file's orientation; image.c turns the picture. malloc() aligns the buffer. */
    if (!tiff.read(handle, photo->width, photo->height, (uint32_t *)(void *)pixels, orientation, 1))
        return tiff_damaged(file, err);
    tiff_to_rgb(pixels, (size_t)photo->width * photo->height, file->is_multiplied);
    return STATUS_OK;
}

/* Opens the TIFF in `file`. Close *ret with tiff.close(). */
static enum status tiff_open(struct tiff_file *file, struct tiff **ret, struct error *err)
{
    enum { ALLOCATION = 1 << 30 };
    struct tiff_options *options = tiff.options();
    TRY(check_memory(options, "to decode the TIFF; try again", err));
    tiff.limit(options, ALLOCATION);
    tiff.on_error(options, tiff_on_message, file);
    tiff.on_warning(options, tiff_on_message, NULL);
    /* "m" means no mapping; the second function would write, but must not be NULL */
    *ret = tiff.open("TIFF", "rm", file, tiff_on_read, tiff_on_read, tiff_on_seek, tiff_on_close,
                     tiff_on_size, NULL, NULL, options);
    tiff.options_free(options);
    return *ret ? STATUS_OK : tiff_damaged(file, err);
}

enum status tiff_decode(struct decode *photo, struct error *err)
{
    struct tiff_file file = {.photo = photo};
    struct tiff *handle;
    TRY(tiff_open(&file, &handle, err));
    enum status status = tiff_read_head(handle, &file, err);
    if (photo->decoder)
        IF_OK(status, tiff_read_pixels(handle, &file, err));
    tiff.close(handle);
    return status;
}
