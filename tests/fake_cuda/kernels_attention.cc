#include "engine/cuda/attention.cu"
