/* A model as a user thinks of it: a name, a graph, labels, and how photos are prepared.
 *
 * Read from an .onnx file, a model folder (README, "Your model") or the
 * embedded default. Immutable after load, except that model_drop_graph() frees the weights once
 * every session has its own packed copy. */
#pragma once

#include "engine/graph/graph.h"
#include "models/folder/labels.h"
#include "models/folder/preprocess.h"
#include "models/folder/text_input.h"
#include "models/tasks/task.h"
#include "models/tasks/zero_shot.h"

struct model_limits {
    size_t memory;  /* bytes a load may take; 0 = what is free, at most 16 GiB */
    bool is_immich; /* it lies in Immich's cache: immich_file() says what its files do not */
};

/* An input or output as the file declares it: DIM_UNKNOWN where a dimension is symbolic, and for an
 * output whose shape the file does not say, rank SHAPE_UNKNOWN. */
struct model_tensor {
    char *name;
    enum dtype dtype;
    struct shape shape;
};

struct onnx_metadata;

/* The input by which a detector takes words beside its photo. */
struct word_input {
    enum word_form form;
    size_t input;       /* WORDS_VECTORS: the graph's input, float32 [batch, count, size] */
    size_t count, size; /* of that input: the most words, numbers of a vector */
};

/* A decoder of masks (SAM): how it takes points. `is_set` false: the model is none. */
struct mask_prompt {
    bool is_set;
    size_t points, labels; /* inputs of the graph, float32: [1, …, PROMPT_POINTS_MAX, 2] and [1, …,
                              PROMPT_POINTS_MAX] */
    bool takes_boxes;      /* as two corners, labels 2 and 3 */
    bool adds_point;       /* without a box, (0, 0) with the label -1 follows the points */
    bool is_padded;        /* SAM, not SAM 2: photos are padded on the right and below */
};

/* Rows of both inputs. The first ones have the points; the others' label is the least. */
#define PROMPT_POINTS_MAX 32
#define PROMPT_NO_POINT   (-100)

#define MODEL_WORDS 64 /* the most words, if the file leaves their number free */

/* When the server loads a model, as lensd.json says. */
enum model_load_when { MODEL_LOAD_DEFAULT, MODEL_LOAD_EAGER, MODEL_LOAD_LAZY };

struct model {
    char *name;          /* folder or file name without extension; "digits" for the default */
    char *source;        /* path, or "embedded" */
    char *version;       /* "1", or the folder's number in Triton's layout */
    struct graph *graph; /* NULL after model_drop_graph() */
    const struct onnx_metadata *metadata; /* of the file (models/onnx/onnx.h); go with the graph */
    size_t metadata_count;
    struct labels labels;   /* of classes; TASK_TEXT: characters, without the blank */
    char labels_source[64]; /* "labels.txt", "index_to_name.json" …; where the labels, if any, are
                               from */
    struct preprocess preprocess;
    char preprocess_source[64]; /* "preprocessor_config.json", "config.json (timm)",
                                   "model metadata", "ImageNet defaults" … */
    bool is_configured; /* a file or its metadata tell how photos are prepared; else defaults do */
    uint64_t file_bytes;
    char *calibration; /* the model's folder calibration/, of photos like those it will see; NULL:
                          there is none */

    char warning[512]; /* a sentence for the log when something looks wrong but works (labels
                          and classes differ in number, sizes were fitted …), or "" */
    char filled[160];  /* inputs beside the photo that lensd fills, with commas; or "" */
    int max_batch;     /* config.pbtxt's max_batch_size; 0: it has none */
    enum model_load_when load;
    double idle_unload_s; /* lensd.json's; 0: never; negative: not set */

