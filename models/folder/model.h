/* A model as the server uses it: a name, a graph, labels, and the preprocessing of photos.
 *
 * It is read from an .onnx file, a model folder (README, "Your model") or the embedded default. It
 * is immutable once it is served, except that model_drop_graph() frees the weights when every
 * session has its own packed copy. */
#pragma once

#include <limits.h>

#include "engine/graph/graph.h"
#include "models/folder/labels.h"
#include "models/folder/preprocess.h"
#include "models/folder/text_input.h"
#include "models/tasks/task.h"
#include "models/tasks/zero_shot.h"

/* Options of a load. Zeroed: defaults. */
struct model_limits {
    size_t memory;       /* bytes that a load may use; 0 = free memory, at most 16 GiB */
    const char *version; /* of a folder in Triton's layout (repository.h); NULL: the newest */
    bool is_immich; /* in Immich's cache: lensd has the configurations that are missing there */
};

/* An input or output as clients see it: as in the file, or as lensd changed it at load
 * (mask_prompt.c, model_split.c). Symbolic dimensions are DIM_UNKNOWN. The rank is SHAPE_UNKNOWN if
 * the file gives an output no shape. */
struct model_tensor {
    char *name;
    enum dtype dtype;
    struct shape shape;
};

struct onnx_metadata;

/* A detector's input for words, if it takes words with a photo. */
struct word_input {
    enum word_form form;
    size_t input; /* WORDS_VECTORS: index of the graph's input, float32 [batch, count, size] */
    size_t count, size; /* `count`: words that this input takes; `size`: length of a vector */
};

/* How a decoder of masks (SAM) takes points. `is_set` is false for other models. */
struct mask_prompt {
    bool is_set;
    size_t points, labels; /* indexes in graph->inputs: float32 [1, …, N, 2] and [1, …, N], where N
                              is PROMPT_POINTS_MAX */
    bool takes_boxes;      /* a box becomes two points, its corners, with the labels 2 and 3 */
    bool adds_point;       /* without a box, the point (0, 0) with label -1 follows the points */
    bool is_padded;        /* SAM, not SAM 2: photos are padded on the right and below */
};

/* Number of points in each of the two inputs of a mask decoder. A request's points come first. The
 * points after these have the label PROMPT_NO_POINT, and the graph drops them. */
#define PROMPT_POINTS_MAX 32
#define PROMPT_NO_POINT   (-100)

#define MODEL_WORDS 64 /* limit of a request's words, if the file fixes no number of words */

/* When the server loads a model, according to lensd.json. */
enum model_load_when { MODEL_LOAD_DEFAULT, MODEL_LOAD_EAGER, MODEL_LOAD_LAZY };

#define MODEL_NO_TOKENIZER                                                                         \
    "the model takes tokens, but its folder has no tokenizer: put tokenizer.json, or vocab.json "  \
    "and merges.txt, into it"

struct model {
    char *name;          /* folder or file name without extension; "digits" for the default */
    char *source;        /* path, or "embedded" */
    char *version;       /* "1", or the folder's number in Triton's layout */
    struct graph *graph; /* NULL after model_drop_graph() */
    const struct onnx_metadata *metadata; /* of the file (onnx.h); in the graph's arena */
    size_t metadata_count;
    struct labels labels;      /* names of classes; TASK_TEXT: characters, without the blank */
    const char *labels_source; /* "labels.txt", "index_to_name.json" …, if there are labels;
                                  NULL after model_drop_graph() */
    struct preprocess preprocess;
    const char *preprocess_source; /* "preprocessor_config.json", "config.json (timm)",
                                      "model metadata", "ImageNet defaults" …; static */
    bool is_configured;            /* a file sets the preprocessing; otherwise defaults apply */
    uint64_t file_bytes;
    char *calibration; /* the folder calibration/ with typical photos; NULL: none */

    bool lacks_tokenizer; /* takes tokens, but has no tokenizer (MODEL_NO_TOKENIZER) */
    char warning[512];    /* sentences for the log about files that are suspicious but usable (the
                             numbers of labels and classes differ, sizes were adapted …), or "" */
    char filled[160];     /* names of inputs that lensd fills itself, comma-separated; or "" */
    int max_batch;        /* config.pbtxt's max_batch_size; 0: not set */
    enum model_load_when load;
    double idle_unload_s; /* "idle_unload" of lensd.json; 0: never; negative: not set */

