/* The model host runs models on photos and raw tensors.
 *
 *     submit ─▶ queue ─▶ decode workers ─▶ forming batch ─▶ lane (device) ─▶ scores ─▶ on_done
 *       │               decode, transform      slots         submit, collect softmax, top-k
 *       └─ admission: 503 here
 *
 * model_host_submit() never blocks: it admits or refuses. Decode workers (one pool for all models)
 * decode an image, reserve a slot in the forming batch of its model, and write the normalised
 * pixels into it. A lane (one thread per model and device) takes the forming batch when it is full,
 * or when the device is idle and an image is ready. A photo that cannot be decoded fails alone,
 * before it has a slot.
 * Rows of raw-tensor requests share batches with images: a worker copies a row into its slot. When
 * the last image of a request is done, a thread of the model host calls the request's on_done.
 *
 * docs/design.md lists the files in the order in which a request and a model pass through them.
 * model_table.h names the files of the model host. A new version replaces the old one without
 * interruption: no request is refused because of a replacement.
 *
 * Locks: the table of models, each scheduler and the pool have one lock each. No thread holds two
 * of these locks, or any during a decode, a forward pass, a copy of pixels or a callback. */
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
    MODEL_HOST_LOADING, /* loading models, or compiling sizes that pipelines name */
    MODEL_HOST_READY,
    MODEL_HOST_DRAINING,
    MODEL_HOST_FAILED,   /* a required model did not load */
    MODEL_HOST_STUCK,    /* a pass is stuck; only model_host_readiness() returns this state */
    MODEL_HOST_UNLOADED, /* models were unloaded, or none was found; nothing is being loaded */
};

/* The states of a version of a model; docs/design.md draws their transitions. */
enum model_state {
    MODEL_LOADING,
    MODEL_READY,
    MODEL_FAILED,
    MODEL_UNLOADING,
    MODEL_UNLOADED,
    MODEL_STATES
};

/* The reason why a version is not loaded. */
enum unload_cause {
    UNLOAD_NOT_YET,  /* no request has needed it yet */
    UNLOAD_ASKED,    /* POST /v2/repository/models/M/unload asked for it; requests cannot load it */
    UNLOAD_IDLE,     /* the model had no request within its idle time */
    UNLOAD_MEMORY,   /* another model needed the memory */
    UNLOAD_REPLACED, /* loaded again from new files; the state stays MODEL_READY */
    UNLOAD_CAUSES
};

/* "asked", "idle" …: the same word as in /metrics and the log. Static. */
const char *unload_cause_name(enum unload_cause cause);

/* "loading", "ready" …: the same word as in /health, /metrics and the pages. Static. */
const char *model_state_name(enum model_state state);

struct model_host_options {
    struct device_id devices[DEVICE_MAX];
    size_t device_count;
    enum precision precision;         /* PRECISION_AUTO: chosen for each model when it loads */
    const char *cache;                /* as precision_options.cache; borrowed */
    enum precision_trials trials;     /* TRIALS_NONE or TRIALS_LATER (model_host_try_precision()) */
    int threads;                      /* forward threads per CPU lane; 0 = the available cores,
                                         shared by the CPU lanes of a model */
    int workers;                      /* decode threads; 0 = all available cores */
    int max_batch;                    /* 1 … 256; 0 = the model's own (config.pbtxt), else 8 */
    size_t memory_limits[DEVICE_MAX]; /* bytes of each device for all models together. 0: on a GPU
                                         nine tenths of its memory, on a CPU about 70 % of the
                                         memory that the process may use */
    size_t max_queue; /* limit of admitted images without an answer, per model: 1 … 2^20; 0: 256 */
    size_t max_queue_bytes; /* limit of bytes of images in the queue, per model; 0: none */
    int64_t max_queue_ms;   /* limit of the predicted milliseconds until an answer; 0: none */
    struct image_limits limits;
    bool fast_decode;                        /* let image_decode() reduce photos */
    const struct task_options *task_options; /* override the models' options; borrowed; or NULL */
    const char *default_model; /* the model for requests that name none; borrowed; or NULL */
    int64_t idle_unload_ms;    /* idle time before a model is unloaded; 0: never; a model's file or
                                  a request can override it */
    bool ready_strict; /* model_host_readiness() requires every model that existed at start */
    void (*worker_begin)(void); /* called by each decode worker before its first image; or NULL */
    struct metrics *metrics;    /* borrowed; may be NULL in tests */
};

