#include "engine/cuda/kernels/argbest.cu"
