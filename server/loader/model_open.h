/* Opens the model that an option names: a file, a folder, or the embedded one. */
#pragma once

#include "models/folder/model.h"

/* True if `model` is the embedded model: NULL, or "digits" if no such file exists. */
bool model_is_embedded(const char *model);
/* Loads the model. `name` replaces the model's own name; may be NULL. The caller owns *ret. Errors:
 * those of model_load(). */
enum status model_open(const char *model, const char *name, struct model **ret,
                       struct error *err) MUST_USE;
/* Calls `tell` for each problem that a model's author may want to fix, with a sentence: an error in
 * its files, a default that may be wrong (preprocessing), missing labels. */
void model_tell_doubts(const struct model *model,
                       void (*tell)(const struct model *model, const char *text));