#define PREDICT_MAX_TOP_K 1000

/* How an image was computed. */
struct predict_times {
    int batch; /* number of images in the pass that computed it; 0: there was no pass */
    struct device_id device;
    /* Milliseconds of each phase; 0 for a phase that the image has not reached. queue_ms: the waits
     * for a worker and for a lane together. forward_ms: the pass of the whole batch. */
    double decode_ms, preprocess_ms, queue_ms, forward_ms;
    double output_ms; /* from the end of the forward pass to the answer */
    int64_t decode_start,
        forward_start; /* clock_now() when a worker took it and when its pass began; 0: never */
};

/* One image, or one row of a raw-tensor request. The caller sets the first block of members, and
 * the model host the others, except members that it does not read, as their comments say. */
struct predict_image {
    const uint8_t *data; /* borrowed until on_done; unused in a raw-tensor request */
    size_t size;
    const struct image *pixels; /* upright RGB instead of `data`; borrowed until on_done; or NULL */
    const char *name;           /* field or file name for the answer; borrowed; may be NULL */
    struct error preset; /* status != OK: the image is invalid (bad base64 …) and does not run */

    enum status status;             /* the result of this image alone */
    struct error error;             /* set when status != OK */
    uint32_t width, height;         /* of the decoded photo, turned upright */
    struct prediction *predictions; /* top-k, best first; freed by predict_request_free_results */
    size_t prediction_count;
    struct task_answer answer;    /* for tasks other than classification; freed like predictions */
    uint64_t frame;               /* not read by the model host: with ?track=, the frame's number in
                                     its track; 0: none */
    struct predict_image **crops; /* set by stages.c, or NULL: for each box its crop with the next
                                     stage's answer; an entry is NULL if its box has no crop.
                                     Freed like predictions */
    uint8_t *photo;               /* with decode_only: width * height pixels, RGB; freed by
                                     predict_request_free_results(), unless the caller takes it */
    struct tensor **outputs; /* with raw_outputs: a tensor for each output of the model, NULL if not
                                wanted, first dimension 1 if it has rows; freed by
                                predict_request_free_results() */
    struct predict_times times;

    struct predict_request *request; /* private to the model host */
    struct batch_item entry;         /* private: its place in the queue and in batches */
    bool has_moved; /* private: it went to another lane after a device had failed */
    STAILQ_ENTRY(predict_image) deferred; /* private: links the images that workers are to answer */
    int64_t since;                        /* private: clock_now() when its current phase began */
};

/* What model_host_acquire_size() does if the size is not compiled. */
enum size_choice {
    SIZE_EXACT,            /* use only the requested size */
    SIZE_NEAREST_IF_SHORT, /* use the nearest compiled size if memory has no room for this one */
    SIZE_NEAREST,          /* use the nearest compiled size */
};

struct model_entry;

#define REQUEST_WORD_INPUTS 8

/* Words that a detector looks for in the photos of a request. rows[i] has bytes[i] bytes for input
 * i of the model; for the photo's input rows[i] is NULL. Borrowed until on_done. */
struct request_words {
    struct task_words words;
    const void *rows[REQUEST_WORD_INPUTS];
    size_t bytes[REQUEST_WORD_INPUTS];
};