    /* The image input, determined at load. */
    size_t image_input;       /* index in graph->inputs; SIZE_MAX: no input looks like an image */
    bool input_channels_last; /* the file declares the input as [N, H, W, C] */
    bool free_height, free_width; /* the file does not fix this side (of a text: tokens per row) */
    bool fixed_batch;             /* the file declares a fixed first dimension */
    int64_t file_batch;           /* the fixed first dimension, if fixed_batch */
    size_t output; /* index in graph->outputs: the task's first output or the class scores */
    struct text_input text; /* inputs for texts, also those of a detector with WORDS_TOKENS */
    struct word_input words;
    struct mask_prompt prompt;
    size_t class_count;            /* 0: unknown before a run, or no classifier */
    bool has_probabilities;        /* the graph ends in Softmax: do not apply it again */
    struct zero_shot texts;        /* vectors (TASK_ZERO_SHOT) and the rule for scores of labels */
    struct labels point_names;     /* TASK_POSE: names of a box's key points; may be empty */
    struct graph_hash fingerprint; /* TASK_EMBEDDING: hash of the graph, stored with vectors */
    struct task task;              /* controls how /predict interprets the outputs */
    /* Copies of the graph's inputs and outputs, in the same order, for use without the graph. */
    struct model_tensor *inputs, *outputs;
    size_t input_count, output_count;
    size_t parameter_count; /* elements of all constants in the graph */
    uint64_t parameter_bytes;
};

/* True if the rows of an output with this declared shape are not the images of the batch: the file
 * fixes the batch, but not the number of rows, as in a detector's boxes [n, 4]. */
bool model_rows_depend_on_data(const struct model *model, const struct shape *output);

/* Loads the model of an .onnx file, a folder, or a path from model_find_half(); for NULL the digit
 * classifier that is part of the binary. `name` replaces the derived name; NULL keeps the derived
 * name. `limits` may be NULL. Errors: those of onnx_load_file(); STATUS_NOT_FOUND: there is no such
 * file, or a folder has no model (the sentence lists the files that were tried); STATUS_MODEL: a
 * file beside the model is invalid (the sentence names file and key), or the path is a pipeline;
 * STATUS_CONFIG: the path is a URL. The caller frees with model_free() (NULL is fine). */
enum status model_load(const char *path, const char *name, const struct model_limits *limits,
                       struct model **ret, struct error *err) MUST_USE;

/* A folder may hold a model in two halves, each served as a model. The half for photos has the
 * folder's name. The name of the other half, for texts or for masks, gets one of these endings. */
#define MODEL_TEXT_ENDING    ".text"
#define MODEL_DECODER_ENDING ".decoder"

/* Finds the second half of the model in a folder. `ret` becomes a path for model_load(): an .onnx
 * file or, if one file has both halves, that file with MODEL_TEXT_ENDING appended. *ret_ending is
 * the ending of the half's name. Returns false if there is no second half; `ret` is unchanged. */
bool model_find_half(const char *folder, char ret[static PATH_MAX], const char **ret_ending);

/* Finds the .onnx file that model_load(path) would load (for a pipeline, its pipeline.json) and the
 * model's name, without reading the file. Errors are those of model_load(). */
#define MODEL_PLACE_NAME (NAME_MAX + sizeof MODEL_DECODER_ENDING)
enum status model_find(const char *path, char ret_file[static PATH_MAX],
                       char ret_name[static MODEL_PLACE_NAME], struct error *err) MUST_USE;

/* Checks that the model can be compiled for photos of this size. STATUS_INVALID: the file fixes
 * another height or width. */
enum status model_check_size(const struct model *model, int height, int width,
                             struct error *err) MUST_USE;

/* Sets the photo size of a model with a free side (for texts: height 1, and the length of a row).
 * Call it before compiling. */
void model_set_size(struct model *model, int height, int width);

/* Copies labels, preprocessing, task and tokenizer.json from beside the model of `path`, and the
 * file named `labels` ("": none), into `folder`. STATUS_IO, and errors of model_load(). */
enum status model_copy_files(const char *path, const char *labels, const char *folder,
                             struct error *err) MUST_USE;
/* Removes a folder that holds files only. */
void model_remove_files(const char *folder);

/* Adds advice to an error of session_create() that a missing tokenizer may cause. */
static inline enum status model_advise(const struct model *model, enum status status,
                                       struct error *err)
{
    return status == STATUS_UNSUPPORTED && model->lacks_tokenizer
               ? error_advise(err, MODEL_NO_TOKENIZER)
               : status;
}

void model_drop_graph(struct model *model);
void model_free(struct model *model);

/* Converts options->class_names, a list of class numbers and labels, to options->classes. Labels
 * are a request's own, or the model's if `own` is NULL. Does nothing for a task without classes.
 * STATUS_INVALID names an unknown label. */
enum status model_find_classes(const struct model *model, const char *const *own, size_t own_count,
                               struct task_options *options, struct error *err) MUST_USE;
