/* Records problems in a model's files that do not prevent its use. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/text.h"
#include "engine/base/utf8.h"
#include "models/folder/model_internal.h"

void model_warn(struct model *model, const char *format, ...)
{
    char text[sizeof model->warning];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    text_append(model->warning, sizeof model->warning, "; ", "%s", text);
    /* Truncation may have left half a character, which is not valid JSON. */
    for (size_t used = strlen(model->warning); used && !utf8_valid(model->warning, used); used--)
        model->warning[used - 1] = '\0';
}
