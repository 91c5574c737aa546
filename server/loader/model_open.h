/* Opens the model that an option names: a file, a folder, or the embedded one. */
#pragma once

#include "models/folder/model.h"

/* The model of an option: NULL, and "digits" unless there is such a file, is the embedded one. */
bool model_is_embedded(const char *model);
/* `name` replaces the model's own; may be NULL. */
enum status model_open(const char *model, const char *name, struct model **ret,
                       struct error *err) MUST_USE;
/* Tells, a sentence at a time, what a model's author may want to mend: what its files have wrong,
 * and defaults that may be wrong (how photos are prepared, missing labels). */
void model_tell_doubts(const struct model *model,
                       void (*tell)(const struct model *model, const char *text));
