/* The model host: photos to predictions, raw tensors to raw tensors.
 *
 *     submit ─▶ queue ─▶ decode workers ─▶ forming batch ─▶ lane (device) ─▶ scores ─▶ on_done
 *       │               decode, transform      slots         submit, collect softmax, top-k
 *       └─ admission: 503 here
 *
 * model_host_submit() never blocks: it admits or refuses. Decode workers (one pool for all models)
 * decode an image, reserve a slot in the forming batch of its model, and write the normalised
 * pixels into it. A lane (one thread per model and device) takes the forming batch when it is full,
 * or when the device is idle and an image is ready. A bad image fails alone, before it has a slot.
 * Rows of raw-tensor requests share batches with images: a worker copies a row into its slot. When
 * the last image of a request is done, its on_done is called from a thread of the model host.
 *
 * The policy is pure: admission.c admits or refuses, batcher.c decides which image gets which slot
 * and when a batch closes. The runtime carries it out: scheduler.c adds a lock, buffers and
 * conditions to a batcher; pool.c and worker.c are the decode threads, lane.c the device threads;
 * deployment.c describes a version of a model, deployment_build.c holds its threads and buffers;
 * model_table.c is the table of models and versions, model_load.c puts models into it,
 * model_sizes.c has the sizes of models with free height and width, model_host.c the rest.
 *
 * Versions are replaced while requests go on: the new one is compiled and warmed up, the table
 * switches to it in one step, and the old one ends after it has answered its requests. No request
 * is refused because of it.
 *
 * Locks: one for the table of models, one per model scheduler, one for the pool; never two at
 * once; none is held across decode, forward, copies or callbacks. */
#pragma once

#include <stdatomic.h>

#include "engine/runtime/session.h"
#include "models/folder/model.h"
#include "models/folder/pipeline_config.h"
#include "models/tasks/answer.h"
#include "models/tasks/class_scores.h"
#include "server/image/image.h"
#include "server/observe/metrics.h"
#include "server/precision/precision.h"
#include "server/schedule/policy/admission.h"
#include "server/schedule/policy/queue.h"
#include "server/schedule/runtime/deployment.h"

enum model_host_state {
    MODEL_HOST_LOADING, /* models are being loaded, or the sizes that pipelines name compiled */
    MODEL_HOST_READY,
    MODEL_HOST_DRAINING,
    MODEL_HOST_FAILED,   /* a required model did not load */
    MODEL_HOST_STUCK,    /* model_host_is_stuck(); only model_host_readiness() says so */
    MODEL_HOST_UNLOADED, /* a required model was removed, and nothing is being loaded */
};

/* The states of a version of a model; model_table.c draws how they follow each other. */
enum model_state {
    MODEL_LOADING,
    MODEL_READY,
    MODEL_FAILED,
    MODEL_UNLOADING,
    MODEL_UNLOADED,
    MODEL_STATES
};

/* Why a version is not loaded. */
enum unload_cause {
    UNLOAD_NOT_YET,  /* no request has asked for it yet */
    UNLOAD_ASKED,    /* by POST /v2/repository/models/M/unload: no request loads it */
    UNLOAD_IDLE,     /* no request for options.idle_unload_ms */
    UNLOAD_MEMORY,   /* another model needed its memory */
    UNLOAD_REPLACED, /* loaded again from new files; the state stays MODEL_READY */
    UNLOAD_CAUSES
};

/* "asked", "idle" …: the same word in /metrics and the log. Static. */
const char *unload_cause_name(enum unload_cause cause);

/* "loading", "ready" …: the same word in /health, /metrics and the pages. Static. */
const char *model_state_name(enum model_state state);

