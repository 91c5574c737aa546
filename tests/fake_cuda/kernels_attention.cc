#include "engine/cuda/kernels/attention.cu"