struct predict_request {
    struct predict_image *images;
    size_t image_count;
    const char *model; /* NULL: the default model; borrowed until on_done */
    int height, width; /* the size for which the model should be compiled; 0: the model's own */
    enum size_choice size_choice;
    bool waits_for_sizes; /* model_host_await() also waits until the sizes that the stages of its
                             pipeline name are compiled */
    bool any_size;        /* for model_host_would_admit(): the body may name a size */
    const char *version;  /* NULL: the newest served version; borrowed until on_done */
    struct deployment *target; /* from model_host_acquire(); overrides `model`; or NULL */
    /* Raw tensors instead of photos; needs `target`. For each input of the model, in order, a
     * pointer to image_count packed rows as deployment->inputs[i] describes; images[r] is row r.
     * Borrowed until on_done. NULL: photos. */
    const void *const *tensors;
    /* For tensors that were computed from a photo: the photo's position in the input of the model
     * that computed them; the image has the photo's width and height. Borrowed until on_done; or
     * NULL. */
    const struct task_geometry *place;
    /* Texts to use as classes instead of the model's: a photo's vector is compared with their
     * vectors. Borrowed until predict_request_free_results(); filled before submit. NULL: none. */
    struct zero_shot *texts;
    const struct request_words *words; /* for a detector that takes words; borrowed until on_done */
    const char *const *text_names;     /* names of the texts or words */
    size_t longest_name;               /* bytes of the longest name as a JSON string */
    struct request_parts *parts; /* not read by the model host: the request's parts, or NULL */
    bool decode_only;            /* return the photos as pixels: no forward pass, no predictions */
    bool raw_outputs;            /* return the model's outputs unchanged, no predictions */
    const bool *wanted_outputs;  /* one per output; NULL: all; borrowed until on_done */
    const bool *binary_outputs;  /* not read by the model host: outputs to send in binary; NULL:
                                    none */
    bool wants_picture;          /* not read by the model host: answer with the annotated photo */
    int top_k;                   /* 1 … PREDICT_MAX_TOP_K */
    bool asks_top_k; /* the client has set top_k: refuse it if the model does not use it */
    bool ignores_unused_options;   /* accept options that the model does not use */
    struct task_options *options;  /* borrowed; submit looks up class names; NULL: the model's */
    int64_t started;               /* clock_now() when the request line arrived, for total times */
    int64_t deadline;              /* clock_now() from which on the answer is useless; 0: none */
    enum admission_kind admission; /* for a request in parts; see admission.h */
    int priority;    /* 1 (goes first) … 8 (last); 0: the default, QUEUE_DEFAULT_PRIORITY */
    uint64_t client; /* for fairness between clients; 0: unknown */
    bool has_keep_alive;
    int64_t keep_alive_ns; /* how long the model stays loaded afterwards; INT64_MAX: forever */
    _Atomic int cancelled; /* 1: the client has gone; see model_host_cancel(). Any thread */
    void (*on_done)(struct predict_request *request); /* exactly once after a successful submit */
    void *context;

    const struct model
        *used_model; /* set by submit; has no graph; valid until the results are freed */
    struct deployment *deployment; /* set by submit: the deployment that answers */
    struct metric
        *write_seconds; /* set by submit: the histogram for the time to write the answer; or NULL */
    struct model_entry *held[PIPELINE_STAGES_MAX]; /* private: set by model_host_hold() */
    size_t held_count;
    TAILQ_ENTRY(predict_request) waiting; /* private: links the requests that wait for a load */
    bool is_waiting;                      /* private */
    _Atomic size_t pending; /* private: unanswered images, plus 1 for each pin and other user */
};

struct model_host;

/* Starts the workers; models are added afterwards. Copies the options, whose ranges
 * config_options.c checks. STATUS_NO_MEMORY; the caller frees *ret, which a failure may set. */
enum status model_host_create(const struct model_host_options *options, struct model_host **ret,
                              struct error *err) MUST_USE;

/* From now on submit returns STATUS_DRAINING. Waits until every admitted image is answered or
 * `grace_ms` milliseconds are over. Then images whose forward pass has not begun fail with
 * STATUS_DRAINING, and it waits only for decodes and forward passes that are running. When it
 * returns, every on_done has returned. Returns true if everything was answered within the grace
 * time. Do not call it from the model host's own threads. */
bool model_host_drain(struct model_host *host, int grace_ms);