struct model_host_options {
    struct device_id devices[DEVICE_MAX];
    size_t device_count;
    enum precision precision;         /* PRECISION_AUTO: each model's is chosen when it loads */
    const char *cache;                /* as precision_options.cache; borrowed */
    enum precision_trials trials;     /* TRIALS_NONE, or TRIALS_LATER: model_host_try_precision */
    int threads;                      /* forward threads per CPU lane; 0 = all available cores */
    int workers;                      /* decode threads; 0 = all available cores */
    int max_batch;                    /* 1 … 256; 0 = the model's own (config.pbtxt), else 8 */
    size_t memory_limits[DEVICE_MAX]; /* bytes for each of `devices`, for all models together; 0 =
                                         three quarters of what the process may use, less what it
                                         takes itself; nine tenths of a GPU's */
    size_t max_queue; /* images admitted and not yet answered, per model; 0 = 256, at most 2^20 */
    size_t max_queue_bytes; /* of images that wait for a worker, per model; 0 = no bound */
    int64_t max_queue_ms;   /* predicted milliseconds until an answer; 0 = no bound */
    struct image_limits limits;
    bool fast_decode;                        /* image_decode_reduced */
    const struct task_options *task_options; /* override the models' own; borrowed; NULL: none */
    const char
        *default_model; /* answers requests that name none; borrowed; NULL: model_host_default */
    int64_t idle_unload_ms; /* a model without a request for so long is unloaded; 0: never; models
                               may say otherwise */
    bool ready_strict;      /* model_host_readiness() asks every model that was there at start */
    void (*worker_begin)(void); /* called by each decode worker before its first image; or NULL */
    struct metrics *metrics;    /* borrowed; may be NULL in tests */
};

#define PREDICT_MAX_TOP_K 1000

/* One image, or one row of a raw-tensor request: input fields set by the caller, the rest by the
 * model host. */
struct predict_image {
    const uint8_t *data; /* borrowed until on_done; unused in a raw-tensor request */
    size_t size;
    const struct image *pixels; /* upright RGB to use instead of `data`; borrowed until on_done;
                                   NULL: `data` is decoded */
    const char *name;           /* field or file name for the answer; borrowed; may be NULL */
    struct error preset;        /* status != OK: invalid from the start (bad base64 …): not run */

    enum status status;             /* of this image alone */
    struct error error;             /* when status != OK */
    uint32_t width, height;         /* upright, as decoded */
    struct prediction *predictions; /* top-k, best first; freed by predict_request_free_results */
    size_t prediction_count;
    struct task_answer answer;    /* for tasks other than classification; freed likewise */
    uint64_t frame;               /* not read by the model host: its number in its track; 0: none */
    struct predict_image **crops; /* not read by the model host: for each box its crop with the
                                     answer of the next stage (stages.h), or NULL; NULL: there is
                                     none. Freed likewise */
    uint8_t *photo;               /* with decode_only: width * height pixels, RGB; freed by
                                     predict_request_free_results, unless the caller takes it */
    struct tensor **outputs; /* with raw_outputs: output_count of the served model, NULL where not
                                wanted, first dimension 1 where it has rows; freed by
                                predict_request_free_results */
    int batch;               /* size of the batch it ran in */
    struct device_id device;
    /* Milliseconds of the phases it went through; 0 for those it did not reach. queue_ms: waiting
     * for a worker plus waiting, ready, for its lane. forward_ms: of the whole batch. */
    double decode_ms, preprocess_ms, queue_ms, forward_ms;
    double output_ms;                    /* from the end of the forward pass to here */
    int64_t decode_start, forward_start; /* clock_now() when a worker took it, and when its pass
                                            began; 0: never */

    struct predict_request *request; /* private to the model host */
    struct batch_item entry;         /* private: its place in the queue and in batches */
    bool has_moved; /* private: a device failed under it, and it went to another one */
    struct predict_image *next_deferred; /* private: the next image whose answer a worker makes */
    int64_t since;                       /* private: when it entered the phase it is in */
};

/* What a request gets when the size that it names is not compiled. */
enum size_choice {
    SIZE_EXACT,            /* no other */
    SIZE_NEAREST_IF_SHORT, /* the nearest compiled size if memory has no room for this one */
    SIZE_NEAREST,          /* the nearest compiled size */
};

struct model_entry;

#define REQUEST_WORD_INPUTS 8

/* Words that a detector looks for in the photos of a request. rows[i], of bytes[i], is for input i
 * of the model; NULL: it is the photo's. Borrowed until on_done. */
struct request_words {
    struct task_words words;
    const void *rows[REQUEST_WORD_INPUTS];
    size_t bytes[REQUEST_WORD_INPUTS];
};

