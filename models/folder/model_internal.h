/* Private to models/folder/: the places of a model's files, and shared readers. */
#pragma once

#include <limits.h>
#include <string.h>

#include "models/folder/model.h"
#include "models/onnx/onnx.h"
#include "models/text/json_fields.h"

/* The places of a model's files. */
struct model_place {
    char file[PATH_MAX];       /* the .onnx file */
    char folders[2][PATH_MAX]; /* searched in order for labels and configurations; "": none */
    char name[MODEL_PLACE_NAME], version[24];
    bool is_numbered; /* `file` is FOLDER/version/model.onnx */
    bool is_pipeline; /* `file` is a pipeline.json */
    bool is_half;     /* `file` is one half of a model; the folder has the other half */
    bool is_encoder;  /* `file` is the half for photos; the other half makes masks */
    bool makes_masks; /* `file` is the half that makes masks */
    bool wants_texts; /* load the half for texts, from a file that has both halves */
    bool is_embedded; /* the model and its files are part of the binary */
    bool is_immich;   /* the model is in Immich's cache; the caller sets this */
};

/* Finds the model of a path, an .onnx file or a folder (models/folder/model_folder.c). `version`
 * selects a numbered version; NULL: the newest. Errors are those of model_load(). */
enum status model_place_find(const char *path, const char *version, struct model_place *ret,
                             struct error *err) MUST_USE;