    /* The image input, worked out at load. */
    size_t image_input;       /* index in graph->inputs; SIZE_MAX: no input looks like an image */
    bool input_channels_last; /* the file's own input is [N, H, W, C] */
    bool free_height, free_width;   /* the file leaves them to the caller; the height of a row of
                                       tokens (text.allows_short_rows) is 1 */
    bool fixed_batch;               /* the file declares a fixed first dimension */
    int64_t file_batch;             /* that dimension, when fixed */
    enum dtype input_dtype;         /* as the file declares it */
    size_t output;                  /* index in graph->outputs: the task's first, else the first */
    char *input_name, *output_name; /* input_name: NULL without an image input */
    struct text_input text;         /* of a model for texts, or a detector with WORDS_TOKENS */
    struct word_input words;
    struct mask_prompt prompt;
    size_t class_count;            /* 0: unknown before a run */
    bool has_probabilities;        /* the graph ends in Softmax: do not apply it again */
    struct zero_shot texts;        /* TASK_ZERO_SHOT: the labels' vectors */
    struct labels point_names;     /* TASK_POSE: of a box's key points; may be empty */
    struct graph_hash fingerprint; /* TASK_EMBEDDING: of its graph as the file has it */
    struct task task;              /* decides how /predict interprets the outputs */
    /* In the graph's order; they stay when the graph goes. */
    struct model_tensor *inputs, *outputs;
    size_t input_count, output_count;
    size_t parameter_count; /* elements of all initialisers */
    uint64_t parameter_bytes;
};

/* Whether the rows of an output, as the file declares it, are not the images of the batch: the
 * batch is fixed and they are not, as in a detector's boxes [n, 4]. */
bool model_rows_depend_on_data(const struct model *model, const struct shape *output);

/* `path`: an .onnx file or a folder. `name`: overrides the derived one; may be NULL. Errors as
 * onnx_load_file; STATUS_NOT_FOUND when there is no such file, or a folder holds no model.onnx (the
 * sentence lists what was looked for); STATUS_MODEL for a labels or preprocessor file that cannot
 * be understood, naming file and key. The caller frees with model_free (NULL is fine). */
enum status model_load(const char *path, const char *name, const struct model_limits *limits,
                       struct model **ret, struct error *err) MUST_USE;

/* The same, of one numbered version of a folder in Triton's layout (models/folder/repository.h). */
enum status model_load_version(const char *path, const char *version, const char *name,
                               const struct model_limits *limits, struct model **ret,
                               struct error *err) MUST_USE;

/* A folder may have the two halves of a model, each served as a model: the half for photos has the
 * folder's name, the half for texts or the decoder of masks also one of these endings. */
#define MODEL_TEXT_ENDING    ".text"
#define MODEL_DECODER_ENDING ".decoder"

/* Finds the second half of the model in a folder, and the ending of its name. *ret is a path for
 * model_load(), malloc'ed: that of an .onnx file or, if one file has halves for photos and texts,
 * that of the file with MODEL_TEXT_ENDING added. NULL: there is none. STATUS_NO_MEMORY. */
enum status model_find_half(const char *folder, char **ret, const char **ret_ending,
                            struct error *err) MUST_USE;

/* Where model_load(path) would find the .onnx file, and the name the model would get, without
 * reading it: to say early that there is none, and to name what is loading. Both are malloc'ed, the
 * caller's. Errors: STATUS_NOT_FOUND, STATUS_IO, STATUS_NO_MEMORY. */
enum status model_find(const char *path, char **ret_file, char **ret_name,
                       struct error *err) MUST_USE;

/* The digit classifier that is part of the binary. */
enum status model_load_embedded(struct model **ret, struct error *err) MUST_USE;

/* Whether the model can be compiled for photos of that size: a side that its file fixes stays.
 * STATUS_INVALID. */
enum status model_check_size(const struct model *model, int height, int width,
                             struct error *err) MUST_USE;

/* Sets the size of the photos that a model with a free side is compiled for. Call it before
 * compiling. */
void model_set_size(struct model *model, int height, int width);

/* Copies the files beside the model of `path` that lensd reads (labels, preprocessing, task) into
 * `folder`, and the file named `labels`. STATUS_IO, STATUS_NO_MEMORY, and those of model_load(). */
enum status model_copy_files(const char *path, const char *labels, const char *folder,
                             struct error *err) MUST_USE;
/* Removes a folder that holds files only. */
void model_remove_files(const char *folder);

void model_drop_graph(struct model *model);
void model_free(struct model *model);

/* Looks up options->class_names in a request's own labels, or in the model's if `own` is NULL. Does
 * nothing for a task without classes. STATUS_INVALID names a word that is neither a number nor a
 * label. */
enum status model_find_classes(const struct model *model, const char *const *own, size_t own_count,
                               struct task_options *options, struct error *err) MUST_USE;