struct predict_request {
    struct predict_image *images;
    size_t image_count;
    const char *model; /* NULL: the default model; borrowed until on_done */
    int height, width; /* pixels that photos are prepared to; 0: the model's own */
    enum size_choice size_choice;
    bool waits_for_sizes; /* model_host_await() waits for the sizes that its pipeline names, too */
    bool any_size;        /* for model_host_would_admit: the body may name a size */
    const char *version;  /* NULL: the newest one served; borrowed until on_done */
    struct deployment
        *target; /* NULL, or from model_host_acquire: serves it, whatever `model` says */
    /* Raw tensors instead of photos; needs `target`. One pointer per input of the served model, in
     * its order, to image_count rows as deployment->inputs[i] says, packed: images[r] is row r.
     * Borrowed until on_done. NULL: photos. */
    const void *const *tensors;
    /* With tensors that were made of a photo: its place in the input of the model that made them,
     * whose width and height the image has. Borrowed until on_done. NULL: they were not. */
    const struct task_geometry *place;
    /* Texts that are the classes, instead of the model's: a photo's vector is compared with theirs.
     * Borrowed until predict_request_free_results; must be filled before submit. NULL: none. */
    struct zero_shot *texts;
    const struct request_words *words; /* likewise, of a detector that takes words */
    const char *const *text_names;     /* of the texts or words */
    size_t longest_name;               /* bytes of the longest of them as a JSON string */
    struct request_parts *parts; /* not read by the model host: what it was divided into, or NULL */
    bool decode_only;            /* return the photos as pixels: no forward pass, no predictions */
    bool raw_outputs;            /* return the model's outputs unchanged, no predictions */
    const bool *wanted_outputs;  /* of output_count; NULL: all; borrowed until on_done */
    const bool *binary_outputs;  /* the same, not read by the model host; NULL: all are text */
    bool wants_picture;          /* not read by the model host: answered by the annotated photo */
    int top_k;                   /* 1 … PREDICT_MAX_TOP_K */
    bool asks_top_k;             /* the client gave it: the model must have a use for it */
    bool ignores_unused_options; /* an option that the model does not use is no error */
    struct task_options *options;  /* NULL: the model's; borrowed until on_done; submit looks
                                      up class names in it */
    int64_t started;               /* clock_now() at the request line, for total times */
    int64_t deadline;              /* clock_now() after which the answer is useless; 0: none */
    enum admission_kind admission; /* of a request in parts: admission.h */
    int priority;    /* 1 (goes first) … 8 (last); 0: the default, QUEUE_DEFAULT_PRIORITY */
    uint64_t client; /* for fairness between clients; 0: unknown */
    bool has_keep_alive;
    int64_t keep_alive_ns; /* how long the model stays loaded afterwards; INT64_MAX: for ever */
    _Atomic int cancelled; /* the client has gone: set by anyone, read before decode and forward */
    void (*on_done)(struct predict_request *request); /* exactly once after a successful submit */
    void *context;

    const struct model *used_model; /* set by submit: the model that answers, alive until
                                       predict_request_free_results; its graph is gone */
    struct deployment *deployment;  /* set by submit: the same, with its inputs and outputs */
    struct metric *write_seconds;   /* set by submit: where to note how long the answer took to be
                                     written; lives as long as the metrics; may be NULL */
    struct model_entry *held[PIPELINE_STAGES_MAX]; /* private: set by model_host_hold */
    size_t held_count;
    struct predict_request *next_waiting; /* private */
    _Atomic size_t pending; /* private to the model host: images without an answer, and one for
                               everybody else who needs the request alive */
};

struct model_host;

/* Starts workers at once; models are added afterwards. Options are copied. STATUS_CONFIG for a
 * number out of its range, STATUS_NO_MEMORY. */
enum status model_host_create(const struct model_host_options *options, struct model_host **ret,
                              struct error *err) MUST_USE;

/* Stops accepting (submit answers STATUS_DRAINING), waits until every admitted image is answered or
 * `grace_ms` is over: then what has not begun its forward pass fails with STATUS_DRAINING, and only
 * decodes and forward passes under way are waited for. Every on_done has returned when this
 * returns. True when everything was answered within the grace time. From any thread but the
 * model host's own; further calls find nothing to do. */
bool model_host_drain(struct model_host *host, int grace_ms);

/* Ends all threads, frees sessions and models. Drains without grace first, if nobody has. No other
 * call may be running (a loader in model_host_add_model has been joined). NULL is fine. */