/* Writes a path, or "" if it is longer than the system allows. */
void model_path(char to[static PATH_MAX], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* True if a folder's name is a version number: at most 15 digits without leading zeros. Triton also
 * ignores folders with leading zeros. */
bool model_version_number(const char *text, uint64_t *ret);

/* A file beside the model. */
struct side_file {
    char *text; /* terminated */
    size_t size;
    char path[PATH_MAX]; /* for messages */
    struct cJSON *json;  /* side_json_open() only */
};

/* Reads a file of at most 64 MiB from the model's folders. Refuses special files and links that
 * leave the folders. STATUS_NOT_FOUND when neither folder has it; other errors name the file.
 * side_file_close() frees it. */
enum status side_file_open(const struct model_place *place, const char *name, struct side_file *ret,
                           struct error *err) MUST_USE;
/* Reads a file like side_file_open(), and parses it as JSON. Errors: also those of json_parse(). */
enum status side_json_open(const struct model_place *place, const char *name, struct side_file *ret,
                           struct error *err) MUST_USE;
/* Frees the file and returns `status`, the result of reading it. Adds the file's name to errors
 * other than STATUS_NOT_FOUND. */
enum status side_file_close(struct side_file *file, enum status status, struct error *err) MUST_USE;

#define PBTXT_DEPTH_MAX 16

/* A value in protobuf's text format (protobuf.dev/reference/protobuf/textformat-spec). */
struct pbtxt_value {
    const char *path; /* names of fields, such as "input.name"; each is truncated after 40 bytes */
    enum pbtxt_kind { PBTXT_MESSAGE, PBTXT_TEXT, PBTXT_WORD, PBTXT_NUMBER } kind;
    const char *text; /* without quotation marks and sign; "" for a message. It lasts as long as
                         the file's text; terminated if it is a PBTXT_TEXT */
    size_t size;
    bool is_negative; /* a '-' precedes the text */
    bool in_list;     /* an element of a list [] */
};

typedef enum status pbtxt_fn(void *context, const struct pbtxt_value *value, struct error *err);

/* Calls on_value for each value of the `size` bytes of terminated `text`, and at the start of each
 * message. Overwrites closing quotation marks. Stops at the first error. STATUS_MODEL names the
 * line, also if on_value returns it. */
enum status pbtxt_read(char *text, size_t size, pbtxt_fn *on_value, void *context,
                       struct error *err) MUST_USE;

/* An input of Triton's config.pbtxt. */
struct triton_input {
    const char *name; /* in the file's text; NULL: not set */
    int64_t dims[TENSOR_MAX_RANK];
    int rank;         /* 0: not set */
    bool is_reshaped; /* `dims` is the shape in requests, not of the model's input */
};

#define TRITON_INPUTS_MAX 64

/* The keys of Triton's config.pbtxt that lensd uses; NULL or 0 if missing. triton_config_read()
 * refuses a label file whose name has a '/' or "..", and ignores other keys. `text` has `size`
 * bytes, is terminated, and must outlive *ret. STATUS_MODEL names the invalid line. */
struct triton_config {
    const char *label_file;
    int max_batch;
    struct triton_input inputs[TRITON_INPUTS_MAX];
    size_t input_count;
};
enum status triton_config_read(char *text, size_t size, struct triton_config *ret,
                               struct error *err) MUST_USE;

/* The numbered versions to serve. */
struct version_policy {
    enum { VERSIONS_LATEST, VERSIONS_ALL, VERSIONS_SPECIFIC } kind;
    size_t latest;         /* VERSIONS_LATEST: the number of newest versions */
    uint64_t versions[64]; /* VERSIONS_SPECIFIC: the versions' numbers */
    size_t count;
};

/* Reads config.pbtxt's version_policy in `folder`; the default is the newest version. STATUS_MODEL
 * names the invalid part. */
enum status version_policy_read(const char *folder, struct version_policy *ret,
                                struct error *err) MUST_USE;

/* Replaces inputs by numbers: the inputs in `named` (NULL: none), which task_config_read() has
 * checked. Replaces also the inputs that are neither photos, words nor points, if lensd knows the
 * values of each of them. Lists the replaced inputs in model->filled (models/folder/fill_inputs.c).
 * STATUS_MODEL: a member of `named` fits no input; STATUS_NO_MEMORY. */
enum status model_fill_inputs(struct model *model, const struct cJSON *named,
                              struct error *err) MUST_USE;

/* True if one of place->folders has a tokenizer's file. */
bool model_has_tokenizer(const struct model_place *place);

/* True if an output of this name has vectors of texts. */
bool model_is_text_vector(const char *name);

/* Splits a graph that makes comparable vectors of photos and texts (models/folder/model_split.c).
 * Keeps the half that depends on photos, or with `wants_texts` on texts, and sets *ret_is_half.
 * Any other graph and *ret_is_half stay as they are. model->texts says how vectors of photos and
 * texts are compared; a detector gets an input for vectors of words (model->words). After
 * STATUS_NO_MEMORY the graph may only be freed. */
enum status model_split(struct model *model, bool wants_texts, bool *ret_is_half,
                        struct error *err) MUST_USE;

/* Sets model->words of a detector that takes words with a photo (models/folder/word_input.c):
 * vectors of words if the model also has a text encoder that makes them (`is_half`), else tokens.
 */
void word_input_find(struct model *model, bool is_half);

/* Returns the value with this name; NULL if there is none. */
static inline struct value *value_named(struct value *const *values, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(values[i]->name, name))
            return values[i];
    return NULL;
}

/* True if an input of the model's graph takes words. */
bool word_input_is(const struct model *model, const struct value *input);

/* Sets the indexes of the inputs for words; call it when the graph has its final inputs. Sets
 * WORDS_NONE if the model is no detector, or has inputs that lensd cannot fill. */
void word_input_place(struct model *model);

enum prompt_input {
    PROMPT_NONE,
    PROMPT_POINTS,
    PROMPT_LABELS,
};

/* Returns the kind of a mask decoder's input with this name. */
enum prompt_input mask_prompt_input(const char *name);

/* Makes the graph of a mask decoder take up to PROMPT_POINTS_MAX points, and sets model->prompt
 * (models/folder/mask_prompt.c). Keeps two outputs: masks, then scores. STATUS_MODEL names what the
 * file lacks; STATUS_NO_MEMORY. */
