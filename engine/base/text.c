/* Finds the name that the user probably meant; appends to texts; writes sizes; ends texts in memory
 * streams. */
#include "engine/base/text.h"

#include <stdarg.h>

#include "engine/base/size.h"

size_t text_distance(const char *a, const char *b)
{
    enum { MAX = 40 };
    size_t rows[3][MAX + 1];
    size_t m = strnlen(a, MAX), n = strnlen(b, MAX);
    for (size_t j = 0; j <= n; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= m; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t best = above[j - 1] + (a[i - 1] != b[j - 1]);
            if (above[j] + 1 < best)
                best = above[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                above2[j - 2] + 1 < best)
                best = above2[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[m % 3][n];
}

const char *text_nearest(const char *word, const char *const *names, size_t count)
{
    const char *nearest = NULL;
    size_t best = strlen(word) / 3 + 1;
    for (size_t i = 0; i < count; i++) {
        size_t d = text_distance(word, names[i]);
        /* A prefix of a name, such as --max-bo, counts as one typing error. */
        if (strlen(word) >= 3 && !strncmp(word, names[i], strlen(word)) && d > 1)
            d = 1;
        if (d <= best && (!nearest || d < best)) {
            best = d;
            nearest = names[i];
        }
    }
    return nearest;
}

void text_append(char *text, size_t size, const char *separator, const char *format, ...)
{
    va_list args;
    size_t used = strlen(text);
    used += (size_t)snprintf(text + used, size - used, "%s", used ? separator : "");
    if (used >= size)
        return;
    va_start(args, format);
    (void)vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

const char *bytes_text(uint64_t bytes, char text[static BYTES_TEXT])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1024 && unit + 1 < COUNT_OF(units); unit++)
        value /= 1024;
    snprintf(text, BYTES_TEXT, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}

char *text_close(FILE *out, char **text)
{
    const bool is_written = out && !ferror(out);
    if (!out || fclose(out) != 0 || !is_written) {
        free(*text);
        *text = NULL;
    }
    return *text;
}