void model_host_free(struct model_host *host);

/* Compiles and warms `model` on every device of the options (may take seconds: call from a loader
 * thread), then serves it under model->name and model->version. Where that version is served
 * already, the sizes in use are compiled again as well (struct model_host_source), then this one
 * takes its place in one step, and the call returns when the old one has answered what it was
 * given. A size that does not compile then is compiled when it is next asked for. Other versions of
 * the name are left alone. Takes over `model` on success and on failure; a failure is also noted as
 * by model_host_fail, and leaves what is served as it is. Progress is reported from inside.
 * `cancel` may be NULL. Several threads may load different models at once. Errors: those of
 * session_create; STATUS_SHAPE; STATUS_CONFIG (a name too long); STATUS_DRAINING;
 * STATUS_NO_MEMORY. */
enum status model_host_add_model(struct model_host *host, struct model *model,
                                 const _Atomic int *cancel, struct error *err) MUST_USE;

/* Lists `model` without loading it: requests do (model_host_hold). Takes it over. Where the version
 * is served already, nothing changes. STATUS_NO_MEMORY, STATUS_CONFIG, STATUS_DRAINING, of which a
 * failure is noted as by model_host_fail. */
enum status model_host_list_model(struct model_host *host, struct model *model,
                                  struct error *err) MUST_USE;

/* Whether the version was unloaded and requests may load it. */
bool model_host_is_unloaded(struct model_host *host, const char *name, const char *version);

/* Whether the version is loaded, or being loaded for a request. */
bool model_host_is_loaded(struct model_host *host, const char *name, const char *version);

/* Serves a pipeline.json under this name: JSON of POST /predict runs its stages (stages.h), other
 * requests are refused; admission asks the first stage's model. Stages are looked up by name for
 * each request. STATUS_CONFIG, STATUS_DRAINING, STATUS_NO_MEMORY; a failure is noted as by
 * model_host_fail. */
enum status model_host_add_pipeline(struct model_host *host, const char *name, const char *version,
                                    const struct pipeline_config *config,
                                    struct error *err) MUST_USE;

/* The stages, malloc'ed, if the model of a request (NULL: the default, the newest) is a pipeline,
 * and its name. *ret: NULL if it is something else. STATUS_NO_MEMORY. */
enum status model_host_find_pipeline(struct model_host *host, const char *name, const char *version,
                                     char ret_name[static 128], struct pipeline_config **ret,
                                     struct error *err) MUST_USE;

/* Finds the model that takes the texts of a request for model `name` (NULL: the default): that
 * model, or its other half. STATUS_INVALID: it takes none. Returns an unknown name unchanged; the
 * submission then fails. */
enum status model_host_find_text(struct model_host *host, const char *name, char ret[static 128],
                                 struct error *err) MUST_USE;

/* STATUS_CONFIG with a sentence if a stage of this pipeline names a size that its model has no
 * place for beside those of its earlier stages and of the pipelines before it in the table. Models
 * that are not served are passed over. */
enum status model_host_check_sizes(struct model_host *host, const char *name, const char *version,
                                   struct error *err) MUST_USE;

/* Writes name and version of a model that was made for a quick start, or serves in fp32 until its
 * trials are made; false: there is none. */
bool model_host_next_trial(struct model_host *host, char name[static 128], char version[static 16]);

/* Improves a version while it serves. If it was made for a quick start, its kernels are measured,
 * and what runs batches with them takes its place; the next call makes its trials. `model`: the
 * same version, read again from its files. If another precision wins, a session of that precision
 * replaces the one in fp32, as with model_host_add_model, and the log says so. Takes over `model`
 * on success and on failure. Call it from the thread that added the version. STATUS_CANCELLED: it
 * is still to be done. Other errors are shown as the reason for fp32, and not returned. */
enum status model_host_try_precision(struct model_host *host, struct model *model,
                                     const _Atomic int *cancel, struct error *err) MUST_USE;

/* ---- loads that requests ask for ---- */

/* Keeps what the request's model and version need loaded (the model, or those of a pipeline's
 * stages) until predict_request_free_results. False: some of it is not loaded, and will be; call
 * model_host_await. True also where waiting would not help, so that submitting gives the error. */