/* Ends all threads, frees sessions and models; drains without grace first, if necessary. No other
 * call may be running: first join a thread that is in model_host_add_model(). NULL is fine. */
void model_host_free(struct model_host *host);

/* Compiles and warms up `model` on every device of the options (may take seconds: call it from a
 * loader thread), then serves it as model->name and model->version. If that version is already
 * served, its sizes in use are also compiled again (struct model_host_source); a size that fails is
 * compiled when it is next requested. Then the new deployment replaces the old one in one step, and
 * the call returns when the old one has answered its requests. Other versions of the name do not
 * change. Takes ownership of `model`, even on failure. A failure is also recorded as by
 * model_host_fail(); models that are served stay. Reports progress. Only `cancel` may be NULL. One
 * thread at a time may load models. Errors: those of session_create(); STATUS_SHAPE; STATUS_CONFIG
 * (a name is too long); STATUS_INVALID (a class of the options is unknown); STATUS_CANCELLED;
 * STATUS_DRAINING; STATUS_NO_MEMORY. */
enum status model_host_add_model(struct model_host *host, struct model *model,
                                 const _Atomic int *cancel, struct error *err) MUST_USE;

/* Lists `model` without loading it; requests load it (model_host_hold()). Takes ownership of it,
 * even on failure. Does nothing if the version is already served. STATUS_NO_MEMORY, STATUS_CONFIG,
 * STATUS_INVALID, STATUS_DRAINING; the caller then calls model_host_fail(). */
enum status model_host_list_model(struct model_host *host, struct model *model,
                                  struct error *err) MUST_USE;

/* True if the load of a version may wait for a request: the version is neither loaded nor wanted by
 * a request, and either `is_lazy`, or it was unloaded and requests can load it. */
bool model_host_may_wait(struct model_host *host, const char *name, const char *version,
                         bool is_lazy);

/* Serves a pipeline.json (`config`, copied) under this name; stages.h runs it. Admission uses the
 * first stage's model. Each request looks up the models of the stages by name. STATUS_CONFIG,
 * STATUS_DRAINING, STATUS_NO_MEMORY; a failure is recorded as by model_host_fail(). */
enum status model_host_add_pipeline(struct model_host *host, const char *name, const char *version,
                                    const struct pipeline_config *config,
                                    struct error *err) MUST_USE;

/* If the requested model (name NULL: the default; version NULL: the newest) is a pipeline, sets
 * *ret to a malloc'ed copy of its stages, and ret_name; else *ret to NULL. STATUS_NO_MEMORY. */
enum status model_host_find_pipeline(struct model_host *host, const char *name, const char *version,
                                     char ret_name[static 128], struct pipeline_config **ret,
                                     struct error *err) MUST_USE;

/* Writes the name of the model that takes the texts of a request for model `name` (NULL: the
 * default): that model itself, or the model of its text half. STATUS_INVALID: neither takes texts.
 * Writes an unknown name unchanged; submitting then fails. */
enum status model_host_find_text(struct model_host *host, const char *name, char ret[static 128],
                                 struct error *err) MUST_USE;

/* Checks that this pipeline and those before it in the table do not name more sizes of a model than
 * a model keeps (DEPLOYMENT_SIZES); skips models that are not served. STATUS_CONFIG if they do. */
enum status model_host_check_sizes(struct model_host *host, const char *name, const char *version,
                                   struct error *err) MUST_USE;

/* Compares fp32 with other precisions for the next version that is waiting for this. If another
 * precision wins, a session of that precision replaces the fp32 one, and this is logged. If the
 * comparison fails, /health gives its error as the reason for fp32. If *cancel becomes 1, the
 * comparison ends, and the next call begins with the same version. Returns false if no version is
 * left. Call it from the thread that adds models. */
bool model_host_try_precision(struct model_host *host, const _Atomic int *cancel);

/* ---- loads that requests ask for ---- */

/* Keeps the models that a request needs (its model, or those of a pipeline's stages) loaded until
 * predict_request_free_results(). Returns false if some are not loaded but will be; call
 * model_host_await(). Also returns true if waiting cannot help: submitting then fails. */
