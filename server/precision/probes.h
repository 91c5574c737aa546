/* Probe images, on which precisions are compared.
 *
 * The images of the model folder's calibration/ (all formats that lensd reads, by name, at most
 * PROBES_FROM_FOLDER); if they are fewer than PRECISION_OWN_PROBES, lensd adds
 * pictures that it draws, up to PRECISION_PROBES. All go through the preparation of a client's
 * photo. The same model gets the same probes on every machine. */
#pragma once

#include "models/folder/model.h"
#include "server/image/image.h"

#define PROBES_FROM_FOLDER 256

struct probes;

/* `model` and `limits` are borrowed. STATUS_NO_MEMORY; STATUS_TOO_LARGE from the preparation. */
enum status probes_open(const struct model *model, const struct image_limits *limits,
                        struct probes **ret, struct error *err) MUST_USE;
void probes_free(struct probes *probes); /* NULL is fine */

int probes_count(const struct probes *probes);
int probes_from_folder(const struct probes *probes);

/* Writes probe i: [height, width, channels] float32 as the model's preprocessing makes it. A file
 * that cannot be read is logged, and a drawn picture stands in for it. */
enum status probes_write(struct probes *probes, int i, float *dst, struct error *err) MUST_USE;

/* Does so for the folder's image i; the error for an unreadable file does not name it. */
enum status probes_read(struct probes *probes, int i, float *dst, struct error *err) MUST_USE;
const char *probes_file(const struct probes *probes, int i); /* its path */