bool model_host_hold(struct model_host *host, struct predict_request *request);

/* Waits for the loads, then holds as model_host_hold does and calls on_done, once, from any thread
 * and perhaps before this returns; also when a load fails, the client hangs up
 * (model_host_cancel), or the deadline is over: submitting then tells. The request is submitted
 * afterwards, with another on_done. STATUS_NOT_READY (the deadline is before the loads are likely
 * to end), STATUS_OVERLOADED (too many wait), with *ret_retry_after_s: on_done is not called. */
enum status model_host_await(struct model_host *host, struct predict_request *request,
                             int *ret_retry_after_s, struct error *err) MUST_USE;

/* Ends the waits whose deadlines have passed. Call it regularly, from any thread. */
void model_host_end_waits(struct model_host *host);

/* Writes name and version of the next model to load for a request; false: there is none. */
bool model_host_next_load(struct model_host *host, char name[static 128], char version[static 16]);

/* Unloads what nobody has asked for long enough; returns when (clock_now()) to call this again.
 * From the thread that loads. */
int64_t model_host_unload_idle(struct model_host *host);

/* ---- sizes ---- */

/* The same version as `deployment`, which the caller has acquired, for photos or tensors of height
 * x width pixels, or what has taken its place meanwhile; both are to be released. Where the file
 * leaves height and width free, each size is compiled when it is first asked for, and
 * DEPLOYMENT_SIZES of them are kept beside the model's own, those first that pipelines name.
 * The nearest size is the one whose sides differ least in ratio.
 * STATUS_INVALID: the file fixes the size, the model does not work with this one, or pipelines
 * name all that are kept; STATUS_SHORT_OF_MEMORY: memory has no room for it;
 * STATUS_NOT_READY with *ret_retry_after_s (may be NULL): it is being compiled. */
enum status model_host_acquire_size(struct model_host *host, struct deployment *deployment,
                                    int height, int width, enum size_choice choice,
                                    struct deployment **ret, int *ret_retry_after_s,
                                    struct error *err) MUST_USE;

/* Returns the version of `deployment` compiled for shorter rows that hold `tokens` tokens; the
 * caller releases it. NULL: there is none. If the length of text_input_row_length() is not compiled
 * yet, its compilation is requested. The caller has acquired `deployment`, a model for texts. Any
 * thread. */
struct deployment *model_host_acquire_length(struct model_host *host,
                                             const struct deployment *deployment, size_t tokens);

/* What the model host asks of the thread that adds its models. */
struct model_host_source {
    void (*wake)(void *context); /* from any thread: a client asks for a model that is not loaded or
                                    a size that is not compiled, or has used a model that is to be
                                    unloaded at once; or NULL */
    /* Reads a version that is being added once more, on the thread that adds it; or NULL. */
    enum status (*read)(void *context, const char *name, const char *version, struct model **ret,
                        struct error *err);
    void *context;
};

/* Call this before requests are submitted. The struct is copied. */
void model_host_set_source(struct model_host *host, const struct model_host_source *source);

/* Returns the number of sizes that pipelines name and that are not compiled yet; counts a size for
 * each pipeline that names it. / */
size_t model_host_sizes_left(struct model_host *host);

/* Writes the model, version and size of the next one to be compiled, those of pipelines first;
 * false: there is none. Before that the model host is not ready, if it was not when a pipeline.json
 * was added. */
bool model_host_next_size(struct model_host *host, char name[static 128], char version[static 16],
                          int *ret_height, int *ret_width);

/* Compiles that size. Takes over `model`, the version read again, on success and on failure. If
 * DEPLOYMENT_SIZES are kept, it replaces the least recently used one that no pipeline names. Call
 * it from the thread that added the version. A failure is kept and returned to clients that ask for
 * the size again. A size that was cancelled stays in the queue. If memory is short and sizes that
 * no pipeline names are kept, the least recently used one is removed, and this size stays in the
 * queue. */
void model_host_add_size(struct model_host *host, struct model *model, int height, int width,
                         const _Atomic int *cancel);

/* Reports that the version could not be read again, so that this size cannot be compiled. */
void model_host_fail_size(struct model_host *host, const char *name, const char *version,
                          int height, int width, const struct error *failure);