bool model_host_hold(struct model_host *host, struct predict_request *request);

/* Waits for the loads, then holds as model_host_hold() and calls on_done once, from any thread and
 * perhaps before this returns. It also calls on_done when a load fails, the client hangs up
 * (model_host_cancel()), or the deadline passes; submitting then returns the error. After on_done
 * the caller submits the request with another on_done. STATUS_NOT_READY (the deadline is before the
 * predicted end of the loads) and STATUS_OVERLOADED (too many requests wait) set
 * err->retry_after_s; then on_done is not called. */
enum status model_host_await(struct model_host *host, struct predict_request *request,
                             struct error *err) MUST_USE;

/* Ends waits whose deadlines have passed. Call it regularly, from any thread. */
void model_host_end_waits(struct model_host *host);

/* Writes name and version of the next model to load for a request. False if there is none. */
bool model_host_next_load(struct model_host *host, char name[static 128], char version[static 16]);

/* Unloads models that have been idle for long enough. Returns when to call it again (clock_now()).
 * Only the thread that loads calls it. */
int64_t model_host_unload_idle(struct model_host *host);

/* ---- sizes ---- */

/* Returns a deployment of the same version (or of its replacement) that is compiled for photos or
 * tensors of height x width pixels. The caller has acquired `deployment`, and releases both. If the
 * file does not fix height and width, a size is compiled after its first request. The model keeps
 * DEPLOYMENT_SIZES sizes besides its own, preferably sizes that pipelines name. The nearest size
 * is the one whose sides differ by the smallest ratios. STATUS_INVALID: the file fixes the size,
 * the model does not work with this one, or pipelines name all kept sizes; STATUS_SHORT_OF_MEMORY:
 * memory has no room for it; STATUS_NOT_READY: it is being compiled, or the model was unloaded. */
enum status model_host_acquire_size(struct model_host *host, struct deployment *deployment,
                                    int height, int width, enum size_choice choice,
                                    struct deployment **ret, struct error *err) MUST_USE;

/* Returns a deployment of the same version that is compiled for shorter rows with room for `tokens`
 * tokens; the caller releases it. NULL if there is none. If rows of text_input_row_length() are not
 * compiled yet, asks the loader to compile them. The caller has acquired `deployment`, of a model
 * for texts. Any thread. */
struct deployment *model_host_acquire_length(struct model_host *host,
                                             const struct deployment *deployment, size_t tokens);

/* Callbacks of the loader, the thread that adds models. */
struct model_host_source {
    /* Called from any thread when there is work: a client needs a model that is not loaded, or a
     * size that is not compiled, or has used a model that must soon be unloaded. Or NULL. */
    void (*wake)(void *context);
    /* Reads the files of a version again: for its sizes and precisions, and for a load for which
     * memory was short. Called on the thread that adds models. NULL: sizes do not outlive a
     * replacement; do not call model_host_make_size() and model_host_try_precision(). */
    enum status (*read)(void *context, const char *name, const char *version, struct model **ret,
                        struct error *err);
    void *context;
};

/* Call this before requests are submitted. Copies the struct. */
void model_host_set_source(struct model_host *host, const struct model_host_source *source);

/* The number of sizes that pipelines name and that are not compiled yet; a size counts once for
 * each pipeline that names it. */
size_t model_host_sizes_left(struct model_host *host);

/* Compiles the next size: those of pipelines first, then those that clients have requested. If the
 * model already keeps DEPLOYMENT_SIZES, the new size replaces the least recently used one that no
 * pipeline names. A failure is recorded and returned to clients that request the size again. A
 * cancelled size is tried again. If memory is short, the least recently used size that no pipeline
 * names is removed, and the next call tries the new size again. Returns false if there is no size
 * to compile. If the model host was not ready when a pipeline.json was added, it becomes ready only
 * when no size of a pipeline is left. Call it from the thread that adds models. */
bool model_host_make_size(struct model_host *host, const _Atomic int *cancel);