enum status mask_prompt_prepare(struct model *model, struct error *err) MUST_USE;

/* Settings in a model's lensd.json and config.json. */
struct task_config {
    struct task_facts facts;    /* only the facts that these files give */
    const struct cJSON *inputs; /* lensd.json: for each name one number, or a list; NULL: not set */
    float unclip_ratio;         /* lensd.json; 0: not set */
    int use_dilation;           /* lensd.json */
    enum model_load_when load;  /* lensd.json */
    double idle_unload_s;       /* lensd.json; negative: not set */
    const struct labels *labels; /* the labels that "classes" may name; borrowed */
    struct cJSON *trees[2];      /* the files' JSON, which has the texts of `facts` */
};

/* Reads lensd.json and config.json (models/folder/task_config.c). STATUS_MODEL names file, key and
 * expected value; STATUS_NO_MEMORY. Free with task_config_done() (accepts a zeroed struct). */
enum status task_config_read(const struct model_place *place, const struct labels *labels,
                             struct task_config *ret, struct error *err) MUST_USE;
void task_config_done(struct task_config *config);

/* Reads zero_shot.json, if any, into *ret. If the file has vectors, its labels replace *ret_labels
 * (models/folder/zero_shot_config.c). STATUS_MODEL names file and key; STATUS_NO_MEMORY. */
enum status zero_shot_read(const struct model_place *place, struct zero_shot *ret,
                           struct labels *ret_labels, struct error *err) MUST_USE;

/* Finds the output that has one row of class scores per image, and sets model->output and
 * model->class_count (models/folder/class_output.c). `graph` is the model's, with shapes for one
 * photo. The model does not change if there is no such output, if several are possible, or if the
 * only one is named like boxes; facts->class_note explains the last two cases. Otherwise the note
 * names the other outputs. */
void class_output_find(struct model *model, const struct graph *graph, struct task_facts *facts);

/* True if a Softmax makes an output, perhaps followed by operators that do not change values. */
bool output_is_probabilities(const struct value *output);

/* Determines image input, outputs, classes, task and parameters, and adapts the preprocessing to
 * the input (models/folder/model_describe.c). Fills other inputs by `config`. config->facts has the
 * facts from files and metadata; this function adds those from the graph. The caller has set the
 * other members of the model that come from files. */
enum status model_describe(struct model *model, struct task_config *config,
                           struct error *err) MUST_USE;

/* Parses a file's text; free the tree with cJSON_Delete(). Numbers and names are not checked.
 * STATUS_MODEL says that the text is empty, or gives line and byte of the syntax error. */
enum status json_parse(const char *text, size_t size, struct cJSON **ret,
                       struct error *err) MUST_USE;

/* A key of a configuration, and the struct member for its value. */
struct json_member {
    const char *key;
    enum {
        JSON_TEXT, /* const char *, part of the object */
        JSON_FLAG, /* int */
        JSON_FLOAT,
        JSON_DOUBLE,
        JSON_INT,
        JSON_SIZE, /* size_t */
        JSON_OTHER /* the caller reads the value */
    } kind;
    size_t at;          /* offset of the struct member */
    double least, most; /* limits of a number */
    /* Reads the value into the object. NULL: `kind` says how the value is read. */
    enum status (*read)(const struct cJSON *item, void *object, struct error *err);
};

/* Reads every member of a JSON object into `object`, as the table says. STATUS_MODEL names the key
 * and the expected value. For an unknown key it lists the keys that `what` ("a stage") takes. */
enum status json_members(const struct cJSON *json, const char *what,
                         const struct json_member *members, size_t count, void *object,
                         struct error *err) MUST_USE;

bool json_is_whole(const struct cJSON *item, double least, double most);

/* Appends a sentence to model->warning after "; "; truncates it if there is no room. */
void model_warn(struct model *model, const char *format, ...) __attribute__((format(printf, 2, 3)));