/* The trials of that version will not be made; `why` is shown as the reason for fp32. */
void model_host_skip_trial(struct model_host *host, const char *name, const char *version,
                           const char *why);

/* Stops serving `version` of a model (NULL: all its versions) and returns when they have answered
 * what they were given. With `forget` the model leaves the table altogether, otherwise it is shown
 * as MODEL_UNLOADED. STATUS_NOT_FOUND: there is none. From any thread but the model host's own. */
enum status model_host_remove_model(struct model_host *host, const char *name, const char *version,
                                    bool forget, struct error *err) MUST_USE;

/* The newest ready version of a model, or the one that is named (NULL: the default model; NULL: the
 * newest), for a raw-tensor request that is about to be made. It goes on accepting requests until
 * model_host_release, which must follow soon and on every way out: whoever replaces it waits for
 * that. Errors as model_host_submit's: STATUS_NOT_FOUND, STATUS_NOT_READY with *ret_retry_after_s
 * (may be NULL). `ret` NULL: asks only whether the model can answer, which one can that requests
 * load. */
enum status model_host_acquire(struct model_host *host, const char *name, const char *version,
                               struct deployment **ret, int *ret_retry_after_s,
                               struct error *err) MUST_USE;
void model_host_release(struct model_host *host, struct deployment *deployment);

/* What the tensors of all runs are charged to; lives as long as the host. */
struct memory_budget *model_host_run_memory(struct model_host *host);

/* Announces a model (version NULL: not known yet) that is about to load, so that /health can show
 * it and the model host is not ready before it is. `required_total`: how many models have to be
 * loaded before the model host is ready (the greatest number so far counts), so that the first
 * of three does not make it so; a model announced with 1 or more is required as long as it is in
 * the table (options.ready_strict). */
void model_host_announce(struct model_host *host, const char *name, const char *version,
                         size_t required_total);

/* An announced model will not load, and `failure` is the sentence why: the model host is
 * MODEL_HOST_FAILED unless a version of that name is served. Where this very version is served, the
 * failure is that of what should have replaced it. Unknown names are left alone. */
void model_host_fail(struct model_host *host, const char *name, const char *version,
                     const char *failure);

/* What stood in the way of replacing a model that is served has gone: versions that are ready have
 * no failure any more. */
void model_host_clear_failure(struct model_host *host, const char *name);

/* What was to be loaded at start has been tried: from now on the model host is ready when any model
 * is, or when there is none at all, and models that fail only say so. */
void model_host_settle(struct model_host *host);

enum model_host_state model_host_state(const struct model_host *host);

/* The state for health probes: model_host_state(), but MODEL_HOST_FAILED when a model that is
 * served has no device left that works, and MODEL_HOST_STUCK. With options.ready_strict, if a
 * required model is not served: whether it is loading, has failed or was unloaded. */
enum model_host_state model_host_readiness(struct model_host *host);

/* Seconds after which it is worth asking for readiness again: an estimate while models load, else
 * 1. */
int model_host_retry_after(struct model_host *host);

/* Admits or refuses, never blocks. The caller has set the input fields and zeroed the rest. Errors:
 * STATUS_INVALID (no image, top_k or priority out of range, photos for a model that takes none,
 * labels of one that is no classifier, rows that do not go together, no model where several could
 * be meant), STATUS_NOT_FOUND (no such model; the sentence names the models), STATUS_TOO_LARGE
 * (more images than the queue's bound), STATUS_NOT_READY, STATUS_DRAINING, STATUS_OVERLOADED (a
 * bound of the queue is reached, or the deadline could not be met); with the last three
 * *ret_retry_after_s is set to 1 or more. STATUS_TIMEOUT (the deadline is over). On success on_done
 * will be called exactly once, possibly before this returns, and the request must stay alive until
 * then. On failure on_done is not called. */
enum status model_host_submit(struct model_host *host, struct predict_request *request,
                              int *ret_retry_after_s, struct error *err) MUST_USE;

/* Would a request of `images` and `bytes` be admitted now, as far as its head tells? For refusing
 * before the body is read. Of the request only model, version, size, deadline, priority and client
 * are looked at. With any_size it is refused only if the queues of all compiled sizes refuse it.
 * Errors as of model_host_submit; refusals are counted alike. */