/* Stops serving `version` of a model (NULL: all its versions). Returns when these versions
 * have answered their requests. With `forget` the model is removed from the table, otherwise it is
 * shown as MODEL_UNLOADED. STATUS_NOT_FOUND: there is no such version. Not from the model host's
 * own threads. */
enum status model_host_remove_model(struct model_host *host, const char *name, const char *version,
                                    bool forget, struct error *err) MUST_USE;

/* Sets *ret to the deployment of a model (name NULL: the default model) in a version (NULL: the
 * newest ready one). It accepts requests until model_host_release(), which must follow soon,
 * because a replacement waits for it. Errors as model_host_submit(): STATUS_NOT_FOUND,
 * STATUS_INVALID (no default), STATUS_DRAINING, STATUS_NOT_READY. If `ret` is NULL, it only checks
 * whether the model can answer, perhaps after a load. */
enum status model_host_acquire(struct model_host *host, const char *name, const char *version,
                               struct deployment **ret, struct error *err) MUST_USE;
void model_host_release(struct model_host *host, struct deployment *deployment);

/* Announces a model (version NULL: not known yet) that is about to load, so that /health shows it.
 * Until model_host_settle(), the model host is ready only when every required one can answer.
 * options.ready_strict requires a version of its name as long as it is in the table. */
void model_host_announce(struct model_host *host, const char *name, const char *version,
                         bool is_required);

/* Records that an announced model cannot be loaded, with the sentence `failure`. If too few other
 * models are served, the model host becomes MODEL_HOST_FAILED. If this version itself is served,
 * its replacement has failed. Unknown names are ignored. */
void model_host_fail(struct model_host *host, const char *name, const char *version,
                     const char *failure);

/* Clears the failures of a model's ready versions: their replacement may succeed now. */
void model_host_clear_failure(struct model_host *host, const char *name);

/* Call it when every model that existed at start has been tried. From then on the model host is
 * ready when one model is ready, and failed models do not matter. */
void model_host_settle(struct model_host *host);

enum model_host_state model_host_state(const struct model_host *host);

/* The state for health probes: as model_host_state(), except that a ready model host is
 * MODEL_HOST_FAILED when a served model has no working device left, and MODEL_HOST_STUCK when a
 * pass is stuck. With options.ready_strict, if a required model is not served, the state says
 * whether it is loading, has failed or was unloaded. */
enum model_host_state model_host_readiness(struct model_host *host);

/* Seconds after which another readiness check is useful: an estimate while models load, else 1. */
int model_host_retry_after(struct model_host *host);

/* Admits or refuses, never blocks. The caller has set the input members and zeroed the rest.
 * Errors: STATUS_INVALID (no image, top_k or priority out of range, photos for a model that takes
 * none, labels for a model that is not a classifier, rows that do not fit together, no model name
 * where several are possible), STATUS_NOT_FOUND (no such model; the sentence names the models),
 * STATUS_TOO_LARGE (more images than the queue's limit), STATUS_NOT_READY, STATUS_DRAINING,
 * STATUS_OVERLOADED (a limit of the queue is reached, or the deadline cannot be met),
 * STATUS_TIMEOUT (the deadline has passed). On success on_done will be called exactly once,
 * possibly before this returns, and the request must live until then. On failure on_done is not
 * called. */
enum status model_host_submit(struct model_host *host, struct predict_request *request,
                              struct error *err) MUST_USE;

/* Predicts whether a request of `images` and `bytes` would be admitted now, to refuse it before its
 * body is read. Does not read the images, tensors and options of the request. With any_size it is
 * refused only if the queues of all compiled sizes refuse it. If the model must be loaded first,
 * starts the load and returns STATUS_OK. Errors as model_host_submit(). Counts refusals. */
enum status model_host_would_admit(struct model_host *host, const struct predict_request *request,
                                   size_t images, size_t bytes, struct error *err) MUST_USE;

