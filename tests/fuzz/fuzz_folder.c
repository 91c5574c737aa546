/* The files of a model's folder that tell its task. The first bytes make the outputs of a graph.
 * lensd.json, config.json and config.pbtxt follow, separated by RS (0x1E). They are refused with a
 * sentence, or give a task whose outputs exist and whose options are in range. */
#include <string.h>

#include "engine/base/size.h"
#include "models/folder/model_internal.h"
#include "models/tasks/task.h"
#include "tests/fuzz/scratch.h"

enum { OUTPUTS = 4, OUTPUT_BYTES = 5, HEAD = 4 + OUTPUTS * OUTPUT_BYTES, SEPARATOR = 0x1E };

static char cat[] = "cat", dog[] = "dog", none[] = "";
static const char *label_names[] = {cat, dog, none};
static const struct labels labels = {label_names, COUNT_OF(label_names)};

static struct session_tensor make_output(const uint8_t *bytes)
{
    static const char *const names[] = {"output0", "logits", "pred_boxes",       "boxes",
                                        "labels",  "scores", "num_detections:0", "pooler_output"};
    static const int64_t dims[] = {DIM_UNKNOWN, 1,     2,   3,       4,
                                   5,           6,     7,   8,       64,
                                   80,          84,    85,  91,      92,
                                   100,         300,   512, 1000,    2100,
                                   8400,        25200, 56,  1 << 20, INT64_C(1) << 40};
    struct session_tensor output = {
        .name = names[(bytes[0] >> 4) % COUNT_OF(names)],
        .dtype = bytes[0] & 8 ? DTYPE_I64 : DTYPE_F32,
        .shape = {.rank = bytes[0] % 6 == 5 ? SHAPE_UNKNOWN : bytes[0] % 6}};
    for (int d = 0; d < output.shape.rank; d++)
        output.shape.dims[d] = dims[bytes[1 + d] % COUNT_OF(dims)];
    return output;
}

static void check_options(const struct task_options *options)
{
    HOLDS(options->confidence <= 1 && options->iou <= 1);
    HOLDS(options->max_detections >= 0 && options->max_detections <= TASK_MAX_DETECTIONS);
    HOLDS(options->class_count <= TASK_MAX_CLASSES);
}

static void try_decide(const uint8_t *head, const struct task_config *config)
{
    struct session_tensor outputs[OUTPUTS];
    for (size_t i = 0; i < OUTPUTS; i++)
        outputs[i] = make_output(head + 4 + i * OUTPUT_BYTES);
    static const char *const tasks[] = {NULL, "detect", "classify", "segment", "pose", "obb", "x"};
    struct task_facts facts = config->facts;
    facts.outputs = outputs;
    facts.output_count = head[0] % (OUTPUTS + 1);
    facts.class_output = head[0] & 8 ? 0 : SIZE_MAX;
    facts.width = 32 * (head[1] % 32);
    facts.height = 32 * (head[1] / 32);
    facts.label_count = head[2] % 128;
    facts.has_exp = head[3] & 1;
    facts.is_final = head[3] & 2;
    facts.metadata_task = tasks[(head[3] >> 2) % COUNT_OF(tasks)];
    if (facts.class_output >= facts.output_count)
        facts.class_output = SIZE_MAX;
    struct task task;
    struct error err = {0};
    if (task_decide(&facts, &task, &err) != STATUS_OK) {
        HOLDS(err.message[0]);
        return;
    }
    HOLDS(task.evidence[0] && task_name(task.kind) && task.output_count <= TASK_MAX_OUTPUTS);
    for (size_t i = 0; i < task.output_count; i++)
        HOLDS(task.outputs[i] < facts.output_count);
    check_options(&task.options);
}

/* Writes the next of the files, or an empty one; returns what is behind it. */
static const uint8_t *write_next(const char *name, const uint8_t *at, const uint8_t *end)
{
    const uint8_t *stop = at < end ? memchr(at, SEPARATOR, (size_t)(end - at)) : NULL;
    (void)scratch_write(name, at, (size_t)((stop ? stop : end) - at));
    return stop ? stop + 1 : end;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < HEAD)
        return 0;
    const uint8_t *at = data + HEAD, *end = data + size;
    at = write_next("lensd.json", at, end);
    at = write_next("config.json", at, end);
    (void)write_next("config.pbtxt", at, end);

    const char *folder = scratch_folder();
    struct model_place place = {.is_immich = false};
    model_path(place.folders[0], "%s", folder);
    struct task_config config;
    struct version_policy policy;
    struct error err = {0};
    if (task_config_read(&place, &labels, &config, &err) == STATUS_OK) {
        check_options(&config.facts.options);
        try_decide(data, &config);
        task_config_done(&config);
    } else {
        HOLDS(err.message[0]);
    }
    if (version_policy_read(folder, &policy, &err) == STATUS_OK)
        HOLDS(policy.count <= COUNT_OF(policy.versions));
    else
        HOLDS(err.message[0]);
    return 0;
}