enum status model_host_would_admit(struct model_host *host, const struct predict_request *request,
                                   size_t images, size_t bytes, int *ret_retry_after_s,
                                   struct error *err) MUST_USE;

/* The name that requests mean which name no model, copied to `size` bytes, whether it is ready or
 * not: options.default_model, else the only model, or the only pipeline whose stages are all other
 * models. While it is unloaded no other takes its place. False and "": there is none. */
bool model_host_default(struct model_host *host, char *ret, size_t size);

/* Whether a request can mean another model than the default. */
bool model_host_has_choice(struct model_host *host);

/* Keeps a request that was submitted alive: its on_done is not called before model_host_cancel.
 * False when there is nothing to keep: it was not admitted (yet), or all is answered and on_done
 * has been called. The caller sees to it that the memory is there during the call. */
bool predict_request_pin(struct predict_request *request);

/* The client of a pinned request has gone: its images that wait in the queue are answered with
 * STATUS_CANCELLED at once and make room; those further on when their turn comes. The pin is gone
 * afterwards, and on_done may be called from here. */
void model_host_cancel(struct model_host *host, struct predict_request *request);

/* Frees what the model host allocated inside the request (predictions, outputs) and lets its model
 * go; not the request. Must follow every on_done, before model_host_free. Fine on a request that
 * was refused or never submitted. */
void predict_request_free_results(struct predict_request *request);

/* Whether a lane works, is quarantined because its device fails, or is stuck in a pass. */
struct lane_health {
    bool is_quarantined, is_stuck;
    double quarantined_s; /* for how long */
    char reason[256];     /* "cuda:1: …" */
};

/* What /health and /devices show of a model; snapshot, copied. */
struct model_status {
    char name[128], version[16];
    enum model_state state;
    double progress;   /* 0 … 1 while loading; does not go back */
    const char *phase; /* while loading: "reading", "optimising", "compiling", "measuring" */
    int seconds_left;  /* while loading: an estimate */
    char failure[480]; /* the sentence, when it failed; with MODEL_READY: what should have replaced
                          it failed */
    bool can_answer;   /* it is ready, or a request loads it */
    enum unload_cause cause;                /* of MODEL_UNLOADING and MODEL_UNLOADED */
    uint64_t loads, unloads[UNLOAD_CAUSES]; /* so far; by cause */
    double load_seconds;                    /* of the last load */
    uint64_t parameter_bytes, file_bytes;
    size_t lane_count;
    struct session_info lanes[DEVICE_MAX];
    struct lane_health health[DEVICE_MAX];         /* of `lanes` */
    struct precision_choice choices[DEVICE_KINDS]; /* by enum device_kind; `why` "": none */
    size_t queued;       /* images admitted that wait for a decode worker */
    size_t in_flight;    /* images admitted that are past that: decode, slot, forward, answer */
    uint64_t answered;   /* images and rows, since this version is here */
    bool takes_images;   /* photos can be sent to it */
    bool answers_photos; /* POST /predict answers them */
    enum task_kind task;
    char task_evidence[240];
    float confidence, iou;       /* thresholds of its task; negative: it has none */
    int width, height, channels; /* of the photos; 0 without */
    size_t class_count;
    bool is_default;
    char stages[PIPELINE_STAGES_MAX][128]; /* names of a pipeline's models; the task, the size and
                                              the thresholds are those of the first */
    size_t stage_count;                    /* 0: it is no pipeline */
    bool is_first; /* made for a quick start; what runs batches is to follow */
};

/* Is a pass of a model stuck: it takes far longer than was predicted or than its clients wait, and
 * other passes on its device wait for it? ret_models: which, with commas. */
bool model_host_is_stuck(struct model_host *host, char *ret_models, size_t size);

/* Bytes that models take of a device (weights, activations, batches of inputs); *ret_limit: how
 * many they may take, 0 without a limit. */
size_t model_host_memory(struct model_host *host, struct device_id device, size_t *ret_limit);

/* At most `max`, by name, those of a name in the order they were announced; returns how many. */
size_t model_host_models(struct model_host *host, struct model_status *ret, size_t max);

/* All of them, malloc'ed; NULL when out of memory. */
struct model_status *model_host_snapshot(struct model_host *host, size_t *ret_count);