/* Copies the name of the model for requests that name none to `size` bytes, whether it is ready or
 * not: options.default_model, else the only model, or the pipeline whose stages are all the other
 * models. An unloaded model stays the default. Returns false, and "", if there is none. */
bool model_host_default(struct model_host *host, char *ret, size_t size);

/* True if a request can name another model than the default. */
bool model_host_has_choice(struct model_host *host);

/* Keeps a submitted request alive: its on_done is not called before model_host_cancel(). Returns
 * false if it is not admitted (yet), or all its images are answered. The caller must keep the
 * request's memory valid during the call. */
bool predict_request_pin(struct predict_request *request);

/* Cancels a pinned request, because its client has gone. Its queued images are answered with
 * STATUS_CANCELLED at once, to make room, its other images when their turn comes. Releases the pin,
 * and may call on_done. */
void model_host_cancel(struct model_host *host, struct predict_request *request);

/* Frees results that the model host allocated in the request (predictions, outputs) and releases
 * its model, but not the request. Must follow every on_done, before model_host_free(). Also valid
 * for a request that was refused or never submitted. */
void predict_request_free_results(struct predict_request *request);

/* The state of a lane: it works, is quarantined because its device fails, or is stuck in a pass. */
struct lane_health {
    bool is_quarantined, is_stuck;
    double quarantined_s; /* duration of the quarantine */
    char reason[256];     /* "cuda:1: …" */
};

/* What is known of a model once its files have been read. */
struct model_brief {
    uint64_t parameter_bytes, file_bytes;
    bool takes_images;   /* requests can contain photos */
    bool takes_texts;    /* it answers texts with vectors */
    bool answers_photos; /* POST /predict accepts photos */
    enum task_kind task;
    char task_evidence[240];
    float confidence, iou;       /* thresholds of the task; negative: the task has none */
    int width, height, channels; /* of the photos; 0: the model takes no photos */
    size_t class_count;
};

/* The state of a model for /health and /devices; a snapshot. */
struct model_status {
    char name[128], version[16];
    enum model_state state;
    double progress;         /* 0 … 1 while loading; never decreases */
    const char *phase;       /* "waiting", "reading", "optimising", "compiling" or "measuring" */
    int seconds_left;        /* while loading: an estimate */
    char failure[480];       /* why the load failed; with MODEL_READY: why its replacement failed */
    bool can_answer;         /* the model is ready, or a request can load it */
    enum unload_cause cause; /* for MODEL_UNLOADING and MODEL_UNLOADED */
    uint64_t loads, unloads[UNLOAD_CAUSES]; /* numbers of loads, and of unloads by cause */
    double load_seconds;                    /* of the last load */
    size_t lane_count;
    struct session_info lanes[DEVICE_MAX];
    struct lane_health health[DEVICE_MAX];         /* of `lanes` */
    struct precision_choice choices[DEVICE_KINDS]; /* index: device_kind; unset while `why` is "" */
    size_t queued;            /* admitted images that wait for a decode worker */
    size_t in_flight;         /* admitted images in a later phase: decode, slot, forward, answer */
    int64_t still_ns;         /* nanoseconds without an answer while images wait; 0: none waits */
    struct model_brief brief; /* for a pipeline, that of its first model */
    bool is_default;
    char stages[PIPELINE_STAGES_MAX][128]; /* names of a pipeline's models */
    size_t stage_count;                    /* 0: not a pipeline */
};

/* True if a pass of a model is stuck: it takes far longer than predicted, or runs long past its
 * clients' deadlines. Other passes on its device then wait. Writes the names of the models with a
 * stuck pass, separated by commas. */
bool model_host_is_stuck(struct model_host *host, char *ret_models, size_t size);

/* Returns the bytes of a device that models use (weights, activations, batches of inputs);
 * *ret_limit is the limit, 0 if there is none. */
size_t model_host_memory(struct model_host *host, struct device_id device, size_t *ret_limit);

/* Returns all models, malloc'ed, sorted by name, then in the order of their announcement; NULL when
 * out of memory. */
struct model_status *model_host_snapshot(struct model_host *host, size_t *ret_count);
